"""Encoding tokens into vectors, the same way in a notebook, a Ray actor and a benchmark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.errors import ModelError
from raydr.models.batching import move, padded_batches
from raydr.models.config import Side
from raydr.models.dual_encoder import load_tokenizer, load_tower
from raydr.models.encode_config import Batching
from raydr.models.packing import pack, plan_packs, use_packed_attention
from raydr.models.precision import torch_dtype
from raydr.models.threads import torch_threads
from raydr.models.tokens import Tokens
from raydr.models.tower import Tower


@torch.inference_mode()
def encode_tokens(tower: Tower, tokens: Tokens, token_budget: int, pad_id: int) -> NDArray[np.float32]:
    """Vectors (N, dim) of N texts, rows in the order given.

    Texts are batched by length within the token budget; the tower must be in eval mode.
    """
    device = next(tower.parameters()).device
    batches = padded_batches(tokens, token_budget, pad_id)
    return _collect(
        tokens.num_rows,
        tower.dim,
        ((rows, tower(**{key: move(value, device) for key, value in batch.items()})) for rows, batch in batches),
    )


@torch.inference_mode()
def encode_packed_tokens(tower: Tower, tokens: Tokens, token_budget: int, first_position: int) -> NDArray[np.float32]:
    """What :func:`encode_tokens` gives, from batches without padding."""
    device = next(tower.parameters()).device
    packs = plan_packs(tokens.lengths, token_budget)
    return _collect(
        tokens.num_rows,
        tower.dim,
        ((rows, tower.encode_packed(pack(tokens, rows, first_position).to(device))) for rows in packs),
    )


def _collect(num_rows: int, dim: int, batches: Iterable[tuple[NDArray[np.int64], torch.Tensor]]) -> NDArray[np.float32]:
    """The vectors of all batches, each at its rows."""
    vectors_ND = np.zeros((num_rows, dim), dtype=np.float32)
    pending: list[tuple[NDArray[np.int64], torch.Tensor]] = []
    for batch in batches:
        pending.append(batch)
        # One batch behind: the copy of a finished batch overlaps with the computation of the next.
        if len(pending) > 1:
            rows, vectors = pending.pop(0)
            vectors_ND[rows] = vectors.float().cpu().numpy()
    for rows, vectors in pending:
        vectors_ND[rows] = vectors.float().cpu().numpy()
    return vectors_ND


def compile_backbone(tower: Tower) -> None:
    """Translate the encoder with torch.compile, once for all shapes of batches.

    Raises:
        ModelError: there is no C++ compiler, which torch.compile takes for CPUs and GPUs alike.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ModelError(
            f"encode.batching is compiled, which takes a C++ compiler, and there is no {compiler} here: install it, "
            "set CXX, or set encode.batching=padded"
        )
    tower.backbone.compile(dynamic=True)


class InferenceEncoder:
    """One side of a saved model, ready to encode.

    >>> encoder = InferenceEncoder("MODEL_FOLDER", "passage", "bfloat16", "cpu", 16384)  # doctest: +SKIP
    >>> vectors = encoder.encode(tokenizer(titles, texts))  # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | Path,
        side: Side,
        dtype: str,
        device: str,
        token_budget: int,
        num_threads: int | None = None,
        batching: Batching = "padded",
    ) -> None:
        self.num_threads = num_threads
        self.token_budget = token_budget
        self.tower = load_tower(model, side).ready(device, torch_dtype(dtype))
        self.pad_id = load_tokenizer(model, side).pad_id
        self.dim = self.tower.dim
        self.first_position: int | None = None
        if batching == "packed":
            self.first_position = use_packed_attention(self.tower.backbone, device, torch_dtype(dtype))
        elif batching == "compiled":
            compile_backbone(self.tower)

    def encode(self, tokens: Tokens) -> NDArray[np.float16]:
        """Vectors (N, dim) in float16, rows in the order given, unit length if the similarity is cosine."""
        with torch_threads(self.num_threads):
            if self.first_position is not None:
                vectors_ND = encode_packed_tokens(self.tower, tokens, self.token_budget, self.first_position)
            else:
                vectors_ND = encode_tokens(self.tower, tokens, self.token_budget, self.pad_id)
        return vectors_ND.astype(np.float16)
