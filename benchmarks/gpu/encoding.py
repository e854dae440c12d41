"""Tokens per second of an encoder with BERT-base's shape, by length, and of sentence-transformers."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.artefacts import make_artifact, make_corpus, make_in
from benchmarks.gpu.record import TINY, Record
from benchmarks.shapes import Shape, forward_flops, peak_flops, save_checkpoint
from benchmarks.texts import make_texts, save_tokenizer
from benchmarks.timing import steady_rate, timed
from raydr.artefacts.embeddings import encode_texts
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.pool import ThisProcess
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.encode_config import TOKEN_BUDGET, EncodeConfig
from raydr.models.inference import InferenceEncoder
from raydr.models.precision import torch_dtype
from raydr.models.tokens import Tokens
from raydr.store.artifact import Artifact
from raydr.store.identity import Identity

#: Mean tokens of a text: of queries, of passages of 100 words, of long passages.
LENGTHS = (50, 150, 512)
_LONGEST = 512
#: Other architectures: shape and further settings. Figures count operations as for BERT.
KINDS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "modernbert": (Shape(22, 768, 12, 1152), {}),
    "mpnet": (Shape(12, 768, 12, 3072), {}),
    "qwen3": (Shape(28, 1024, 16, 3072), {"num_key_value_heads": 8, "head_dim": 128}),
}


def measure(record: Record, folder: Path, dtype: str) -> None:
    """Measure the encoding of tokenised texts."""
    model = save_model(record.shape, folder)
    peak = peak_flops(torch_dtype(dtype), record.device, size=256 if record.dry else 0)
    record.row("encoding", f"one matrix product, {dtype}", lambda: {"share of it": 1.0, "TFLOP/s": peak / 1e12})
    lengths = {length: make_tokens(record.size(3_000_000, 2_000) // length, length) for length in LENGTHS}
    encoder = InferenceEncoder(str(model), "passage", dtype, record.device, TOKEN_BUDGET[record.device])
    for length, tokens in lengths.items():
        row = partial(_rate, partial(encoder.encode, tokens), tokens, record.shape, peak)
        record.row("encoding", f"raydr, {length} tokens", row, wanted_s=25)
    del encoder
    for kind in KINDS:
        _kind(record, folder / kind, kind, dtype, peak)


def _kind(record: Record, folder: Path, kind: str, dtype: str, peak: float) -> None:
    """Measure the encoding of texts of 150 tokens by another architecture."""
    shape = save_kind(kind, folder, record.dry)
    tokens = make_tokens(record.size(1_500_000, 2_000) // LENGTHS[1], LENGTHS[1])
    encoder = InferenceEncoder(folder / "model", "passage", dtype, record.device, TOKEN_BUDGET[record.device])
    row = partial(_rate, partial(encoder.encode, tokens), tokens, shape, peak)
    record.row("encoding", f"{kind}, {LENGTHS[1]} tokens", row, wanted_s=20)


def save_model(shape: Shape, folder: Path) -> Path:
    """Save a model with random weights and a tokenizer of synthetic words."""
    checkpoint = save_checkpoint(shape, "", folder / "checkpoint")
    side = SideConfig(max_length=_LONGEST)
    config = ModelConfig(checkpoint=checkpoint, query=SideConfig(max_length=64), passage=side, dropout=0.0)
    DualEncoder.from_config(config).save(folder / "model", build_tokenizers(config))
    return folder / "model"


def save_kind(kind: str, folder: Path, dry: bool) -> Shape:
    """Save a model of an architecture of :data:`KINDS`; return its shape."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    shape, more = KINDS[kind]
    if dry:
        shape = TINY
    tokenizer = AutoTokenizer.from_pretrained(save_tokenizer(folder / "checkpoint"))
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), hidden_size=shape.width, num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads, intermediate_size=shape.inner, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3, max_position_embeddings=1024,
        **(dict.fromkeys(more, 1) if dry else more),
    )  # fmt: skip
    AutoModel.from_config(config).save_pretrained(folder / "checkpoint")
    model = ModelConfig(checkpoint=str(folder / "checkpoint"), passage=SideConfig(max_length=_LONGEST), dropout=0.0)
    DualEncoder.from_config(model).save(folder / "model", build_tokenizers(model))
    return shape


