"""Memory and time of scores and loss, forward and backward, with the whole matrix of scores and in tiles.

    python -m benchmarks.loss_in_tiles --batch-size 16384 --tiles 1024 4096

Vectors are drawn at random: encoding has no part in it. Each row is measured in a process of its own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
from typing import Any

import torch

from benchmarks.timing import timed
from raydr.component import build
from raydr.losses.base import Loss
from raydr.models.config import ModelConfig
from raydr.training.batches import Batch
from raydr.training.scoring import BatchView, Encodings
from raydr.training.tiles import loss_in_tiles

_KIB = 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16384)
    parser.add_argument("--dims", type=int, default=384)
    parser.add_argument("--tiles", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--losses", nargs="*", default=["nce", "rcl"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    queries, processes = arguments.batch_size, multiprocessing.get_context("spawn")
    print(f"{queries:,} queries, a passage each, {arguments.dims} dimensions, float32, {arguments.threads} threads")
    for loss in arguments.losses:
        whole = None
        for tile in (None, *arguments.tiles):
            with processes.Pool(1) as pool:
                asked = (queries, arguments.dims, loss, tile, arguments.threads, arguments.repeats)
                seconds, grown, value = pool.apply(measure, asked)
            whole = whole or seconds
            name = "whole" if tile is None else f"tiles of {tile:,}"
            cost = f"{grown / 2**20:6,.0f} MiB {seconds:6.2f} s {seconds / whole:5.2f}x"
            print(f"{loss:5} {name:14} {cost}  loss {value:.6f}")


def measure(
    queries: int, dims: int, loss: str, tile: int | None, threads: int, repeats: int
) -> tuple[float, int, float]:
    """Median seconds, bytes by which the process has grown at most, and the loss."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(2 * queries, dims), dim=1).requires_grad_()
    hashes = torch.arange(1, queries + 1)
    nothing: Any = None
    batch = Batch(hashes.numpy() - 1, nothing, nothing, hashes, hashes[:, None], None, 0)
    computed = build(Loss, {"name": loss})
    before, values = _peak(), []

    def step() -> None:
        mine = Encodings.gathered(vectors[:queries], vectors[queries:], ModelConfig())
        value = loss_in_tiles(BatchView.gathered(mine, batch), computed, 1, queries, tile).per_query_Q.mean()
        value.backward()  # type: ignore[no-untyped-call]
        values.append(value.item())

    seconds = statistics.median(timed(step) for _ in range(repeats))
    return seconds, _peak() - before, values[0]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB


if __name__ == "__main__":
    main()
