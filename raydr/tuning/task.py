"""What the pipeline of a search needs to know of its trials, whatever they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from raydr.config.run import RunConfig
from raydr.runtime.tracking import Tracker
from raydr.store.artifact import Identity
from raydr.store.folder import Folder
from raydr.tuning.confirm import Confirming
from raydr.tuning.objective import Objective

#: Raised when a search gives other trials for the same settings.
VERSION = 1


@dataclass(frozen=True)
class Task:
    """What the trials of one search do.

    Args:
        objective: runs one of them.
        identity: what they depend on.
        confirming: trains the default's and the best's config anew: configs by system, seeds, folder, MLflow run.
        close: ends what trials share when they are over.
    """

    objective: Objective
    identity: Identity
    confirming: Callable[[Mapping[str, RunConfig], Sequence[int], Folder, Tracker], Confirming]
    close: Callable[[], None]
