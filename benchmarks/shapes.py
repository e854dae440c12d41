"""Encoders of a given shape, the arithmetic that they take, and how fast the device multiplies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.texts import save_tokenizer
from raydr.models.checkpoint import resolve_checkpoint


class Shape(NamedTuple):
    """What decides how much an encoder computes."""

    layers: int
    width: int
    heads: int
    inner: int


#: Shapes that are made with random weights: speed does not depend on the weights.
SHAPES = {"minilm": Shape(6, 384, 12, 1536), "bert-base": Shape(12, 768, 12, 3072)}


def save_checkpoint(shape: Shape, tokenizer: str, folder: Path) -> str:
    """Save a BERT of this shape with random weights, and with the tokenizer of a checkpoint.

    Args:
        tokenizer: of a checkpoint (a local folder, a name on the hub, or ``offline:minilm``); made words if empty.
        folder: where it goes.
    """
    from transformers import AutoTokenizer, BertConfig, BertModel

    source = resolve_checkpoint(tokenizer) if tokenizer else save_tokenizer(folder)
    words = AutoTokenizer.from_pretrained(source)
    torch.manual_seed(0)
    model = BertModel(
        BertConfig(
            vocab_size=len(words),
            hidden_size=shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=shape.inner,
        ),
        add_pooling_layer=False,
    )
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def forward_flops(shape: Shape, lengths: Sequence[int]) -> float:
    """Floating-point operations of one forward pass without padding: matrix products and attention, nothing else.

    For a text of n tokens 2·n·L·(4·d² + 2·d·f) for the products and 4·n²·d·L for attention; d is the width, f the inner
    width, L the number of layers.

    >>> forward_flops(Shape(layers=1, width=2, heads=1, inner=4), [3]) == 2 * 3 * (4 * 4 + 2 * 2 * 4) + 4 * 9 * 2
    True
    """
    products = 2 * (4 * shape.width**2 + 2 * shape.width * shape.inner)
    attention = 4 * shape.width
    return float(shape.layers * sum(products * length + attention * length**2 for length in lengths))


def peak_flops(dtype: torch.dtype, device: str, size: int = 0, repeats: int = 8) -> float:
    """Operations a second of a large matrix product in this type; the best of several."""
    size = size or (8192 if torch.device(device).type == "cuda" else 2048)
    matrix = torch.randn(size, size, device=device, dtype=torch.float32).to(dtype)
    best = 0.0
    for _ in range(repeats + 1):
        started = time.perf_counter()
        product = matrix @ matrix
        # Waits for the device.
        float(product[0, 0])
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best
