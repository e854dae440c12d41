"""Texts for benchmarks: from a JSONL file, or synthetic texts with the lengths of 100-word passages."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path

import numpy as np

_WORDS = [
    "the", "of", "and", "in", "to", "a", "was", "is", "for", "on", "as", "with", "by", "he", "that", "at", "from",
    "his", "it", "an", "were", "are", "which", "this", "also", "be", "has", "or", "had", "first", "one", "their",
    "its", "new", "after", "but", "who", "not", "they", "have", "city", "world", "time", "state", "school",
    "national", "team", "year", "film", "american", "university", "united", "league", "game", "family", "company",
    "series", "group", "member", "history", "music", "government", "church",
]  # fmt: skip


def load_texts(path: str, num: int) -> list[str]:
    """Return the first passages (title and text) of a BEIR ``corpus.jsonl[.gz]``, or synthetic ones for no path."""
    if not path:
        return make_texts(num, 100)
    with gzip.open(path, "rb") if path.endswith(".gz") else Path(path).open("rb") as file:
        rows = [json.loads(line) for line in islice(file, num)]
    return [f"{row.get('title', '')} {row['text']}".strip() for row in rows]


def make_texts(num: int, words: int) -> list[str]:
    """Return texts of 0.5 to 1.5 times ``words`` English words, drawn with a fixed seed."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(words // 2, words + words // 2 + 1, size=num)
    return [" ".join(_WORDS[at] for at in rng.integers(len(_WORDS), size=length)) for length in lengths]


def save_tokenizer(folder: Path, vocab_size: int = 30_522) -> str:
    """Save a WordPiece tokenizer of the synthetic words and letters, as large as BERT's; return its folder."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS, *letters, *(f"##{letter}" for letter in letters)]
    known = list(dict.fromkeys(pieces))
    known += [f"[unused{at}]" for at in range(vocab_size - len(known))]
    core = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(known)}, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=512, **names).save_pretrained(folder)
    return str(folder)
