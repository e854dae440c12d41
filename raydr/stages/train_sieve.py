"""The throw-away model of the passage sieve: a copy of the retriever, trained with RCL."""

from __future__ import annotations

from pydantic import ValidationError

from raydr.config.run import RunConfig, explain
from raydr.errors import ConfigError
from raydr.losses.rcl import RCL
from raydr.models.dual_encoder import read_config
from raydr.negatives.samplers.top import Top
from raydr.stages.train import Start, train
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.training.config import OptimizerConfig, TrainConfig


def train_sieve(
    config: RunConfig,
    dataset: Folder,
    corpus: Folder,
    model: Folder,
    negatives: Folder,
    output: Folder,
    overwrite: bool = False,
) -> Artifact:
    """Train the sieve's model on ``data.train_split``: algorithm 1, steps 1 and 2.

    The similarity is cosine whatever the retriever's is, a query's candidates are its own negatives and nothing else,
    and the last state is kept: there is no dev set. The retriever stays as it is.

    Source: Wang et al. (AAAI 2024) algorithm 1.

    Args:
        config: ``judge.sieve`` says how; workers, arithmetic and the rule for the positive are those of ``train``.
        dataset: the judgments.
        corpus: the passages.
        model: the current retriever.
        negatives: the candidates that will be judged.
        output: where the ``model`` artefact goes.
        overwrite: replace what is at ``output``.

    Raises:
        ConfigError: the settings do not fit the number of workers.
    """
    settings = config.judge.sieve
    current = read_config(Artifact.open(model, "model").folder.localize_all())
    depth = config.negatives.depth if config.negatives is not None else None
    num_candidates = settings.num_candidates or depth
    if num_candidates is None:
        raise ConfigError("set judge.sieve.num_candidates: there is no section negatives whose depth would be taken")
    copy = current.model_copy(update={"similarity": "cosine", "scale": settings.scale or current.scale})
    changes = {
        "loss": RCL(beta=settings.beta),
        "pair_detection": None,
        "coteaching": None,
        "num_epochs": settings.num_epochs,
        "batch_size": settings.batch_size,
        "accumulation_steps": 1,
        "num_hard_negatives": num_candidates,
        "sampler": Top(fill=False),
        "in_batch_negatives": False,
        "optimizer": OptimizerConfig.model_validate(settings.optimizer.model_dump()),
        "share_warmup": None,
        "keep": "last",
    }
    try:
        training = TrainConfig.model_validate(dict(config.train) | changes)
    except ValidationError as error:
        raise ConfigError(explain(error, "judge.sieve, with the workers of train,")) from None
    # A split that no data set has: dev retrieval would cost more than the training.
    data = config.data.model_copy(update={"dev_split": ""})
    sieving = config.model_copy(update={"model": copy, "train": training, "data": data, "variants": {}})
    return train(sieving, dataset, corpus, output, negatives, overwrite=overwrite, start=Start(model))
