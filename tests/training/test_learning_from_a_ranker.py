"""Learning from a ranker: its scores go with the candidates, on one rank or two, in one piece or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from raydr.training.config import TrainConfig
from raydr.training.signals import RankerScores
from training.harness import make_trainer, model_config, run_alone, run_with_ranks

TRAIN: dict[str, Any] = {"batch_size": 8, "num_epochs": 1, "num_hard_negatives": 8, "sampler": "uniform"}


def test_scores_stand_at_the_querys_own_candidates(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | {"loss": "ranker_kl"})
    maker = trainer.batches
    batch = maker.make(np.array([3, 7]), epoch=0)
    candidates = trainer.view(trainer.learner, batch).candidates()
    examples = maker.examples
    [ranker] = [signal for signal in maker.signals if isinstance(signal, RankerScores)]
    known_QC = ~candidates.signals["ranker_scores_QC"].isnan()
    assert candidates.positive_Q.tolist() == [0, 9]
    for line, at in enumerate((3, 7)):
        own = slice(line * 9, line * 9 + 9)
        # Six candidates are there; two random passages have no score, nor has the other query's list.
        num = 1 + len(examples.negatives[at])
        assert known_QC[line].sum() == known_QC[line, own].sum() == num < 9
        own_scores = candidates.signals["ranker_scores_QC"][line, own][:num].tolist()
        assert own_scores[0] == ranker.scores_of(np.array([at]), examples.positives[at][:1])[0]
        negatives = np.asarray(examples.negatives[at])
        scores = ranker.scores_of(np.full(len(negatives), at), negatives).tolist()
        hashes = maker.corpus.content_hashes(negatives).view(np.int64).tolist()
        by_hash = dict(zip(hashes, scores, strict=True))
        assert len(set(by_hash.values())) > 1
        assert own_scores[1:] == [by_hash[content_hash] for content_hash in batch.passage_hash_P[own][1:num].tolist()]


@pytest.mark.invariant
@pytest.mark.parametrize("loss", [{"name": "ranker_kl", "nce_weight": 0.5}, {"name": "margin_mse", "temperature": 2.0}])
def test_ranks_and_pieces_change_nothing(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path, loss: dict[str, Any]
) -> None:
    model, train = model_config(tiny_checkpoint, dropout=0.0), TRAIN | {"loss": loss}
    progress, weights = run_alone(tiny_data, model, train)
    for name, (other, theirs) in {
        "ranks": run_with_ranks(2, tmp_path, tiny_data, model, train),
        "pieces": run_alone(tiny_data, model, train | {"cache_tokens": 128}),
    }.items():
        assert other.history[0].metrics["loss"] == pytest.approx(progress.history[0].metrics["loss"], rel=1e-4), name
        for key, value in weights.items():
            torch.testing.assert_close(theirs[key], value, atol=2e-4, rtol=1e-3)


def test_without_hard_negatives_there_is_nothing_to_learn_from_a_ranker() -> None:
    with pytest.raises(ValidationError, match="'margin_mse' learns from a ranker's scores of hard negatives"):
        TrainConfig.model_validate({"loss": "margin_mse"})
