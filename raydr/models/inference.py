"""Encoding of tokens into vectors, in notebooks, Ray actors and benchmarks alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from raydr.data.embeddings import Encodings, VectorSets
from raydr.models.batching import move, padded_batches
from raydr.models.config import Side
from raydr.models.dual_encoder import load_tokenizer, load_tower
from raydr.models.int8 import load_int8_tower
from raydr.models.precision import torch_dtype, torch_threads
from raydr.models.tokens import Tokens
from raydr.models.tower import Tower

#: Maximum of batches that are started and not yet finished, besides the current batch.
_BATCHES_AHEAD = 2
#: Rows of the texts of a batch, and their encodings on the encoder's device.
_Encoded = Iterator[tuple[NDArray[np.int64], torch.Tensor]]


@torch.inference_mode()
def encode_tokens(tower: Tower, tokens: Tokens, token_budget: int, pad_id: int, side: Side) -> NDArray[np.float32]:
    """Encode N texts, in order: (N, dim), or with several vectors per text (N, M, dim), padded with zeros.

    Batches have texts of similar length within the token budget; the tower must be in eval mode.
    """
    shape: tuple[int, ...] = (tokens.num_rows, tower.dim)
    kind = tower.reduction(side).vectors
    if kind.several:
        shape = (tokens.num_rows, kind.most(int(tokens.lengths.max(initial=0))), tower.dim)
    vectors = np.zeros(shape, dtype=np.float32)
    for rows, encoded in _with_lookahead(_padded(tower, tokens, token_budget, pad_id, side)):
        if kind.several:
            vectors[rows, : encoded.shape[1]] = encoded
        else:
            vectors[rows] = encoded
    return vectors


def _padded(tower: Tower, tokens: Tokens, token_budget: int, pad_id: int, side: Side) -> _Encoded:
    device = next(tower.parameters()).device
    for rows, batch in padded_batches(tokens, token_budget, pad_id):
        yield rows, tower(**{key: move(value, device) for key, value in batch.items()}, side=side)


def _with_lookahead(batches: _Encoded) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Yield the encodings in host memory, each after the next batch has started, so that the device never idles."""
    pending: list[tuple[NDArray[np.int64], torch.Tensor, torch.cuda.Event | None]] = []

    def arrived() -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        rows, vectors, copied = pending.pop(0)
        if copied is not None:
            copied.synchronize()
        return rows, vectors.numpy()

    for rows, vectors in batches:
        copied = None
        # A copy that started later would wait for the batches started before it.
        on_host = vectors.float().to("cpu", non_blocking=True)
        if vectors.device.type == "cuda":
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        pending.append((rows, on_host, copied))
        if len(pending) > _BATCHES_AHEAD:
            yield arrived()
    while pending:
        yield arrived()


class InferenceEncoder:
    """A side's encoder of a saved model.

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
        quantized: str | Path = "",
    ) -> None:
        self.num_threads = num_threads
        self.token_budget = token_budget
        self.side: Side = side
        if quantized:
            self.tower = load_int8_tower(model, side, quantized, num_threads)
        else:
            self.tower = load_tower(model, side).ready(device, torch_dtype(dtype))
        self.pad_id = load_tokenizer(model, side).pad_id
        self.dim = self.tower.dim

    @torch.inference_mode()
    def encode(self, tokens: Tokens) -> Encodings:
        """Encode texts in float16, in order, with unit length if the similarity is cosine.

        Returns:
            An array (N, dim); with several vectors per text, :class:`raydr.data.embeddings.VectorSets`.
        """
        with torch_threads(self.num_threads):
            batches = _padded(self.tower, tokens, self.token_budget, self.pad_id, self.side)
            if self.tower.reduction(self.side).vectors.several:
                return _as_sets(tokens.num_rows, self.dim, _with_lookahead(batches))
            vectors_ND = np.zeros((tokens.num_rows, self.dim), dtype=np.float16)
            for rows, encoded in _with_lookahead(batches):
                vectors_ND[rows] = encoded.astype(np.float16)
            return vectors_ND


def _as_sets(num_rows: int, dim: int, batches: Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]) -> VectorSets:
    """Return the vectors of all batches, in the order of the texts."""
    parts = [(rows, VectorSets.of_padded(padded)) for rows, padded in batches]
    if not parts:
        return VectorSets(np.zeros((0, dim), dtype=np.float16), np.zeros(1, dtype=np.int64))
    order = np.argsort(np.concatenate([rows for rows, _ in parts]), kind="stable")
    return VectorSets.join([sets for _, sets in parts]).take(order)
