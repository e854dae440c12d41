"""Summaries and comparisons of systems."""

from __future__ import annotations

import numpy as np
import pytest

from raydr.errors import DataError
from raydr.evaluation.comparison import compare, summarize
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.significance import holm

SETTINGS = (EvaluateConfig(confidence=0.95, bootstrap_samples=500, permutations=1000), 0)


def values(seed: int, shift: float, num: int = 60) -> dict[str, float]:
    rng = np.random.default_rng(seed)
    return {f"q{at:02d}": float(np.clip(rng.random() * 0.5 + shift, 0, 1)) for at in range(num)}


def test_difference_wins_losses_ties_and_holm() -> None:
    base = values(0, 0.1)
    better = {query_id: value + (0.2 if at % 2 else 0.0) for at, (query_id, value) in enumerate(base.items())}
    per_query = {"base": {"AP": base}, "better": {"AP": better}, "same": {"AP": dict(base)}}
    first, second = compare(per_query, *SETTINGS)
    assert (first.system, first.baseline, first.wins, first.losses, first.ties) == ("better", "base", 30, 0, 30)
    assert first.difference == pytest.approx(0.1)
    assert first.low < 0.1 < first.high
    assert first.p == pytest.approx(1 / 1001)
    assert first.p_holm == pytest.approx(2 / 1001)
    assert (second.difference, second.p, second.p_holm, second.ties) == (0.0, 1.0, 1.0, 60)


def test_every_pair_is_tested_and_corrected_for_all_of_them() -> None:
    values_of = {name: {"AP": values(at, 0.1 * at), "RR": values(at + 9, 0.1)} for at, name in enumerate("abcd")}
    comparisons = compare(values_of, *SETTINGS, every_pair=True)
    pairs = [(comparison.baseline, comparison.system) for comparison in comparisons if comparison.measure == "RR"]
    assert pairs == [("a", "b"), ("a", "c"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
    for measure in ("AP", "RR"):
        of_measure = [comparison for comparison in comparisons if comparison.measure == measure]
        assert [comparison.p_holm for comparison in of_measure] == holm([comparison.p for comparison in of_measure])
    last = next(
        comparison
        for comparison in comparisons
        if (comparison.measure, comparison.baseline, comparison.system) == ("AP", "c", "d")
    )
    mean = {name: np.mean(list(of["AP"].values())) for name, of in values_of.items()}
    assert last.difference == pytest.approx(mean["d"] - mean["c"])
    [alone] = compare({name: values_of[name] for name in "cd"}, *SETTINGS)[:1]
    assert (alone.p, alone.wins, alone.low) == (last.p, last.wins, pytest.approx(last.low))
    assert compare({"a": values_of["a"]}, *SETTINGS, every_pair=True) == []


def test_measures_over_different_queries_are_kept_apart() -> None:
    all_queries, few = values(1, 0.3), values(2, 0.3, num=10)
    per_query = {name: {"AP": all_queries, "accuracy@1 (answer)": few} for name in ("a", "b")}
    summaries = {(summary.system, summary.measure): summary for summary in summarize(per_query, *SETTINGS)}
    assert summaries["a", "AP"].num_queries == 60
    assert summaries["b", "accuracy@1 (answer)"].num_queries == 10
    assert summaries["a", "AP"].mean == pytest.approx(np.mean(list(all_queries.values())))


@pytest.mark.invariant
def test_query_order_does_not_matter() -> None:
    base = values(4, 0.2)
    turned = dict(reversed(base.items()))
    assert summarize({"a": {"AP": base}}, *SETTINGS) == summarize({"a": {"AP": turned}}, *SETTINGS)


def test_systems_scored_on_other_queries_are_refused() -> None:
    with pytest.raises(DataError, match="'b' was scored on other queries"):
        summarize({"a": {"AP": values(0, 0.1)}, "b": {"AP": values(0, 0.1, num=10)}}, *SETTINGS)


@pytest.mark.invariant
def test_systems_are_compared_query_by_query_in_whatever_order_they_come() -> None:
    base = values(4, 0.2)
    better = {query_id: value + 0.01 for query_id, value in reversed(base.items())}
    [comparison] = compare({"base": {"AP": base}, "better": {"AP": better}}, *SETTINGS)
    assert (comparison.wins, comparison.losses, comparison.ties) == (60, 0, 0)
    assert comparison.low == pytest.approx(comparison.high) == pytest.approx(0.01)
