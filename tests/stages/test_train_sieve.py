from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raydr.config.run import RunConfig
from raydr.models.config import ModelConfig
from raydr.negatives.samplers.top import Top
from raydr.stages import train_sieve as stage
from raydr.store.folder import Folder


def test_only_the_sieves_own_training_reaches_the_sieve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Co-teaching and detection are the retriever's; a query's candidates are its own and no random ones."""
    made: list[Any] = []
    monkeypatch.setattr(stage, "read_config", lambda path: ModelConfig())
    monkeypatch.setattr(stage.Artifact, "open", lambda place, kind: SimpleNamespace(fingerprint="f", folder=place))
    monkeypatch.setattr(Folder, "localize_all", lambda self: "here")
    monkeypatch.setattr(stage, "train", lambda config, *rest, **more: made.append(config))
    config = RunConfig.parse(
        {
            "data": {"reader": {"name": "beir", "path": "unused"}},
            "negatives": {"depth": 9},
            "train": {"coteaching": {}, "pair_detection": {}},
            "judge": {"sieve": {"beta": 0.3}},
        }
    )
    place = Folder("somewhere")
    stage.train_sieve(config, place, place, place, place, place)
    train = made[0].train
    assert (train.coteaching, train.pair_detection, train.num_hard_negatives) == (None, None, 9)
    assert (train.in_batch_negatives, train.sampler) == (False, Top(fill=False))
    assert train.loss.beta.value(0) == 0.3
