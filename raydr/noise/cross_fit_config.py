"""Settings of cross-fitting: pairs are measured by models that have not seen them."""

from __future__ import annotations

from pydantic import Field

from raydr.component import Config
from raydr.models.config import ModelConfig
from raydr.models.optimizer_config import OptimizerConfig


class CrossFitConfig(Config):
    """Short trainings on all folds of the pairs but one each, which measure the pairs of the fold that was left out.

    They learn by plain NCE with in-batch negatives; what is not said here is as the sections ``model`` and ``train``
    have it. Made once, and shared by all trainings, judges, audits and trials for which these settings, the model and
    the pairs are the same.
    """

    model: ModelConfig | None = None
    """What is trained: as the section ``model`` if null. A stronger one finds more, whatever is trained on what it
    finds."""

    num_folds: int = Field(default=2, ge=2)
    """Into how many folds the pairs are cut; queries and passages that hang together stay together. Each costs a
    training on the others."""

    num_epochs: int = Field(default=2, ge=0)
    """Of each training; with 0 the checkpoint as it is, which has seen none of the pairs either, measures all folds:
    for the price of encoding them."""

    num_random: int = Field(default=255, ge=1)
    """Random passages of the same fold that each pair is measured against."""

    num_draws: int = Field(default=8, ge=1)
    """How often they are drawn for each pair; detectors take the mean of the probabilities that these lead to."""

    batch_size: int | None = Field(default=None, ge=2)
    """``train.batch_size`` if null; less where a fold leaves fewer queries."""

    optimizer: OptimizerConfig | None = None
    """``train.optimizer`` if null; set, it lets trainings with other optimisers share the same folds."""

    seed: int | None = Field(default=None, ge=0)
    """Draws folds, batches and random passages: the run's ``seed`` if null; set, it lets other seeds share them."""
