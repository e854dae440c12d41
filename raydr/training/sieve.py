"""The throw-away model of the passage sieve: a copy of the retriever, trained with RCL."""

from __future__ import annotations

from pydantic import ValidationError

from raydr.component import explain
from raydr.errors import ConfigError
from raydr.losses.rcl import RCL
from raydr.negatives.samplers.top import Top
from raydr.noise.judge_models import SieveConfig
from raydr.models.optimizer_config import OptimizerConfig
from raydr.training.config import TrainConfig
from raydr.training.training import Training


def sieve_training(training: Training, settings: SieveConfig, num_candidates: int) -> Training:
    """The training of the sieve's model, which starts from the retriever: algorithm 1, steps 1 and 2.

    The similarity is cosine whatever the retriever's is, a query's candidates are its own negatives and nothing else,
    and the last state is kept: there is no dev set.

    Source: Wang et al. (AAAI 2024) algorithm 1.

    Args:
        training: the retriever's; workers, arithmetic and the rule for the positive are the same.
        settings: of the sieve.
        num_candidates: negatives of each query that are trained on.

    Raises:
        ConfigError: the settings do not fit the number of workers.
    """
    model = training.model
    copy = model.model_copy(update={"similarity": "cosine", "scale": settings.scale or model.scale})
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
        train = TrainConfig.model_validate(dict(training.train) | changes)
    except ValidationError as error:
        raise ConfigError(explain(error, "judge.sieve, with the workers of train,")) from None
    # A split that no data set has: dev retrieval would cost more than the training.
    return Training(model=copy, train=train, train_split=training.train_split, dev_split="", seed=training.seed)
