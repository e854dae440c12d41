"""Fused rankings against the formulas, written down a second time, and what must change nothing."""

from __future__ import annotations

import numpy as np
import pytest

from raydr.errors import ConfigError
from raydr.evaluation.config import FuseConfig
from raydr.evaluation.fusion import By, Evidence, Ranked, choose_weights, equal_weights, mixtures

RNG = np.random.default_rng(4)


def some_lists(num_systems: int, num_found: int = 12, num_passages: int = 20) -> list[Ranked]:
    lists = []
    for _ in range(num_systems):
        ids = [f"p{at:02d}" for at in RNG.choice(num_passages, num_found, replace=False)]
        lists.append(Ranked(ids, np.sort(RNG.normal(size=num_found))[::-1]))
    return lists


def ranking(lists: list[Ranked | None], weights: list[float], by: By = "ranks", offset: int = 60) -> list[str]:
    return Evidence.of(lists, by, offset).best(np.array(weights), 100)[0]


@pytest.mark.invariant
def test_ranks_are_fused_as_the_paper_says() -> None:
    for _ in range(20):
        lists = some_lists(3)
        sums: dict[str, float] = {}
        for ranked in lists:
            for rank, passage_id in enumerate(ranked.passage_ids, start=1):
                sums[passage_id] = sums.get(passage_id, 0.0) + 1.0 / (60 + rank)
        passage_ids, scores = Evidence.of(lists, "ranks", 60).best(equal_weights(3), 100)
        assert sorted(passage_ids) == sorted(sums)
        # The same up to a constant, in the same order.
        np.testing.assert_allclose(scores, [sums[fused_id] * 61 / 3 for fused_id in passage_ids], rtol=1e-6)
        assert scores.tolist() == sorted(scores.tolist(), reverse=True)


@pytest.mark.invariant
@pytest.mark.parametrize("by", ["ranks", "scores"])
def test_what_changes_nothing(by: By) -> None:
    first, second, third = some_lists(3)
    before = ranking([first, second, third], [0.5, 0.3, 0.2], by)
    assert ranking([third, first, second], [0.2, 0.5, 0.3], by) == before
    # Neither another scale of a system's scores, nor a system that counts for nothing, nor one that found nothing.
    scaled = Ranked(first.passage_ids, 7.0 * first.scores - 40.0)
    assert ranking([scaled, second, third], [0.5, 0.3, 0.2], by) == before
    alone = ranking([first, None], [1.0, 3.0], by)
    assert alone == list(first.passage_ids)
    assert ranking([first, second], [1.0, 0.0], by)[: len(alone) - 1] == alone[:-1]


def test_equal_sums_are_ordered_as_trec_eval_does() -> None:
    lists = [Ranked(["a", "b"], np.array([2.0, 1.0])), Ranked(["b", "a"], np.array([9.0, 8.0]))]
    assert ranking(lists, [0.5, 0.5]) == ["b", "a"]
    assert ranking([Ranked(["a", "c"], np.array([1.0, 1.0]))], [1.0], "scores") == ["c", "a"]


def test_the_mixture_that_is_best_on_dev_is_chosen_and_of_equal_ones_the_most_even() -> None:
    qrels = {f"q{at}": {f"p{at:02d}": 1} for at in range(20)}

    def lists_of(at: int, rank_of_right: list[int]) -> list[Ranked]:
        others = [f"x{number}" for number in range(9)]
        return [
            Ranked([*others[:rank], f"p{at:02d}", *others[rank:]], np.arange(10.0, 0.0, -1.0)) for rank in rank_of_right
        ]

    def chosen(rank_of_right: list[int]) -> list[float]:
        evidence = {f"q{at}": Evidence.of(lists_of(at, rank_of_right), "ranks", 60) for at in range(20)}
        best, means = choose_weights(evidence, qrels, "RR@10", mixtures(2))
        assert max(means) == means[mixtures(2).tolist().index(best.tolist())]
        return best.tolist()

    assert chosen([0, 0]) == [0.5, 0.5]
    only_the_second_knows = chosen([9, 0])
    assert only_the_second_knows[1] > only_the_second_knows[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"systems": ["bm25"]}, "at least 2"),
        ({"systems": ["bm25", "bm25"]}, "bm25 is listed more than once"),
        ({"systems": ["bm25", "fused+ranker"]}, "cannot be an input"),
        ({"weights": [0.5, 0.3, 0.2]}, r"a number for each of \['bm25', 'trained'\]"),
        ({"weights": [0, 0]}, "at least one above 0"),
        ({"systems": list("abcde"), "weights": "dev"}, "at most 4 systems, got 5"),
        ({"measure": "bleu"}, "bleu"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises((ConfigError, ValueError), match=message):
        FuseConfig.model_validate(settings)
