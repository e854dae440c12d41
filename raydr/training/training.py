"""What is told to a training of a retriever: all of its settings, and nothing else of the run."""

from __future__ import annotations

from raydr.component import Config
from raydr.models.config import ModelConfig
from raydr.training.config import TrainConfig


class Training(Config):
    """One training; goes to every worker."""

    model: ModelConfig
    #: With a dtype that is resolved.
    train: TrainConfig
    #: What is trained on.
    train_split: str
    #: Chooses the epoch; nothing is measured if the data set has no such split.
    dev_split: str
    seed: int
    #: Take up the moments of the optimiser that were kept with the model that is started from.
    with_optimizer: bool = False
    #: Keep the optimiser's state after the last step with the model, for a training that goes on.
    keep_optimizer: bool = False
