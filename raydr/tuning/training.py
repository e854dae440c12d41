"""The search over one training: a trial makes what it reads, trains, and tells its dev measure after each epoch."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray

from raydr.config.run import RunConfig
from raydr.graph.places import Places
from raydr.stages.failures import worker_errors
from raydr.store.folder import Folder
from raydr.tuning.objective import News
from raydr.tuning.plan import TunePlan
from raydr.tuning.resources import Split
from raydr.tuning.trial import follow_training, outside
from raydr.tuning.trial_config import with_values
from raydr.tuning.trial_nodes import forget, make, nodes_of, trained


@dataclass(frozen=True)
class TrainingObjective:
    """See :class:`raydr.tuning.objective.Objective`.

    Args:
        config: of the default trial.
        split: of the resources.
    """

    config: RunConfig
    split: Split

    def run(self, values: Mapping[str, Any], place: Folder) -> Generator[News, None, None]:
        config = with_values(self.config, values)
        with outside(make_inputs, config) as work, worker_errors():
            ray.get(work)
        yield from follow_training(config, place, self.split)

    def forget(self, ended: Mapping[str, Any], kept: Sequence[Mapping[str, Any]]) -> None:
        def model(values: Mapping[str, Any]) -> list[Any]:
            # What it was made from may belong to a verb: only the model itself is the trial's.
            return list(nodes_of(with_values(self.config, values), refreshes=False).values())[-1:]

        others = [node for values in kept for node in model(values)]
        forget(Places.of(self.config.workdir), model(ended), others)


def make_inputs(config: RunConfig) -> None:
    """Make what a trial trains on, as far as it is not there."""
    make(config, list(trained(config).inputs.values()))


def trial_config(plan: TunePlan, dtype: str) -> RunConfig:
    """The config of the default trial: warm-ups are shared, and the arithmetic is the same for all."""
    config, longest = plan.space.config, plan.schedule.longest_warmup
    changes = {
        "dtype": dtype,
        "share_warmup": tuple(range(1, longest + 1)) or None,
    }
    return config.model_copy(update={"train": config.train.model_copy(update=changes)})
