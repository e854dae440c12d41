"""Score functions of several vectors a text against loops over tokens, values and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from raydr.component import build
from raydr.models.batching import concatenate, widen
from raydr.models.config import ModelConfig
from raydr.models.scores import attended, base
from raydr.models.scores.attended import Attended
from raydr.models.scores.base import ScoreFunction, Vectors
from raydr.models.tower import Reduction

SETTINGS: list[dict[str, Any]] = [
    {"name": "multi"},
    {"name": "multi", "vectors": "codes", "num_vectors": 5},
    {"name": "multi", "attention": "soft", "sharpness": 3.0},
    {"name": "poly", "num_vectors": 5},
    {"name": "poly", "vectors": "first", "attention": "hard"},
    {"name": "genpoly", "num_vectors": 5},
    {"name": "genpoly", "vectors": "first", "attention": "hard", "keys": "passage"},
    {"name": "sum_of_max"},
    {"name": "sum_of_max", "keys": "query"},
    {"name": "sum_of_max", "attention": "soft", "sharpness": 0.5},
]
SCORES = [build(ScoreFunction, settings) for settings in SETTINGS]
each_score = pytest.mark.parametrize(
    "score", SCORES, ids=["-".join(map(str, setting.values())) for setting in SETTINGS]
)


def loop(score: ScoreFunction, query: list[torch.Tensor], passage: list[torch.Tensor]) -> torch.Tensor:
    """Σ_i of what vector i of one side gets from the other's vectors, token by token."""
    assert isinstance(score, Attended)
    summed, keys = (query, passage) if score.keys == "passage" else (passage, query)
    total = torch.zeros((), dtype=torch.float64)
    for vectors in summed:
        products = [sum(a * b for a, b in zip(vectors, key, strict=True)) for key in keys]
        if score.attention == "hard":
            best = products[0]
            for product in products[1:]:
                best = product if product.item() > best.item() else best
            total = total + best
        else:
            weights = [torch.exp(score.sharpness * product) for product in products]
            total = total + sum(w * p for w, p in zip(weights, products, strict=True)) / sum(weights)
    return total


def texts(num: int, vectors: Vectors, seed: int) -> torch.Tensor:
    """Encodings in double precision, of texts of different numbers of tokens where these are read."""
    generator = torch.Generator().manual_seed(seed)
    if not vectors.several:
        return torch.randn(num, 4, generator=generator, dtype=torch.float64)
    most = 5
    tokens = torch.randn(num, most, 4, generator=generator, dtype=torch.float64)
    if vectors.varies:
        for at in range(num):
            tokens[at, 1 + (at + seed) % most :] = 0
    return tokens


def vectors_of(encoding: torch.Tensor) -> list[torch.Tensor]:
    """Without padding."""
    return [encoding] if encoding.ndim == 1 else [row for row in encoding if bool((row != 0).any())]


@pytest.mark.invariant
@each_score
@pytest.mark.parametrize("block_floats", [1, 200, 1 << 24])
def test_all_pairs_are_loops_over_tokens(
    score: ScoreFunction, block_floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "BLOCK_FLOATS", block_floats)
    query = texts(3, score.query_vectors, 1).requires_grad_()
    passage = texts(7, score.passage_vectors, 2).requires_grad_()
    expected = torch.stack([torch.stack([loop(score, vectors_of(q), vectors_of(p)) for p in passage]) for q in query])
    weight = torch.linspace(-1, 1, 21, dtype=torch.float64).view(3, 7)
    wanted = torch.autograd.grad((expected * weight).sum(), [query, passage])
    scores = score.all_pairs(query, passage)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)
    for gradient, other in zip(torch.autograd.grad((scores * weight).sum(), [query, passage]), wanted, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)
    # Without gradients texts of similar length are scored together.
    monkeypatch.setattr(attended, "_SIMILAR", 2)
    with torch.no_grad():
        torch.testing.assert_close(score.all_pairs(query, passage), scores)
    assert score.all_pairs(query, passage[:0]).shape == (3, 0)


@pytest.mark.invariant
@each_score
def test_pairs_are_loops_over_tokens(score: ScoreFunction) -> None:
    """One passage a query, and three candidates a query."""
    query = texts(4, score.query_vectors, 1).requires_grad_()
    passage = texts(12, score.passage_vectors, 2).requires_grad_()
    grouped = passage.unflatten(0, (4, 3))
    expected = torch.stack(
        [
            torch.stack([loop(score, vectors_of(q), vectors_of(p)) for p in own])
            for q, own in zip(query, grouped, strict=True)
        ]
    )
    scores = score.pairs(query.unsqueeze(1), grouped)
    torch.testing.assert_close(scores, expected)
    wanted = torch.autograd.grad(expected.sum(), [query, passage])
    for gradient, other in zip(torch.autograd.grad(scores.sum(), [query, passage]), wanted, strict=True):
        torch.testing.assert_close(gradient, other)
    torch.testing.assert_close(score.pairs(query, grouped[:, 1]), expected[:, 1])


