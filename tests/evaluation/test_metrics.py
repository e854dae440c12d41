"""Measures equal trec_eval's and a loop written from their definitions."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
import pytrec_eval
from pydantic import ValidationError

from raydr.artefacts.run import by_query, rank_rows
from raydr.errors import ConfigError, DataError
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.metrics import check_measure, label, parse_measures, score_queries

NAMES = ["R@1", "R@5", "R@20", "RR@10", "RR", "nDCG@10", "AP", "Success@5"]


def random_case(seed: int) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
    """Graded judgments and a run whose few different scores make many ties."""
    rng = np.random.default_rng(seed)
    passages = [f"d{at}" for at in range(60)] + ["é1", "Z9", "~"]
    qrels, run = {}, {}
    for at in range(25):
        judged = rng.choice(passages, size=int(rng.integers(1, 9)), replace=False)
        qrels[f"q{at}"] = {str(passage): int(rng.integers(0, 4)) for passage in judged}
        ranked = rng.choice(passages, size=int(rng.integers(1, 50)), replace=False)
        run[f"q{at}"] = {str(passage): float(rng.integers(0, 6)) / 2 for passage in ranked}
    return qrels, run


def as_ranking(run: dict[str, dict[str, float]]) -> dict[str, list[str]]:
    rows = [(query_id, passage_id, score) for query_id, scores in run.items() for passage_id, score in scores.items()]
    table = rank_rows(*(pa.array(column) for column in zip(*rows, strict=True)))
    return {query_id: part["passage_id"].to_pylist() for query_id, part in by_query(table).items()}


def reference(name: str, judged: dict[str, int], ranked: list[str]) -> float:
    gains = [judged.get(passage_id, 0) for passage_id in ranked]
    num_relevant = sum(grade > 0 for grade in judged.values())
    kind, _, cutoff = name.partition("@")
    top = gains[: int(cutoff)] if cutoff else gains
    if num_relevant == 0:
        return 0.0
    if kind == "R":
        return sum(gain > 0 for gain in top) / num_relevant
    if kind == "Success":
        return float(any(gain > 0 for gain in top))
    if kind == "RR":
        return next((1 / rank for rank, gain in enumerate(top, 1) if gain > 0), 0.0)
    if kind == "AP":
        hits = [rank for rank, gain in enumerate(top, 1) if gain > 0]
        return sum((at + 1) / rank for at, rank in enumerate(hits)) / num_relevant
    best = sorted(judged.values(), reverse=True)[: int(cutoff)]
    return sum(g / math.log2(r + 1) for r, g in enumerate(top, 1)) / sum(
        g / math.log2(r + 1) for r, g in enumerate(best, 1)
    )


@pytest.mark.invariant
@pytest.mark.parametrize("seed", range(5))
def test_equal_to_trec_eval_on_runs_with_ties(seed: int) -> None:
    qrels, run = random_case(seed)
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {"recall", "map", "recip_rank", "ndcg_cut", "success"}).evaluate(run)
    ours = score_queries(parse_measures(NAMES), qrels, as_ranking(run))
    pairs = {
        "recall@20": "recall_20",
        "recall@5": "recall_5",
        "AP": "map",
        "RR": "recip_rank",
        "nDCG@10": "ndcg_cut_10",
        "success@5": "success_5",
    }
    for mine, other in pairs.items():
        assert ours[mine] == pytest.approx({query_id: values[other] for query_id, values in theirs.items()}), mine


@pytest.mark.invariant
@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_definitions(seed: int) -> None:
    qrels, run = random_case(seed)
    ranking = as_ranking(run)
    ours = score_queries(parse_measures(NAMES), qrels, ranking)
    for name in NAMES:
        expected = {query_id: reference(name, qrels[query_id], ranking[query_id]) for query_id in qrels}
        assert ours[label(name)] == pytest.approx(expected), name


@pytest.mark.invariant
def test_parts_of_a_run_give_the_same_values_as_the_whole() -> None:
    qrels, run = random_case(7)
    measures, ranking = parse_measures(NAMES), as_ranking(run)
    whole = score_queries(measures, qrels, ranking)
    for query_id in qrels:
        part = score_queries(measures, {query_id: qrels[query_id]}, {query_id: ranking[query_id]})
        assert {name: values[query_id] for name, values in part.items()} == pytest.approx(
            {name: values[query_id] for name, values in whole.items()}
        )


def test_the_given_order_counts_and_not_the_ids() -> None:
    values = score_queries(parse_measures(["RR@10"]), {"q": {"a": 1}}, {"q": ["z", "a", "b"]})
    assert values == {"RR@10": {"q": 0.5}}


def test_judged_query_without_results_scores_zero_and_unjudged_is_left_out() -> None:
    values = score_queries(parse_measures(["R@5"]), {"q": {"a": 1}, "r": {"a": 1}}, {"q": ["a"], "r": [], "x": ["a"]})
    assert values == {"recall@5": {"q": 1.0, "r": 0.0}}


def test_passage_ranked_twice_is_an_error() -> None:
    with pytest.raises(DataError, match="'q': passage 'a' is ranked twice"):
        score_queries(parse_measures(["AP"]), {"q": {"a": 1}}, {"q": ["a", "b", "a"]})


@pytest.mark.parametrize("name", ["R", "Recal@5", "R@five", "R@", "nDCG@10 +", "RBP(p=0.8)", "ERR@5"])
def test_unknown_measure_names_itself(name: str) -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.measures"):
        parse_measures([name])


def test_an_evaluation_has_a_measure() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        EvaluateConfig(measures=[])


def test_labels_say_what_a_recall_is_of() -> None:
    assert list(parse_measures(["R@20", "R(rel=2)@20", "nDCG@10"])) == [
        "recall@20",
        "recall(rel=2)@20",
        "nDCG@10",
    ]


def test_what_is_taken_for_a_measure_without_asking_is_one() -> None:
    names = ["R@1", "R@100", "P@5", "RR", "RR@10", "nDCG", "nDCG@20", "Success@5", "AP"]
    parse_measures(names)
    for name in (*names, "R(rel=2)@20"):
        assert check_measure(name) == name
    for wrong in ("R@0", "R@", "ndgc@10", "nDCG@-1", ""):
        with pytest.raises(ValueError, match="is not a measure"):
            check_measure(wrong)
