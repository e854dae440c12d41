"""Training steps of a bi-encoder with BERT-base's shape: by loss, score function and batch; half precision."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.encoding import make_tokens
from benchmarks.gpu.record import Record
from benchmarks.shapes import save_checkpoint
from benchmarks.timing import timed
from benchmarks.train_step import Step
from raydr.component import build
from raydr.losses.base import Loss
from raydr.models.config import ModelConfig, Side, SideConfig
from raydr.models.tokens import Tokens
from raydr.training.config import TrainConfig

#: Compared losses and score functions.
LOSSES: dict[str, dict[str, Any]] = {
    "nce": {"name": "nce"},
    "rcl": {"name": "rcl", "beta": {"final": 0.5, "start_epoch": 0}},
    "npc, with its teacher": {"name": "npc", "warmup_epochs": 0},
}
SCORES = ("sum_of_max", "multi", "poly", "genpoly")
#: Batches of the plain step.
BATCHES = (128, 512)
#: Batches of gradient caching, and whether their scores are computed in tiles: 65,536² scores in float32 are 16 GiB.
LARGE = ((8_192, False), (8_192, True), (65_536, True), (32_768, False))
#: Mean and maximal number of tokens of a query, and of a passage.
QUERY, PASSAGE = (20, 32), (120, 160)
#: Tokens of a piece of gradient caching.
CACHE_TOKENS = 65_536
#: Queries of a tile of scores.
TILE = 4_096


def measure(record: Record, folder: Path, dtype: str) -> None:
    """Measure steps of the losses with and without teacher, and of batches that need pieces and tiles."""
    checkpoint = _checkpoint(record, folder / "training")
    rate = partial(_rate, record, checkpoint, dtype)
    batches = [record.size(batch, 8) for batch in BATCHES[: record.size(len(BATCHES), 1)]]
    for batch in batches:
        for name in ("nce", "npc, with its teacher"):
            record.row("training", f"{name}, batch {batch}", partial(rate, batch, LOSSES[name]), wanted_s=15)
    cache, tile = record.size(CACHE_TOKENS, 512), record.size(TILE, 4)
    for batch, tiled in LARGE if not record.dry else ((12, False), (12, True)):
        name = "nce, cached, in tiles" if tiled else "nce, cached"
        step = partial(rate, batch, LOSSES["nce"], cache_tokens=cache, tile_queries=tile if tiled else None)
        # Three passes over all tokens, and a first step that selects kernels.
        record.row("training", f"{name}, batch {batch:,}", step, wanted_s=10 + batch * 140 * 4 / 300_000)


def measure_others(record: Record, folder: Path, dtype: str) -> None:
    """Measure steps of other losses and score functions."""
    checkpoint = _checkpoint(record, folder / "others")
    first = record.size(BATCHES[0], 8)
    step = partial(_rate, record, checkpoint, dtype, first)
    record.row("training", f"rcl, batch {first}", partial(step, LOSSES["rcl"]), wanted_s=15)
    for score in SCORES[: record.size(4, 1)]:
        record.row("training", f"nce, {score}, batch {first}", partial(step, LOSSES["nce"], score=score), wanted_s=15)


def compare_precision(record: Record, folder: Path) -> None:
    """Compare losses of the same steps from the same weights in float32 and in bfloat16."""
    num_steps, batch = record.size(20, 3), record.size(64, 8)
    checkpoint = _checkpoint(record, folder / "precision")

    def compare(loss: dict[str, Any]) -> dict[str, Any]:
        curves = {}
        for dtype in ("float32", "bfloat16"):
            step = _step(record, checkpoint, dtype, batch, loss)
            curves[dtype] = [step() for _ in range(num_steps)]
        apart = [abs(full - half) for full, half in zip(*curves.values(), strict=True)]
        last = {f"last, {dtype}": curve[-1] for dtype, curve in curves.items()}
        return {"first": curves["float32"][0], **last, "most apart": max(apart)}

    for name, loss in list(LOSSES.items())[: record.size(3, 1)]:
        record.row("losses of the same steps", name, partial(compare, loss), wanted_s=20)


def _checkpoint(record: Record, folder: Path) -> str:
    return save_checkpoint(record.shape, "", folder / "checkpoint")


def _config(checkpoint: str, score: str = "dual") -> ModelConfig:
    sides = {"query": SideConfig(max_length=QUERY[1]), "passage": SideConfig(max_length=PASSAGE[1])}
    settings: dict[str, Any] = {"checkpoint": checkpoint, "dropout": 0.0, "score": score, **sides}
    return ModelConfig.model_validate(settings)


def _step(
    record: Record, checkpoint: str, dtype: str, batch: int, loss: dict[str, Any], score: str = "dual",
    **settings: Any,
) -> Callable[[], float]:  # fmt: skip
    tokens: dict[Side, Tokens] = {"query": make_tokens(batch, *QUERY), "passage": make_tokens(batch, *PASSAGE)}
    train = TrainConfig.model_validate({"batch_size": batch, "loss": build(Loss, loss), **settings})
    step = Step(_config(checkpoint, score), train, dtype, record.device)
    return partial(step, step.pad(tokens))


def _rate(
    record: Record, checkpoint: str, dtype: str, batch: int, loss: dict[str, Any], score: str = "dual",
    **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Measure the rate of a step; ``settings`` are further settings of training."""
    step = _step(record, checkpoint, dtype, batch, loss, score, **settings)
    # For a step of many seconds, the time to select kernels does not matter.
    first = timed(step)
    again = 0 if first > 20 or record.dry else 5 if first < 3 else 1
    seconds = statistics.median([timed(step) for _ in range(again)] or [first])
    tokens = sum(make_tokens(batch, *lengths).num_tokens for lengths in (QUERY, PASSAGE))
    return {"pairs/s": batch / seconds, "ms a step": seconds * 1000, "tokens/s": tokens / seconds}
