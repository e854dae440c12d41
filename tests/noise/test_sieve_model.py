"""The throw-away model of the passage sieve: what the judge asks for."""

from __future__ import annotations

from typing import Any

import pytest

from raydr.config.sections import JudgeConfig
from raydr.errors import ConfigError
from raydr.models.config import ModelConfig
from raydr.negatives.samplers.top import Top
from raydr.noise.judges.asked import Copy
from raydr.noise.judges.sieve import Sieve
from raydr.training.config import TrainConfig
from raydr.training.training import Training


def training_of(**train: Any) -> Training:
    return Training(
        model=ModelConfig(similarity="dot", scale=1.0),
        train=TrainConfig.model_validate(train),
        train_split="train",
        dev_split="dev",
        seed=3,
    )


def copy_of(**sieve: Any) -> Copy:
    asked = Sieve().asks(JudgeConfig.model_validate({"sieve": sieve}))
    assert isinstance(asked, Copy)
    return asked


def sieved(retriever: Training, asked: Copy) -> Training:
    return retriever.changed(asked.model, {**asked.train, "num_hard_negatives": 9}, "judge.sieve")


def test_it_learns_from_the_candidates_alone_by_cosine_with_beta() -> None:
    asked = copy_of(beta=0.3, num_candidates=9)
    assert (asked.name, asked.num_candidates) == ("sieve", 9)
    retriever = training_of(num_workers=2, batch_size=6, coteaching={}, pair_detection={}, positive="first")
    made = sieved(retriever, asked)
    assert (made.train.coteaching, made.train.pair_detection, made.train.positive) == (None, None, "first")
    assert made.train.sampler == Top(fill=False)
    assert (made.model.similarity, made.model.scale) == ("cosine", 1.0)
    assert (made.train.loss.name, made.train.in_batch_negatives, made.train.keep) == ("rcl", False, "last")
    assert (made.train.num_workers, made.dev_split, made.seed) == (2, "", 3)
    assert made.train.optimizer.learning_rate == 1e-7


def test_its_temperature_is_the_retrievers_unless_it_has_its_own() -> None:
    asked = copy_of(scale=50.0)
    assert sieved(training_of(), asked).model.scale == 50.0


def test_settings_that_do_not_fit_the_workers_are_refused() -> None:
    asked = copy_of(batch_size=2)
    with pytest.raises(ConfigError, match="judge.sieve, with the workers of train"):
        sieved(training_of(num_workers=3, batch_size=6), asked)
