"""Published figures compared with measured ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from raydr.component import Config
from raydr.evaluation.comparison import MeasureSummary
from raydr.evaluation.metrics import MeasureName, parse_measures


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
    """The data that ``raydr benchmark`` measures, and its published figures."""

    systems: list[str] = Field(default=["bm25", "untrained"], min_length=1)
    """Measured systems, by their names in ``raydr evaluate --system``: also ``trained``, ``fused``, and reranked
    systems (``trained+ranker``, ``bm25+untrained``)."""

    known: list[KnownAnswer] = []
    """Published figures to compare with: each with ``system``, ``split`` (default: test), ``measure``, ``value``,
    ``tolerance`` in the measure's unit, and ``source``."""


@dataclass(frozen=True)
class Checked:
    """A published figure and the measured one; None if the system was not measured."""

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
    """Pair each published figure with the measured one of its system and measure.

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
