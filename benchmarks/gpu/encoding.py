"""Tokens a second of an encoder of BERT-base's shape, by length and batching, and beside sentence-transformers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.record import Record
from benchmarks.shapes import SHAPES, Shape, forward_flops, peak_flops, save_checkpoint
from benchmarks.texts import make_texts
from benchmarks.timing import timed
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers, load_tokenizer
from raydr.models.encode_config import TOKEN_BUDGET, Batching
from raydr.models.inference import InferenceEncoder
from raydr.models.precision import torch_dtype
from raydr.models.tokens import Tokens

#: Tokens of a text on average: a query, a passage of 100 words, a long one.
LENGTHS = (50, 150, 512)
_LONGEST = 512
#: The least of an encoder that is still one, for the dry form.
_TINY = Shape(layers=1, width=16, heads=2, inner=24)


def measure(record: Record, folder: Path, dtype: str) -> None:
    """Encoding of tokens that are there, then of texts."""
    shape = _TINY if record.dry else SHAPES["bert-base"]
    model = save_model(shape, folder)
    peak = peak_flops(torch_dtype(dtype), record.device, size=256 if record.dry else 0)
    record.row("encoding", f"one matrix product, {dtype}", lambda: {"share of it": 1.0, "TFLOP/s": peak / 1e12})
    ways: list[Batching] = ["padded", "packed"]
    if not record.dry and shutil.which(os.environ.get("CXX", "g++")):
        ways.append("compiled")
    lengths = {length: make_tokens(record.size(3_000_000, 2_000) // length, length) for length in LENGTHS}
    for way in ways:
        encoder = InferenceEncoder(
            str(model), "passage", dtype, record.device, TOKEN_BUDGET[record.device], batching=way
        )
        for length, tokens in lengths.items():
            row = partial(_rate, partial(encoder.encode, tokens), tokens, shape, peak)
            record.row("encoding", f"raydr {way}, {length} tokens", row, wanted_s=25)
        del encoder
    _from_texts(record, str(model), dtype)


def save_model(shape: Shape, folder: Path) -> Path:
    """A model with random weights and a tokenizer of made words, saved."""
    checkpoint = save_checkpoint(shape, "", folder / "checkpoint")
    side = SideConfig(max_length=_LONGEST)
    config = ModelConfig(checkpoint=checkpoint, query=SideConfig(max_length=64), passage=side, dropout=0.0)
    DualEncoder.from_config(config).save(folder / "model", build_tokenizers(config))
    return folder / "model"


def make_tokens(num: int, length: int, longest: int = _LONGEST) -> Tokens:
    """Texts of 0.5 to 1.5 times ``length`` tokens, at most ``longest``; all of them random words."""
    rng = np.random.default_rng(length)
    lengths = np.minimum(rng.integers(length // 2, length + length // 2 + 1, size=num), longest)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Tokens(rng.integers(5, 60, size=offsets[-1], dtype=np.int32), offsets, lengths.astype(np.int32))


def _rate(encode: Callable[[], object], tokens: Tokens, shape: Shape, peak: float) -> dict[str, Any]:
    # A compiled encoder is translated here, and kernels are chosen.
    encode()
    seconds = min(timed(encode) for _ in range(2))
    flops = forward_flops(shape, tokens.lengths.tolist())
    return {
        "tokens/s": tokens.num_tokens / seconds,
        "texts/s": tokens.num_rows / seconds,
        "TFLOP/s": flops / seconds / 1e12,
        "share of it": flops / seconds / peak,
    }


def _from_texts(record: Record, model: str, dtype: str) -> None:
    """From strings to vectors in one process, beside sentence-transformers where it is there."""
    texts = make_texts(record.size(8_000, 8), 148)
    before = os.environ.get("TOKENIZERS_PARALLELISM", "")
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    tokenizer = load_tokenizer(model, "passage")
    encoder = InferenceEncoder(model, "passage", dtype, record.device, TOKEN_BUDGET[record.device])
    ways: dict[str, Callable[[], object]] = {"raydr padded": lambda: encoder.encode(tokenizer(None, texts))}
    ways["raydr's tokenizer alone"] = lambda: tokenizer(None, texts)
    if find_spec("sentence_transformers") is not None:
        from sentence_transformers import SentenceTransformer

        theirs = SentenceTransformer(model, device=record.device, model_kwargs={"dtype": torch_dtype(dtype)})
        ways["sentence-transformers, 128 a batch"] = lambda: theirs.encode(texts, batch_size=128)

    def rate(encode: Callable[[], object]) -> dict[str, Any]:
        encode()
        return {"texts/s": len(texts) / min(timed(encode) for _ in range(2))}

    for name, way in ways.items():
        record.row("from texts of 150 tokens", name, partial(rate, way), wanted_s=15)
    os.environ["TOKENIZERS_PARALLELISM"] = before
