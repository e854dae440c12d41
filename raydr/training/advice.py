"""Advice on settings of a training that are allowed but unwise."""

from __future__ import annotations

from raydr.models.config import SIDES
from raydr.negatives.samplers.base import Sampler
from raydr.negatives.samplers.mixed import Mixed
from raydr.negatives.samplers.simans import SimANS
from raydr.negatives.samplers.softmax import Softmax
from raydr.training.training import Training

#: Largest usual scale of a sum of cosines.
_SUM_SCALE = 4
#: Miners without scores of a dense model.
_SPARSE = ("bm25", "source")


def training_advice(training: Training, miner: str | None = None) -> list[str]:
    """Return the sentences to show before a training begins.

    Args:
        training: its settings.
        miner: who proposed the candidates that are trained on; None if they came with the data.

    >>> from raydr.models.config import ModelConfig
    >>> from raydr.training.config import TrainConfig
    >>> train = TrainConfig.model_validate({"pair_detection": {}})
    >>> len(training_advice(Training(model=ModelConfig(), train=train, train_split="train", dev_split="dev", seed=0)))
    1
    """
    train, model = training.train, training.model
    advice = train.loss.check(model.similarity)
    summed = [side for side in SIDES if model.vectors(side).kind == "tokens"]
    if len(summed) == 2 and model.similarity == "cosine" and model.scale > _SUM_SCALE:
        advice.append(
            f"the score function {model.score.name} sums a cosine for each token, and model.scale is {model.scale:g}: "
            "the softmax gives nearly all weight to a single candidate; 1 is usual"
        )
    if train.detection is not None and train.coteaching is None and not train.loss.reads_pair_flags:
        advice.append(
            f"train.pair_detection flags pairs before each epoch, and the loss {train.loss.name} does not read the "
            "flags: take npc, or leave the detection out"
        )
    if train.detection is None and train.loss.reads_pair_flags:
        advice.append(
            f"the loss {train.loss.name} leaves out flagged pairs, and without train.pair_detection none is flagged: "
            "set it, unless that is the ablation you want"
        )
    if train.loss.num_warmup_epochs >= train.num_epochs:
        advice.append(
            f"the loss {train.loss.name} begins after {train.loss.num_warmup_epochs} epochs of plain NCE, and "
            f"train.num_epochs is {train.num_epochs}: it never begins; train longer, or begin earlier"
        )
    hard = train.sampler.hard if isinstance(train.sampler, Mixed) else train.sampler
    dense = miner is not None and miner not in _SPARSE
    if dense and model.similarity == "cosine" and model.scale > 1 and _nearly_uniform(hard):
        advice.append(
            f"the sampler {hard.name} reads the run's scores, cosines, which lie so close together that it draws "
            f"nearly uniformly; for the model's own distribution set {_sharper(hard, model.scale)}"
        )
    return advice


def _nearly_uniform(sampler: Sampler) -> bool:
    if isinstance(sampler, Softmax):
        return sampler.smoothing == 1
    return isinstance(sampler, SimANS) and sampler.a <= 1


def _sharper(sampler: Sampler, scale: float) -> str:
    if isinstance(sampler, SimANS):
        return f"its a to {sampler.a:g} · model.scale², {sampler.a * scale**2:g}"
    return f"its smoothing to model.scale, {scale:g}"
