"""Exact search of vectors in half precision by blocks, as in an actor with a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from benchmarks.gpu.record import Record
from benchmarks.timing import timed
from raydr.indexing.torch_search import TorchFlat
from raydr.models.scores.dual import Dual

#: Number of DPR's Wikipedia passages.
WIKIPEDIA = 21_015_324
_BLOCK = 500_000


def measure(record: Record) -> None:
    """Measure queries per second over as many vectors as Wikipedia has passages, or as fit into GPU memory."""
    dim = record.size(768, 16)
    num = record.size(WIKIPEDIA, 3_000)
    if record.device == "cuda":
        free, _ = torch.cuda.mem_get_info()
        num = min(num, int(free * 0.6) // (2 * dim))

    def build() -> dict[str, Any]:
        built.append(TorchFlat(_vectors(num, dim, record.device), Dual()))
        return {"vectors": num, "GiB": num * dim * 2 / 2**30}

    built: list[TorchFlat] = []
    record.row("exact search", f"{num:,} x {dim}, float16", build, wanted_s=20)
    if not built:
        return
    for queries in (1, 32, 1024):
        row = partial(_rate, built[0], _vectors(queries, dim, "cpu").float(), dim)
        record.row("exact search", f"{queries} queries, top 100", row, wanted_s=15)


def _vectors(num: int, dim: int, device: str) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    vectors = torch.empty((num, dim), dtype=torch.float16, device=device)
    for start in range(0, num, _BLOCK):
        rows = min(_BLOCK, num - start)
        made = torch.randn((rows, dim), generator=generator, device=device)
        vectors[start : start + rows] = torch.nn.functional.normalize(made)
    return vectors


def _rate(index: TorchFlat, queries: torch.Tensor, dim: int) -> dict[str, Any]:
    search = partial(index.search, queries.numpy(), min(100, index.ntotal))
    search()
    seconds = min(timed(search) for _ in range(2))
    products = 2.0 * len(queries) * index.ntotal * dim
    return {"queries/s": len(queries) / seconds, "ms": seconds * 1000, "TFLOP/s": products / seconds / 1e12}
