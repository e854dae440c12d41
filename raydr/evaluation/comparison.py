"""Comparison of systems on the same queries, with paired tests, and with published figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from raydr.component import Config
from raydr.errors import DataError
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.linking import GroupMean
from raydr.evaluation.metrics import MeasureName, parse_measures
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

    ``p`` is the p-value of the paired randomisation test; ``p_holm`` is corrected for all pairs on this measure.
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


class KnownAnswer(Config):
    """A published figure."""

    system: str
    """System of the figure, by its name in ``raydr evaluate``: ``bm25``, ``untrained``, ..."""

    split: str = "test"
    """Split of the figure."""

    measure: MeasureName
    """The measure, in ir-measures' notation."""

    value: float
    """The mean over the queries."""

    tolerance: float = Field(ge=0)
    """Largest difference that counts as agreement, in the measure's unit."""

    source: str
    """Publication of the figure."""


class BenchmarkConfig(Config):
    """Systems that ``raydr benchmark`` measures, and published figures."""

    systems: list[str] = Field(default=["bm25", "untrained"], min_length=1)
    """Measured systems, by their names in ``raydr evaluate --system``: also ``trained``, ``fused``, and reranked
    systems (``trained+ranker``, ``bm25+untrained``)."""

    known: list[KnownAnswer] = []
    """Published figures to compare with: each with ``system``, ``split`` (default: test), ``measure``, ``value``,
    ``tolerance`` in the measure's unit, and ``source``."""


@dataclass(frozen=True)
class Checked:
    """Published figure with the measured figure; None if the system was not measured."""

    known: KnownAnswer
    measured: MeasureSummary | None

    @property
    def agrees(self) -> bool | None:
        """Whether the figures agree within the tolerance; None without a measured figure.

        >>> known = KnownAnswer(system="bm25", measure="AP", value=0.3, tolerance=0.01, source="")
        >>> [Checked(known, MeasureSummary("bm25", "AP", mean, 0, 1, 9)).agrees for mean in (0.31, 0.289)]
        [True, False]
        """
        return (
            None if self.measured is None else abs(self.measured.mean - self.known.value) <= self.known.tolerance + 1e-9
        )


def check_known(known: Sequence[KnownAnswer], measured: Mapping[str, Sequence[MeasureSummary]]) -> list[Checked]:
    """Pair each published figure with the measured figure of its system and measure.

    Args:
        known: published figures.
        measured: measured figures, by split.
    """
    figures = {(split, figure.system, figure.measure): figure for split, of in measured.items() for figure in of}
    checked = []
    for published in known:
        [label] = parse_measures([published.measure], "benchmark.known")
        checked.append(Checked(published, figures.get((published.split, published.system, label))))
    return checked