def make_tokens(num: int, length: int, longest: int = _LONGEST) -> Tokens:
    """Return texts of random words, of 0.5 to 1.5 times ``length`` tokens, at most ``longest``."""
    rng = np.random.default_rng(length)
    lengths = np.minimum(rng.integers(length // 2, length + length // 2 + 1, size=num), longest)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Tokens(rng.integers(5, 60, size=offsets[-1], dtype=np.int32), offsets, lengths.astype(np.int32))


def _rate(encode: Callable[[], object], tokens: Tokens, shape: Shape, peak: float) -> dict[str, Any]:
    # The first call selects kernels.
    encode()
    seconds = min(timed(encode) for _ in range(2))
    flops = forward_flops(shape, tokens.lengths.tolist())
    return {
        "tokens/s": tokens.num_tokens / seconds,
        "texts/s": tokens.num_rows / seconds,
        "TFLOP/s": flops / seconds / 1e12,
        "share of it": flops / seconds / peak,
    }


def from_strings(record: Record, folder: Path, dtype: str) -> None:
    """Measure encoding from strings to written vectors in a single process, and other programs for comparison."""
    make_artifact(folder / "model", Identity(kind="model"), {}, {})
    model = save_model(record.shape, folder)
    texts = make_texts(record.size(60_000, 80), LENGTHS[1] - 2)
    before = os.environ.get("TOKENIZERS_PARALLELISM", "")
    for part_rows in (record.size(2_500, 10), record.size(10_000, 20)):
        row = partial(_stage, folder, str(model), texts, part_rows, dtype, record.device)
        record.row("strings to vectors", f"raydr, parts of {part_rows:,}", row, wanted_s=30)
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    some = texts[: record.size(8_000, 8)]
    tokenizer = load_tokenizer(str(model), "passage")
    ways: dict[str, Callable[[], object]] = {"raydr's tokenizer alone": lambda: tokenizer(None, some)}
    if find_spec("sentence_transformers") is not None:
        from sentence_transformers import SentenceTransformer

        theirs = SentenceTransformer(str(model), device=record.device, model_kwargs={"dtype": torch_dtype(dtype)})
        ways["sentence-transformers, 128 a batch"] = lambda: theirs.encode(some, batch_size=128)

    def rate(encode: Callable[[], object]) -> dict[str, Any]:
        encode()
        return _of_texts(some, min(timed(encode) for _ in range(2)))

    for name, encode in ways.items():
        record.row("strings to vectors", name, partial(rate, encode), wanted_s=15)
    os.environ["TOKENIZERS_PARALLELISM"] = before


def _stage(folder: Path, model: str, texts: list[str], part_rows: int, dtype: str, device: str) -> dict[str, Any]:
    """Measure the stage from its third part on, since the first parts select kernels."""
    corpus = make_corpus(folder / f"corpus-{part_rows}", texts, part_rows)
    arithmetic = Arithmetic(dtype, device, TOKEN_BUDGET[device])
    settings = EncodeConfig(gpus_per_actor=float(device == "cuda"))
    done = make_in(
        ThisProcess(), folder / "written", "embeddings", encode_texts, Artifact.open(model, "model"), corpus,
        settings=settings, arithmetic=arithmetic,
    )  # fmt: skip
    skip = 2
    rate = steady_rate(Path(done.folder.root), "part-*.arrow", lambda part: part_rows, skip)
    rest = texts[skip * part_rows :]
    return _of_texts(rest, len(rest) / rate)


def _of_texts(texts: list[str], seconds: float) -> dict[str, Any]:
    # A token for each word, and one for each end.
    tokens = sum(text.count(" ") + 3 for text in texts)
    return {"tokens/s": tokens / seconds, "texts/s": len(texts) / seconds}
