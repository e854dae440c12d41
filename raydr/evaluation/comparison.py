"""Comparison of systems on the same queries: means with intervals, and paired tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from raydr.errors import DataError
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.linking import GroupMean
from raydr.evaluation.significance import Interval, bootstrap_intervals, holm, randomization_tests

#: system → measure label → query id → value.
PerQuery = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class MeasureSummary:
    """A measure of a system."""

    system: str
    measure: str
    mean: float
    low: float
    high: float
    num_queries: int


@dataclass(frozen=True)
class Subset:
    """Means over a subset of the queries, with its meaning and size."""

    name: str
    meaning: str
    num_queries: int
    summaries: list[MeasureSummary]


@dataclass(frozen=True)
class Comparison:
    """Comparison of two systems on a measure; ``difference`` is system minus baseline.

    ``p`` is that of the paired randomisation test; ``p_holm`` is corrected for all pairs compared on this measure.
    """

    measure: str
    baseline: str
    system: str
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    wins: int
    losses: int
    ties: int


def summarize(per_query: PerQuery, settings: EvaluateConfig, seed: int) -> list[MeasureSummary]:
    """Compute mean and bootstrap interval of each measure of each system; ``seed`` seeds the resampling."""
    summaries: list[MeasureSummary] = []
    for query_ids, measures in _groups(per_query):
        for system in per_query:
            values_QM = np.column_stack([_column(per_query, system, measure, query_ids) for measure in measures])
            for measure, interval in zip(measures, _intervals(values_QM, settings, seed), strict=True):
                summaries.append(MeasureSummary(system, measure, *interval, len(query_ids)))
    return summaries


def compare(per_query: PerQuery, settings: EvaluateConfig, seed: int, every_pair: bool = False) -> list[Comparison]:
    """Compare systems in pairs; empty for a single system.

    Args:
        per_query: values of each system.
        settings: settings of intervals and tests.
        seed: seed of the resampling.
        every_pair: compare each two systems; if False, each with the first.
    """
    pairs = list(combinations(per_query, 2))[: None if every_pair else len(per_query) - 1]
    comparisons: list[Comparison] = []
    for query_ids, measures in _groups(per_query) if pairs else ():
        differences_QC = np.column_stack(
            [
                _column(per_query, system, measure, query_ids) - _column(per_query, baseline, measure, query_ids)
                for measure in measures
                for baseline, system in pairs
            ]
        )
        intervals = _intervals(differences_QC, settings, seed)
        p_values = randomization_tests(differences_QC, settings.permutations, seed)
        for at, measure in enumerate(measures):
            mine = slice(at * len(pairs), (at + 1) * len(pairs))
            of_pairs = zip(pairs, differences_QC.T[mine], intervals[mine], p_values[mine], strict=True)
            for (pair, difference_Q, interval, p), p_holm in zip(of_pairs, holm(p_values[mine]), strict=True):
                signs = [int((np.sign(difference_Q) == sign).sum()) for sign in (1, -1, 0)]
                comparisons.append(Comparison(measure, *pair, *interval, p, p_holm, *signs))
    return comparisons


def as_rows(rows: list[MeasureSummary] | list[Comparison] | list[GroupMean] | list[Subset]) -> list[dict[str, Any]]:
    """Return plain dicts, for JSON."""
    return [asdict(row) for row in rows]


def _groups(per_query: PerQuery) -> list[tuple[list[str], list[str]]]:
    """Group the measures by the queries that define them, with those queries in sorted order."""
    first = next(iter(per_query.values()))
    groups: dict[tuple[str, ...], list[str]] = {}
    for measure, values in first.items():
        query_ids = tuple(sorted(values))
        if not query_ids:
            continue
        for system, others in per_query.items():
            if others[measure].keys() != values.keys():
                raise DataError(f"{measure}: system {system!r} was scored on other queries than the first system")
        groups.setdefault(query_ids, []).append(measure)
    return [(list(query_ids), measures) for query_ids, measures in groups.items()]


def _column(per_query: PerQuery, system: str, measure: str, query_ids: list[str]) -> NDArray[np.float64]:
    values = per_query[system][measure]
    return np.array([values[query_id] for query_id in query_ids])


def _intervals(values_QM: NDArray[np.float64], settings: EvaluateConfig, seed: int) -> list[Interval]:
    return bootstrap_intervals(values_QM, settings.confidence, settings.bootstrap_samples, seed)
