"""The search over one training: a trial makes what it reads, trains, and tells its dev measure after each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from raydr.config import RunConfig
from raydr.pipelines.tune_inputs import TrainingInputs
from raydr.stages.failures import worker_errors
from raydr.stages.lone_worker import POPULATION, Alone, newest_state
from raydr.stages.tasks import fetch
from raydr.stages.tune_trial import streamed, training_rows
from raydr.storage import Folder
from raydr.tuning.objective import RowsSoFar
from raydr.tuning.resources import Split
from raydr.tuning.trial_config import with_values

#: A trial's model below its folder.
MODEL = "model"


@dataclass(frozen=True)
class TrainingObjective:
    """See :class:`raydr.tuning.objective.Objective`.

    Args:
        config: of the default trial, with its arithmetic resolved.
        corpus: of the run.
        workshop: actor that makes what trainings read.
        split: of the resources.
        population: trials are members of a population.
    """

    config: RunConfig
    corpus: Folder
    workshop: Any
    split: Split
    population: bool

    def run(self, values: Mapping[str, Any], place: Folder, start: Folder | None) -> Iterator[RowsSoFar]:
        config = with_values(self.config, values)
        inputs: TrainingInputs = fetch(self.workshop.make.remote(config))
        # A group's workers book their own resources; a single process is the task itself.
        alone = Alone(self.population, start) if self.split.alone else None
        work = streamed(training_rows, self.split.cpus if alone else 0, self.split.gpus if alone else 0)
        with worker_errors():
            yield from work(config, inputs.dataset, self.corpus, inputs.negatives, place / MODEL, alone)

    def state(self, place: Folder) -> Folder | None:
        return newest_state(place / f"{MODEL}.training" / POPULATION) if self.population else None
