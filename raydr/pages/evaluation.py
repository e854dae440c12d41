"""The page and tables of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from raydr.console import percent
from raydr.evaluation.comparison import Comparison, MeasureSummary, Subset
from raydr.evaluation.linking import GroupMean
from raydr.pages.figure import metric_bars
from raydr.pages.html import Page, number

_RECALL = "recall@k is the share of a query's judged positives among the first k passages."
_ANSWER = (
    "accuracy@k (answer) is 1 if one of the first k passages contains an answer string, judged or not: it is another "
    "measure than recall@k."
)
#: Prefixes of the measures by which sentences compare systems, in the order of preference.
TELLING = ("nDCG", "RR")
#: The subset of queries without a flagged label.
NOT_FLAGGED = "labels that are not flagged"
#: Columns and rows.
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True)
class EvaluationResult:
    """The figures of an evaluation.

    ``counts`` holds, by system, the numbers of queries behind the means.
    """

    split: str
    confidence: float
    summaries: list[MeasureSummary]
    comparisons: list[Comparison] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    groups: list[GroupMean] = field(default_factory=list)
    subsets: list[Subset] = field(default_factory=list)

    @property
    def systems(self) -> list[str]:
        return list(dict.fromkeys(summary.system for summary in self.summaries))


def measure_rows(result: EvaluationResult, intervals: bool = True) -> Table:
    """Return a row for each measure, a column for each system: ``mean [low, high]`` and the marks of :func:`marks`.

    Args:
        result: the figures.
        intervals: whether the means have intervals.
    """
    letters = {name: chr(ord("a") + at % 26) * (1 + at // 26) for at, name in enumerate(result.systems)}
    ahead: dict[tuple[str, str], list[str]] = {}
    for comparison in result.comparisons:
        if comparison.p_holm < 1 - result.confidence:
            worse, better = comparison.baseline, comparison.system
            if comparison.difference <= 0:
                worse, better = better, worse
            ahead.setdefault((comparison.measure, better), []).append(letters[worse])
    rows = []
    by_measure: dict[str, list[MeasureSummary]] = {}
    for summary in result.summaries:
        by_measure.setdefault(summary.measure, []).append(summary)
    for measure, summaries in by_measure.items():
        best = max(summary.mean for summary in summaries)
        row = [measure, number(summaries[0].num_queries)]
        for summary in summaries:
            star = "*" if len(summaries) > 1 and summary.mean == best else ""
            mark = star + ("" if len(letters) <= 26 else " ").join(ahead.get((measure, summary.system), ()))
            row.append(f"{mean_with_interval(summary, intervals)} {mark}".rstrip())
        rows.append(row)
    names = [f"{name} ({letters[name]})" for name in result.systems] if result.comparisons else result.systems
    return ["measure", "queries", *names], rows


def measure_table(result: EvaluationResult, intervals: bool = True) -> tuple[str, Table]:
    """Return a caption, and :func:`measure_rows`; the number of queries is in the caption if all measures share it."""
    columns, rows = measure_rows(result, intervals)
    caption = "mean" + f" [{percent(result.confidence)} bootstrap interval]" * intervals
    if len({row[1] for row in rows}) == 1:
        shared = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
        return f"{caption} over {rows[0][1]} queries", shared
    return caption, (columns, rows)


def subset_rows(subset: Subset, intervals: bool = False) -> Table:
    """Return the table of :func:`measure_table` over some of the queries."""
    return measure_table(EvaluationResult("", 0, subset.summaries), intervals)[1]


def mean_with_interval(summary: MeasureSummary, interval: bool = True) -> str:
    """Format a mean, optionally with its interval."""
    return f"{summary.mean:.3f}" + f" [{summary.low:.3f}, {summary.high:.3f}]" * interval


def telling_measure(measures: Sequence[str]) -> str:
    """Return the measure by which a sentence compares systems.

    >>> telling_measure(["recall@1", "RR@10"])
    'RR@10'
    """
    return next((name for start in TELLING for name in measures if name.startswith(start)), measures[0])


def headline(result: EvaluationResult) -> str:
    """Return a sentence on the best system and the systems that it is surely ahead of."""
    if not result.summaries:
        return "Nothing was measured."
    measure = telling_measure([summary.measure for summary in result.summaries])
    summaries = sorted(
        (summary for summary in result.summaries if summary.measure == measure), key=lambda summary: -summary.mean
    )
    best = summaries[0]
    figure = f"{measure} {mean_with_interval(best)}"
    if len(summaries) == 1:
        return f"{best.system} has {figure} on {result.split}.{_without_flagged(result, measure)}"
    sure = {
        name
        for comparison in result.comparisons
        if comparison.measure == measure and comparison.p_holm < 1 - result.confidence
        for name in (comparison.system, comparison.baseline)
        if best.system in (comparison.system, comparison.baseline)
    }
    behind = [summary.system for summary in summaries[1:] if summary.system in sure]
    unsure = [summary.system for summary in summaries[1:] if summary.system not in sure]
    parts = [f"{best.system} is best on {result.split}: {figure}"]
    parts += [f"surely ahead of {', '.join(behind)}"] if behind else []
    parts += [f"{'but ' if behind else ''}not surely ahead of {', '.join(unsure)}"] if unsure else []
    return f"{', '.join(parts)}.{_without_flagged(result, measure)}"


def _without_flagged(result: EvaluationResult, measure: str) -> str:
    """Return a sentence on flagged labels and the best system without them; empty if none are flagged."""
    for subset in result.subsets:
        if subset.name == NOT_FLAGGED:
            num_all = next(iter(result.counts.values()))["judged"]
            flagged = f" {num_all - subset.num_queries:,} of {num_all:,} queries have a label that is probably wrong"
            means = [summary for summary in subset.summaries if summary.measure == measure]
            if not means:
                return f"{flagged}."
            best = max(means, key=lambda summary: summary.mean)
            return f"{flagged}; without them {best.system} has {measure} {mean_with_interval(best)}."
    return ""


def legend(result: EvaluationResult) -> str:
    """Return the explanation above the tables of a page."""
    has_answers = any(summary.measure.endswith("(answer)") for summary in result.summaries)
    return " ".join([_RECALL, *[_ANSWER] * has_answers, *[marks(result)] * bool(result.comparisons)])


def marks(result: EvaluationResult) -> str:
    """Return the meaning of the marks behind the means of several systems."""
    return (
        "*: the highest mean. Letters: systems with a lower mean, by the paired randomisation test (two-sided, "
        f"p < {1 - result.confidence:.2g} with Holm's correction over all pairs of systems)."
    )


def comparison_rows(result: EvaluationResult) -> Table:
    """Return a row for each pair of systems and measure."""
    columns = ["measure", "system", "against", "difference", "p", "p (Holm)", "wins", "losses", "ties"]
    rows = []
    for comparison in result.comparisons:
        difference = f"{comparison.difference:+.3f} [{comparison.low:+.3f}, {comparison.high:+.3f}]"
        row = [comparison.measure, comparison.system, comparison.baseline, difference]
        row += map(p_text, (comparison.p, comparison.p_holm))
        rows.append([*row, *map(number, (comparison.wins, comparison.losses, comparison.ties))])
    return columns, rows


def count_rows(result: EvaluationResult) -> Table:
    """Return the counts of queries, a row for each system; rare kinds of queries only if there are any."""
    known = dict.fromkeys(name for counts in result.counts.values() for name in counts)
    always = ("judged", "without_results")
    names = [name for name in known if name in always or any(counts.get(name) for counts in result.counts.values())]
    rows = [[system, *(number(counts.get(name, 0)) for name in names)] for system, counts in result.counts.items()]
    return ["system", *(name.replace("_", " ") for name in names)], rows


def group_rows(result: EvaluationResult, system: str, of_partitions: bool) -> Table:
    """Return a row for each group of queries: micro, macro, categories and, optionally, partitions."""
    groups: dict[tuple[str, str], dict[str, GroupMean]] = {}
    measures: dict[str, None] = {}
    for mean in result.groups:
        if mean.system == system and (of_partitions or mean.grouping != "partition"):
            groups.setdefault((mean.grouping, mean.group), {})[mean.measure] = mean
            measures[mean.measure] = None
    order = ("all", "category", "partition")
    rows = []
    for (_, group), by_measure in sorted(groups.items(), key=lambda item: order.index(item[0][0])):
        means = [f"{by_measure[measure].mean:.3f}" if measure in by_measure else "" for measure in measures]
        rows.append([group, number(max(mean.num_queries for mean in by_measure.values())), *means])
    return ["queries of", "queries", *measures], rows


def transposed(table: Table) -> Table:
    """Return the table with a column for each row.

    >>> transposed((["of", "n", "R@1"], [["a", "3", ".5"], ["b", "4", ".7"]]))
    (['', 'a', 'b'], [['n', '3', '4'], ['R@1', '.5', '.7']])
    """
    columns, rows = table
    return ["", *(row[0] for row in rows)], [
        [column, *(row[at] for row in rows)] for at, column in enumerate(columns) if at
    ]


def narrow(table: Table) -> Table:
    """Return the table, or :func:`transposed` if it has fewer rows than columns beside the first.

    >>> narrow((["", "a", "b"], [["R@1", ".1", ".2"]]))
    (['', 'R@1'], [['a', '.1'], ['b', '.2']])
    """
    return transposed(table) if len(table[1]) < len(table[0]) - 1 else table


def tables(result: EvaluationResult) -> Iterator[tuple[str, str, Table]]:
    """Yield all tables, each with a heading and a caption."""
    caption, table = measure_table(result)
    yield "Measures", caption, narrow(table)
    for subset in result.subsets:
        if not subset.summaries:
            continue
        heading = f"{subset.name}: {subset.num_queries:,} queries".capitalize()
        yield heading, subset.meaning, narrow(subset_rows(subset, intervals=True))
    if result.comparisons:
        caption = "difference of means; paired randomisation test (two-sided); Holm: over all pairs of a measure"
        yield "Every pair of systems", caption, comparison_rows(result)
    if result.groups:
        caption = "means over the queries of a category or partition; macro: the mean of the partitions' means"
        for system in result.systems:
            yield f"{system} by category and partition", caption, group_rows(result, system, of_partitions=True)
    yield "Queries", "numbers of queries behind the means; queries without results score 0", count_rows(result)


def bar_plot(result: EvaluationResult) -> bytes:
    """Draw all measures of all systems as a PNG."""
    return metric_bars(result.summaries, f"Retrieval on {result.split}", result.confidence)


def evaluation_page(result: EvaluationResult, picture: bytes, provenance: Sequence[tuple[str, str]] = ()) -> str:
    """Return the self-contained HTML page.

    Args:
        result: the figures.
        picture: the PNG of :func:`bar_plot`.
        provenance: names and fingerprints of the evaluated artefacts.
    """
    next_step = "raydr report CONFIG shows the queries on which they differ." if len(result.systems) > 1 else ""
    page = Page(f"Evaluation on {result.split}", headline(result), next_step)
    evaluation_section(page, result, picture)
    return page.render(provenance)


def evaluation_section(page: Page, result: EvaluationResult, picture: bytes) -> None:
    """Add the legend, the picture and all tables to a page."""
    page.note(legend(result))
    page.picture(picture, f"means over queries with {percent(result.confidence)} bootstrap intervals")
    for heading, caption, table in tables(result):
        page.table(f"{heading}: {caption}", *table)


def p_text(p: float) -> str:
    """Format a p-value.

    >>> p_text(0.00004), p_text(0.0321)
    ('<0.001', '0.032')
    """
    return "<0.001" if p < 0.001 else f"{p:.3f}"
