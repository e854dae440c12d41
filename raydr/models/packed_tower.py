"""A tower that encodes packed texts, on a GPU by recorded passes.

A pass of an encoder starts hundreds of small kernels. Started by Python, they take longer to start than to compute;
a CUDA graph is a recording that starts all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.models.config import Side
from raydr.models.packed_attention import use_packed_attention
from raydr.models.packing import PackedTexts, pack, plan_packs
from raydr.models.tokens import Tokens
from raydr.models.tower import Tower

#: Vectors (N, D) or (N, M, D) of packed texts on the same device.
Forward = Callable[[PackedTexts], Tensor]


class PackedTower:
    """One side of a tower, made ready for packed texts.

    Passes are recorded where a text has one vector: of several, their number depends on the texts.

    Args:
        tower: on its device and in its arithmetic, for inference alone; its attention is replaced.
        side: whose texts it encodes.
        device: where it is.
        dtype: its arithmetic.

    Raises:
        ModelError: the encoder cannot read packed texts.
    """

    def __init__(self, tower: Tower, side: Side, device: str, dtype: torch.dtype) -> None:
        self.tower = tower
        self.side: Side = side
        self.device = torch.device(device)
        self.first_position = use_packed_attention(tower.backbone, device, dtype)
        self.recorded = self.device.type == "cuda" and not tower.reduction(side).vectors.several
        self._encode: Forward = RecordedPasses(self._forward) if self.recorded else self._forward

    def _forward(self, texts: PackedTexts) -> Tensor:
        return self.tower.encode_packed(texts, self.side)

    def encode(self, tokens: Tokens, token_budget: int) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yield rows of some texts and their encodings on the device, until all are done; nothing waits for the
        device."""
        for rows in plan_packs(tokens.lengths, token_budget):
            texts = pack(tokens, rows, self.first_position, self.recorded)
            yield rows, self._encode(texts.to(self.device))[: len(rows)]


class RecordedPasses:
    """Vectors of packed texts by a forward pass on a GPU, which is recorded once a shape and then played.

    A shape is recorded when it comes the second time: what comes once costs no recording. A recording reads the texts
    that it was made of, so further texts are copied over them. Recordings share their memory, so the vectors are
    copied out of it.

    Args:
        forward: vectors (N, D) of texts; it must neither wait for the device nor read host memory.
    """

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        # The same one always: libraries keep workspaces of many MiB for each stream.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._seen: set[tuple[int, int, int]] = set()
        self._recorded: dict[tuple[int, int, int], tuple[torch.cuda.CUDAGraph, PackedTexts, Tensor]] = {}

    def __call__(self, texts: PackedTexts) -> Tensor:
        """Encode texts on the GPU; nothing waits for it, except where a pass is recorded."""
        shape = texts.shape
        if shape not in self._seen:
            self._seen.add(shape)
            return self.forward(texts)
        if shape not in self._recorded:
            self._recorded[shape] = self._record(texts)
        graph, place, vectors_ND = self._recorded[shape]
        place.fill(texts)
        graph.replay()
        return vectors_ND.clone()

    def _record(self, texts: PackedTexts) -> tuple[torch.cuda.CUDAGraph, PackedTexts, Tensor]:
        place = texts.clone()
        graph, stream, current = torch.cuda.CUDAGraph(), self._stream, torch.cuda.current_stream()
        pool = next((graph.pool() for graph, _, _ in self._recorded.values()), None)
        # A library makes its handle for a thread and a stream at the first call, which must not be recorded.
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self.forward(place)
        current.wait_stream(stream)
        # Other threads of this process use the device meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            vectors_ND = self.forward(place)
        return graph, place, vectors_ND
