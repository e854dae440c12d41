"""What is allowed and yet unwise in the settings of a training."""

from __future__ import annotations

from raydr.config import RunConfig
from raydr.negatives.samplers.mixed import Mixed
from raydr.negatives.samplers.softmax import Softmax


def training_advice(config: RunConfig) -> list[str]:
    """Sentences to show before a training begins.

    >>> config = RunConfig.parse({"data": {"reader": {"name": "beir", "path": "somewhere"}},
    ...                           "train": {"pair_detection": {}}})
    >>> len(training_advice(config))
    1
    """
    train, model = config.train, config.model
    advice = train.loss.check(model.similarity)
    if train.pair_detection is not None and train.coteaching is None and not train.loss.reads_pair_flags:
        advice.append(
            f"train.pair_detection flags pairs before each epoch, and the loss {train.loss.name} does not read the "
            "flags: take npc, or leave the detection out"
        )
    hard = train.sampler.hard if isinstance(train.sampler, Mixed) else train.sampler
    mined = config.negatives is not None and config.negatives.miner == "run"
    if mined and isinstance(hard, Softmax) and model.similarity == "cosine" and hard.smoothing == 1 < model.scale:
        advice.append(
            "the sampler softmax reads the run's scores, cosines, which lie so close together that it draws nearly "
            f"uniformly; for the model's own distribution set its smoothing to model.scale, {model.scale:g}"
        )
    return advice