@pytest.mark.invariant
@each_score
def test_padding_counts_for_nothing(score: ScoreFunction) -> None:
    query, passage = texts(3, score.query_vectors, 1), texts(5, score.passage_vectors, 2)
    wider = [
        widen(tensor, tensor.shape[1] + 3) if vectors.varies else tensor
        for tensor, vectors in ((query, score.query_vectors), (passage, score.passage_vectors))
    ]
    torch.testing.assert_close(score.all_pairs(*wider), score.all_pairs(query, passage))


@each_score
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_vectors_of_half_precision_are_scored_in_single(score: ScoreFunction, device: str) -> None:
    query = (100 * texts(3, score.query_vectors, 1)).half().to(device)
    passage = (100 * texts(5, score.passage_vectors, 2)).half().to(device)
    scores = score.all_pairs(query, passage)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(
        scores.double(), score.all_pairs(query.double(), passage.double()).double(), rtol=1e-4, atol=1e-1
    )


@each_score
def test_with_one_vector_each_it_is_the_dual_score(score: ScoreFunction) -> None:
    torch.manual_seed(0)
    query, passage = torch.randn(3, 4), torch.randn(5, 4)
    several = [
        tensor.unsqueeze(1) if vectors.several else tensor
        for tensor, vectors in ((query, score.query_vectors), (passage, score.passage_vectors))
    ]
    torch.testing.assert_close(score.all_pairs(*several), query @ passage.T)


def test_texts_without_any_vector_score_nothing() -> None:
    for score in SCORES:
        if score.query_vectors.varies and score.passage_vectors.varies:
            assert score.all_pairs(torch.zeros(1, 2, 4), torch.ones(1, 2, 4)).tolist() == [[0.0]]
            with torch.no_grad():
                assert score.all_pairs(torch.ones(1, 2, 4), torch.zeros(1, 2, 4)).tolist() == [[0.0]]


@pytest.mark.parametrize("kind", ["pooled", "first", "codes", "tokens"])
def test_what_is_kept_of_hidden_states(kind: Any) -> None:
    """Against loops; padding holds nonsense that must not be seen."""
    torch.manual_seed(0)
    hidden_NLD, mask_NL = torch.randn(3, 6, 4), torch.tensor([[1] * 6, [1] * 2 + [0] * 4, [1] * 4 + [0] * 2])
    hidden_NLD[mask_NL == 0] = 1e4
    reduction = Reduction(Vectors(kind, 3), "mean", 4)
    kept, there = reduction(hidden_NLD, mask_NL)
    for at, length in enumerate([6, 2, 4]):
        states = hidden_NLD[at, :length]
        if kind == "pooled":
            torch.testing.assert_close(kept[at], states.mean(0))
        elif kind == "codes":
            assert reduction.codes is not None
            for code, vector in zip(reduction.codes, kept[at], strict=True):
                weights = [math.exp(float(code @ state)) for state in states]
                expected = sum(w * state for w, state in zip(weights, states, strict=True)) / sum(weights)
                torch.testing.assert_close(vector, expected)
        else:
            num = length if kind == "tokens" else min(3, length)
            assert int(there[at].sum()) == num
            torch.testing.assert_close(kept[at, :num], states[:num])
    assert (there is None) == (kind in ("pooled", "codes"))


def test_groups_of_different_widths_are_put_together() -> None:
    narrow, wide = torch.ones(2, 1, 3), torch.ones(1, 4, 3)
    assert concatenate([narrow, wide]).sum(dim=(1, 2)).tolist() == [3, 3, 12]
    assert concatenate([torch.ones(2, 3), torch.ones(1, 3)]).shape == (3, 3)


def test_vectors_of_tokens_are_projected_by_default() -> None:
    assert ModelConfig().projected_dim is None
    assert ModelConfig.model_validate({"score": "sum_of_max"}).projected_dim == 128
    assert ModelConfig.model_validate({"score": "multi"}).projected_dim is None
    assert ModelConfig.model_validate({"score": "sum_of_max", "projection": None}).projected_dim is None
    assert ModelConfig.model_validate({"score": "dual", "projection": 64}).projected_dim == 64


def test_more_vectors_than_tokens_are_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"first 200 tokens of a passage, which has at most passage.max_length 160"
    ):
        ModelConfig.model_validate({"score": {"name": "multi", "num_vectors": 200}})
    ModelConfig.model_validate({"score": {"name": "multi", "num_vectors": 200, "vectors": "codes"}})
    with pytest.raises(ValidationError, match="first 65 tokens of a query"):
        ModelConfig.model_validate({"score": {"name": "poly", "num_vectors": 65, "vectors": "first"}})
