"""The models that measure pairs: the checkpoint where it is a retriever, else models of folds."""

from __future__ import annotations

from typing import Any

import pytest

from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.noise.margins import CrossFitConfig

#: The tiny checkpoint has few positions.
SHORT: dict[str, Any] = {"query": {"max_length": 32}, "passage": {"max_length": 32}}


@pytest.fixture(scope="module")
def retriever(tiny_checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    config = ModelConfig.model_validate({"checkpoint": tiny_checkpoint} | SHORT)
    folder = tmp_path_factory.mktemp("retriever") / "model"
    DualEncoder.from_config(config).save(folder, build_tokenizers(config))
    return str(folder)


def measured_by(run_model: dict[str, Any], **settings: Any) -> tuple[int | None, int | None]:
    """The layers and epochs of the models that measure the pairs of a run."""
    resolved = CrossFitConfig(**settings).resolved(ModelConfig.model_validate(SHORT | run_model))
    assert resolved.model is not None
    return resolved.model.num_layers, resolved.num_epochs


def test_a_checkpoint_that_is_a_retriever_measures_the_pairs_itself(retriever: str) -> None:
    assert measured_by({"checkpoint": OFFLINE_CHECKPOINT}) == (None, 0)
    assert measured_by({"checkpoint": retriever}) == (None, 0)
    # Cutting layers makes a training fast, and a checkpoint no better: all of them measure.
    assert measured_by({"checkpoint": retriever, "num_layers": 1}) == (None, 0)


def test_any_other_is_trained_on_the_pairs_of_other_folds(tiny_checkpoint: str, retriever: str) -> None:
    assert measured_by({"checkpoint": tiny_checkpoint}) == (None, 2)
    assert measured_by({"checkpoint": tiny_checkpoint, "num_layers": 1}) == (1, 2)
    # A part of the model is new.
    assert measured_by({"checkpoint": retriever, "projection": 8}) == (None, 2)
    assert measured_by({"checkpoint": OFFLINE_CHECKPOINT, "projection": 8}) == (None, 2)
    assert measured_by({"checkpoint": OFFLINE_CHECKPOINT, "score": {"name": "poly"}}) == (None, 2)
    assert measured_by({"checkpoint": OFFLINE_CHECKPOINT, "score": {"name": "sum_of_max"}}) == (None, 2)
    assert measured_by({"checkpoint": OFFLINE_CHECKPOINT, "score": {"name": "sum_of_max"}, "projection": None}) == (
        None,
        0,
    )
    two = {"checkpoint": OFFLINE_CHECKPOINT, "towers": "two", "passage_checkpoint": tiny_checkpoint}
    assert measured_by(two) == (None, 2)


def test_what_is_set_stays_as_it_is(tiny_checkpoint: str, retriever: str) -> None:
    assert measured_by({"checkpoint": retriever, "num_layers": 1}, num_epochs=3) == (1, 3)
    assert measured_by({"checkpoint": tiny_checkpoint}, num_epochs=0) == (None, 0)
    assert measured_by({"checkpoint": tiny_checkpoint}, model=SHORT | {"checkpoint": retriever}) == (None, 0)


def test_only_a_checkpoint_that_takes_most_pairs_for_random_is_doubted(tiny_checkpoint: str, retriever: str) -> None:
    alone = CrossFitConfig().resolved(ModelConfig.model_validate(SHORT | {"checkpoint": retriever}))
    assert "cross_fit.num_epochs=2" in alone.doubt(0.71)
    assert not alone.doubt(0.7)
    assert not alone.doubt(None)
    assert not CrossFitConfig().resolved(ModelConfig.model_validate(SHORT | {"checkpoint": tiny_checkpoint})).doubt(0.9)
