"""Training of a model that has not seen one fold of the pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raydr.errors import DataError
from raydr.runtime.console import say
from raydr.stages.pool import Pool
from raydr.stages.train import train
from raydr.store.artifact import Artifact, Building
from raydr.training.training import Extras, Training

if TYPE_CHECKING:
    from raydr.runtime.tracking import TrackerHandle


def train_fold(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    *,
    training: Training,
    tracker: TrackerHandle | None,
) -> dict[str, Any]:
    """Train on what :func:`raydr.stages.folds.leave_fold_out` has left, in smaller batches where a batch holds more.

    Args:
        making, pool, dataset, corpus, training, tracker: as :func:`raydr.stages.train.train` takes them.

    Raises:
        DataError: not even one small batch is left.
    """
    num_queries, batch_size = dataset.info["num_queries"], training.train.batch_size
    if num_queries < batch_size:
        training = _in_small_batches(training, num_queries)
        say(f"cross-fit: batches of {training.train.batch_size} in place of {batch_size}: a fold leaves {num_queries}")
    return train(making, pool, dataset, corpus, Extras(), training=training, tracker=tracker)


def _in_small_batches(training: Training, num_queries: int) -> Training:
    settings = training.train
    most = settings.num_workers if isinstance(settings.num_workers, int) else settings.num_workers[1]
    whole = most * settings.accumulation_steps
    batch_size = num_queries // whole * whole
    if batch_size < 2 * whole:
        raise DataError(
            f"a fold leaves {num_queries} queries to train on, {2 * whole} are needed: set cross_fit.num_folds higher, "
            "train.num_workers or train.accumulation_steps lower, or take margins of the model itself"
        )
    return training.model_copy(update={"train": settings.model_copy(update={"batch_size": batch_size})})
