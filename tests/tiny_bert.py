"""A BERT of random weights that takes milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def save_tiny_bert(folder: Path, words: Sequence[str], hidden_size: int = 32, num_layers: int = 2) -> str:
    """Save a checkpoint whose WordPiece vocabulary has the words, and letters and digits for all others."""
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(97, 123)] + [str(digit) for digit in range(10)]
    pieces = [*special, *words, *(piece for letter in letters for piece in (letter, f"##{letter}"))]
    vocab = {piece: at for at, piece in enumerate(dict.fromkeys(pieces))}
    core = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=len(vocab),
            hidden_size=hidden_size,
            num_hidden_layers=num_layers,
            num_attention_heads=2,
            intermediate_size=2 * hidden_size,
            max_position_embeddings=128,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
