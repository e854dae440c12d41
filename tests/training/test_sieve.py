from __future__ import annotations

from typing import Any

import pytest

from raydr.errors import ConfigError
from raydr.negatives.samplers.top import Top
from raydr.noise.judge_models import SieveConfig
from raydr.training.sieve import sieve_training
from raydr.training.training import Training


def training_of(**train: Any) -> Training:
    given = {"model": {"similarity": "dot", "scale": 3.0}, "train": train}
    return Training.model_validate(given | {"train_split": "train", "dev_split": "dev", "seed": 7})


def test_only_the_sieves_own_training_reaches_the_sieve() -> None:
    """Co-teaching and detection are the retriever's; a query's candidates are its own and no random ones."""
    retriever = training_of(coteaching={}, pair_detection={}, dtype="float32", positive="first")
    made = sieve_training(retriever, SieveConfig.model_validate({"beta": 0.3}), num_candidates=9)
    train = made.train
    assert (train.coteaching, train.pair_detection, train.num_hard_negatives) == (None, None, 9)
    assert (train.in_batch_negatives, train.sampler) == (False, Top(fill=False))
    assert train.loss.model_dump()["beta"] == SieveConfig.model_validate({"beta": 0.3}).beta.model_dump()
    assert (train.dtype, train.positive) == ("float32", "first")
    assert (made.model.similarity, made.model.scale, made.train_split, made.dev_split) == ("cosine", 3.0, "train", "")
    assert sieve_training(retriever, SieveConfig(scale=50.0), 9).model.scale == 50.0


def test_settings_that_do_not_fit_the_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="judge.sieve, with the workers of train, has 1 wrong setting"):
        sieve_training(training_of(num_workers=3, batch_size=6), SieveConfig(batch_size=16), 9)
