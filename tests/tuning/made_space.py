"""A small space over a config that needs no data."""

from __future__ import annotations

from typing import Any

from raydr.config.run import RunConfig
from raydr.tuning.report import Row, Status, Trial
from raydr.tuning.space import Space, build_space

SPACE: dict[str, Any] = {
    "train.loss.warmup_epochs": {"int": [1, 3]},
    "train.optimizer.learning_rate": {"loguniform": [1e-5, 1e-3]},
    "train.sampler": {"choice": ["top", "uniform"]},
}


def make_config(**changes: Any) -> RunConfig:
    """NPC for 8 epochs."""
    train = {"loss": {"name": "npc", "warmup_epochs": 2}, "num_epochs": 8} | changes.pop("train", {})
    raw = {"data": {"reader": {"name": "beir", "path": "unused"}}, "train": train}
    return RunConfig.parse(raw | changes)


def make_space(space: dict[str, Any] | None = None, config: RunConfig | None = None, **sections: Any) -> Space:
    """The space above, or another one, bound to that config."""
    return build_space({"space": space or SPACE, **sections}, config or make_config(), "made")


def make_trial(number: int, scores: list[float], status: Status = "finished", **values: Any) -> Trial:
    """A trial with these scores after its epochs."""
    rows = [Row(epoch=at + 1, score=score, metrics={"loss": 1.0}) for at, score in enumerate(scores)]
    return Trial(number=number, values=values, status=status, rows=rows)
