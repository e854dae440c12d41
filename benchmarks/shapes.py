"""Encoders by shape, their number of operations, and the peak rate of a device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.texts import save_tokenizer
from raydr.models.checkpoint import resolve_checkpoint


class Shape(NamedTuple):
    """The sizes that determine the cost of an encoder."""

    layers: int
    width: int
    heads: int
    inner: int


#: Shapes of models with random weights, on which speed does not depend.
SHAPES = {"minilm": Shape(6, 384, 12, 1536), "bert-base": Shape(12, 768, 12, 3072)}


def save_checkpoint(shape: Shape, tokenizer: str, folder: Path) -> str:
    """Save a BERT of a shape with random weights; return its folder.

    Args:
        shape: of the model.
        tokenizer: a checkpoint with the tokenizer (a local folder, a name on the hub, or ``offline:minilm``); empty for
            a tokenizer of synthetic words.
        folder: of the checkpoint.
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
    """Return the floating-point operations of matrix products and attention in a forward pass without padding.

    For a text of n tokens, they are 2·n·L·(4·d² + 2·d·f) for the products and 4·n²·d·L for attention; d is the width, f
    the inner width, L the number of layers.

    >>> forward_flops(Shape(layers=1, width=2, heads=1, inner=4), [3]) == 2 * 3 * (4 * 4 + 2 * 2 * 4) + 4 * 9 * 2
    True
    """
    products = 2 * (4 * shape.width**2 + 2 * shape.width * shape.inner)
    attention = 4 * shape.width
    return float(shape.layers * sum(products * length + attention * length**2 for length in lengths))


def peak_flops(dtype: torch.dtype, device: str, size: int = 0, repeats: int = 8) -> float:
    """Measure the operations per second of a large matrix product in a type; return the best of several."""
    size = size or (8192 if torch.device(device).type == "cuda" else 2048)
    matrix = torch.randn(size, size, device=device, dtype=torch.float32).to(dtype)
    best = 0.0
    for _ in range(repeats + 1):
        started = time.perf_counter()
        product = matrix @ matrix
        # Wait for the device.
        float(product[0, 0])
        best = max(best, 2 * size**3 / (time.perf_counter() - started))
    return best
