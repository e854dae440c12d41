"""The noise benchmark's figures: as rows for the terminal, as records for programs, and as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from raydr.evaluation.noise_measures import FLAGS, RANKING, MethodFigures
from raydr.evaluation.significance import Interval
from raydr.noise.labelled import LabelledSet

#: Columns of the records.
RECORD = ("set", "subject", "method", "source", "measure", "value", "low", "high")
#: A method of the records by source that stands for the labels.
LABELS = "labels"
_WHAT = {"pairs": "wrong pairs", "candidates": "false negatives"}
_LEGEND = (
    "AP, P@R.5 (precision where half of the wrong labels are found) and AUROC rank all pairs by suspicion. Flags have "
    "a share, a precision and a recall. Calibration is the mean probability of the flagged less their precision. "
    "Brackets are 95 % bootstrap intervals over queries. Seconds exclude the encoding that rules on vectors share."
)


@dataclass(frozen=True)
class SetFigures:
    """The figures of all methods on a labelled set.

    Args:
        labelled: the set.
        methods: in the order in which they were asked.
        shares: of wrong labels, by source; empty without sources.
        encoding_seconds: of its texts, once for all methods that read vectors.
        seconds: in all.
    """

    labelled: LabelledSet
    methods: list[MethodFigures]
    shares: dict[str, Interval]
    encoding_seconds: float
    seconds: float

    @property
    def title(self) -> str:
        """The set, its pairs, and how many of them are wrong."""
        labelled = self.labelled
        wrong = f"{labelled.wrong_N.mean():.1%} {_WHAT[labelled.subject]}"
        queries = len(set(labelled.queries))
        return f"{labelled.name}: {len(labelled.queries):,} {labelled.subject} of {queries:,} queries, {wrong}"

    @property
    def ranked(self) -> list[MethodFigures]:
        """The methods, the highest average precision first."""
        return sorted(self.methods, key=lambda figures: -figures.measures[RANKING[0]].mean)


def terminal_rows(figures: SetFigures) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of a table for 80 columns: rounded, with half the width of the first interval alone."""
    columns = ["method", *RANKING, "flags", "prec.", "rec.", "cal."]
    rows = []
    for method in figures.ranked:
        first, *others = (method.measures.get(name) for name in (*RANKING, *FLAGS))
        assert first is not None
        average = f"{_digits(first.mean, 2)}±{_digits((first.high - first.low) / 2, 2)}"
        cells = ["" if interval is None else _digits(interval.mean, 2) for interval in others]
        rows.append([method.method, average, *cells])
    return columns, rows


def source_rows(figures: SetFigures) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows by source: the share of wrong labels, and what each method flags."""
    flagging = [method for method in figures.methods if method.flags_by_source]
    columns = ["source", "wrong", *(f"{method.method} flags" for method in flagging)]
    rows = [
        [source, _interval(share), *(_interval(method.flags_by_source.get(source)) for method in flagging)]
        for source, share in figures.shares.items()
    ]
    return columns, rows


def records(figures: SetFigures) -> Iterator[dict[str, Any]]:
    """Yield a record for each figure, with the columns :data:`RECORD`."""
    labelled = figures.labelled
    of_set = {"set": labelled.name, "subject": labelled.subject}

    def record(method: str, source: str, measure: str, interval: Interval) -> dict[str, Any]:
        values = (interval.mean, interval.low, interval.high)
        return dict(zip(RECORD, (*of_set.values(), method, source, measure, *values), strict=True))

    for source, share in figures.shares.items():
        yield record(LABELS, source, "wrong", share)
    for method in figures.methods:
        for measure, interval in method.measures.items():
            yield record(method.method, "", measure, interval)
        for source, interval in method.flags_by_source.items():
            yield record(method.method, source, "flagged", interval)
        if method.seconds is not None:
            yield record(method.method, "", "seconds", Interval(*[method.seconds] * 3))


def markdown(results: Sequence[SetFigures], command: str) -> str:
    """Write the page of some sets.

    Args:
        results: of each set.
        command: that made them.
    """
    lines = ["```bash", command, "```", "", _LEGEND]
    for figures in results:
        lines += ["", f"### {figures.labelled.name}", "", f"{figures.title}. {_left_out(figures)}"]
        lines += [f"Encoding took {figures.encoding_seconds:.0f} s, all {figures.seconds:.0f} s.", ""]
        rows = [
            [
                f"`{method.method}`",
                *(_interval(method.measures.get(name)) for name in (*RANKING, *FLAGS)),
                _seconds(method.seconds),
            ]
            for method in figures.ranked
        ]
        lines += _table(["method", *RANKING, *FLAGS, "seconds"], rows)
        if figures.shares:
            lines += ["", "By source:", "", *_table(*source_rows(figures))]
    return "\n".join(lines) + "\n"


def _left_out(figures: SetFigures) -> str:
    counts = [f"{count:,} {reason}" for reason, count in figures.labelled.left_out.items() if count]
    return f"Rows left out: {', '.join(counts)}." if counts else "No row is left out."


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows)]


def _interval(interval: Interval | None) -> str:
    """
    >>> _interval(Interval(0.5, 0.456, 0.543)), _interval(None)
    ('.500 [.456, .543]', '')
    """
    return "" if interval is None else "{} [{}, {}]".format(*map(_digits, interval))


def _digits(value: float, num: int = 3) -> str:
    """
    >>> _digits(0.25), _digits(-0.25, 2), _digits(1.0)
    ('.250', '-.25', '1.000')
    """
    return f"{value:.{num}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{num}f}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}" if seconds < 10 else f"{seconds:.0f}"
