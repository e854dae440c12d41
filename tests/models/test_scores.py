"""Score functions by themselves."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from training.harness import Halves

from raydr.models.config import ModelConfig
from raydr.models.scores import base
from raydr.models.scores.base import ScoreFunction
from raydr.models.scores.dual import Dual

SCORES: list[ScoreFunction] = [Dual(), Halves()]


def vectors(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.invariant
@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
@pytest.mark.parametrize("block_floats", [1, 5 * 6 * 3, 1 << 24])
def test_all_pairs_are_the_pairs_one_by_one(
    score: ScoreFunction, block_floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BLOCK_FLOATS", block_floats)
    query_QD, passage_PD = vectors(5), vectors(7, seed=1)
    scores_QP = score.all_pairs(query_QD, passage_PD)
    assert scores_QP.shape == (5, 7)
    for at, query in enumerate(query_QD):
        for column, passage in enumerate(passage_PD):
            torch.testing.assert_close(scores_QP[at, column], score.pairs(query, passage))
    assert score.all_pairs(query_QD, passage_PD[:0]).shape == (5, 0)


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
def test_a_query_is_scored_with_its_own_candidates(score: ScoreFunction) -> None:
    query_ND, passage_NMD = vectors(4), vectors(4, 3, seed=1)
    scores_NM = score.pairs(query_ND.unsqueeze(1), passage_NMD)
    for column in range(3):
        torch.testing.assert_close(scores_NM[:, column], score.pairs(query_ND, passage_NMD[:, column]))


@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.name)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_vectors_of_half_precision_are_scored_in_single(score: ScoreFunction, device: str) -> None:
    query_QD, passage_PD = (300 * vectors(5)).half().to(device), (300 * vectors(7, seed=1)).half().to(device)
    scores_QP = score.all_pairs(query_QD, passage_PD)
    assert scores_QP.dtype == torch.float32
    expected_QP = score.pairs(query_QD.double().unsqueeze(1), passage_PD.double())
    assert expected_QP.abs().max() > torch.finfo(torch.float16).max
    torch.testing.assert_close(scores_QP.double(), expected_QP, rtol=1e-5, atol=1e-2)


def test_a_model_scales_what_its_score_function_gives() -> None:
    config = ModelConfig.model_validate({"score": "halves", "scale": 3})
    query_QD, passage_PD = vectors(4), vectors(4, seed=1)
    torch.testing.assert_close(config.logits(query_QD, passage_PD), 3 * Halves().pairs(query_QD, passage_PD))
    torch.testing.assert_close(config.logits_QP(query_QD, passage_PD), 3 * Halves().all_pairs(query_QD, passage_PD))


def test_a_score_function_is_found_by_its_name() -> None:
    assert ModelConfig().score == Dual()
    config = ModelConfig.model_validate({"score": {"name": "halves"}})
    assert config.score == Halves()
    assert ModelConfig.model_validate_json(config.model_dump_json()) == config
    with pytest.raises(
        ValidationError,
        match="unknown score function 'cosine'; allowed: dual, genpoly, halves, multi, poly, sum_of_max",
    ):
        ModelConfig.model_validate({"score": "cosine"})
