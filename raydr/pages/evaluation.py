"""What an evaluation says, for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from raydr.evaluation.comparison import Comparison, MeasureSummary
from raydr.pages.html import Page
from raydr.pages.plots import Bar, metric_bars

MEANINGS = (
    "recall@k (qrels) is the share of a query's judged positives among the first k passages; accuracy@k (answer) is 1 "
    "if one of the first k passages contains an answer string, judged or not. They are different measures."
)


@dataclass(frozen=True)
class EvaluationResult:
    """The figures of one evaluation.

    ``counts`` holds, by system, the numbers of queries that say how much the means rest on.
    """

    split: str
    confidence: float
    summaries: list[MeasureSummary]
    comparisons: list[Comparison] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(one.system for one in self.summaries))

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(one.measure for one in self.summaries))


def measure_rows(result: EvaluationResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one row a measure, one column a system, ``mean [low, high]`` in each cell."""
    found = {(one.measure, one.system): one for one in result.summaries}
    rows = []
    for measure in result.measures:
        cells = [found[measure, system] for system in result.systems]
        rows.append(
            [measure, f"{cells[0].num_queries:,}", *(interval_text(one.mean, one.low, one.high) for one in cells)]
        )
    return ["measure", "queries", *result.systems], rows


def comparison_rows(result: EvaluationResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the comparisons with the first system."""
    columns = ["measure", "system", "difference", "p", "p (Holm)", "wins", "losses", "ties"]
    rows = [
        [
            one.measure,
            one.system,
            f"{one.difference:+.3f} [{one.low:+.3f}, {one.high:+.3f}]",
            p_text(one.p),
            p_text(one.p_holm),
            f"{one.wins:,}",
            f"{one.losses:,}",
            f"{one.ties:,}",
        ]
        for one in result.comparisons
    ]
    return columns, rows


def count_rows(result: EvaluationResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of the counts of queries."""
    names = list(dict.fromkeys(name for counts in result.counts.values() for name in counts))
    rows = [[system, *(f"{counts.get(name, 0):,}" for name in names)] for system, counts in result.counts.items()]
    return ["system", *(name.replace("_", " ") for name in names)], rows


def bar_plot(result: EvaluationResult) -> bytes:
    """PNG of all measures of all systems."""
    bars = [Bar(one.measure, one.system, one.mean, one.low, one.high) for one in result.summaries]
    return metric_bars(bars, f"Retrieval on {result.split}", result.confidence)


def evaluation_page(result: EvaluationResult, picture: bytes, provenance: Sequence[tuple[str, str]] = ()) -> str:
    """The self-contained HTML report.

    Args:
        result: the figures.
        picture: as from :func:`bar_plot`.
        provenance: names and fingerprints of what was evaluated.
    """
    page = Page(f"Evaluation: {', '.join(result.systems)} on {result.split}")
    page.paragraph(MEANINGS)
    page.picture(picture, f"Means over queries with {result.confidence:.0%} bootstrap intervals")
    page.heading("Measures")
    page.table(f"mean [{result.confidence:.0%} bootstrap interval over queries]", *measure_rows(result))
    if result.comparisons:
        page.heading(f"Against {result.comparisons[0].baseline}")
        page.table(
            "difference of means, paired randomisation test (two-sided), Holm's correction over the systems",
            *comparison_rows(result),
        )
    page.heading("Queries")
    page.table("how many queries the means rest on; queries without results score 0", *count_rows(result))
    if provenance:
        page.heading("Made from")
        page.table("fingerprints", ["what", "fingerprint"], provenance)
    return page.render()


def interval_text(mean: float, low: float, high: float) -> str:
    """
    >>> interval_text(0.5, 0.456, 0.543)
    '0.500 [0.456, 0.543]'
    """
    return f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def p_text(p: float) -> str:
    """
    >>> p_text(0.00004), p_text(0.0321)
    ('<0.001', '0.032')
    """
    return "<0.001" if p < 0.001 else f"{p:.3f}"
