"""The page of a refresh: measures by round and arm, statistics of the candidates, and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from raydr.console import percent
from raydr.evaluation.comparison import MeasureSummary
from raydr.pages.evaluation import mean_with_interval, narrow, telling_measure
from raydr.pages.figure import grid, look_of_line, looks_of
from raydr.pages.html import ABSENT, Page, number
from raydr.pages.run import ModelRecord, ranker_section

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class RoundResult:
    """A finished round of an arm.

    Args:
        arm: name of the arm.
        number: number of the round, from 1.
        measures: by split.
        negatives: counts of the candidates from which the training drew; empty without hard negatives.
        verdicts: counts by judge.
        seconds: by stage; for an interrupted stage only those of the attempt that finished it.
        folders: folders of the round's artefacts, by their role.
        fingerprints: fingerprints of the round's artefacts, by their role.
        ranker: record of the ranker's training; None without a ranker.
    """

    arm: str
    number: int
    measures: dict[str, list[MeasureSummary]]
    negatives: dict[str, Any]
    verdicts: dict[str, dict[str, Any]]
    seconds: dict[str, float]
    folders: dict[str, str]
    fingerprints: dict[str, str]
    ranker: ModelRecord | None = None

    def measure(self, split: str, label: str) -> MeasureSummary | None:
        return next((summary for summary in self.measures.get(split, []) if summary.measure == label), None)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def refresh_rows(
    rounds: Sequence[RoundResult], split: str, intervals: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: the measures of each round on a split.

    Args:
        rounds: rounds of all arms.
        split: the evaluated split.
        intervals: whether the means have intervals, which are too wide for a terminal.
    """
    measures = _measures(rounds, split)
    rows = []
    for round_ in rounds:
        row = [round_.arm, str(round_.number)]
        for measure in measures:
            summary = round_.measure(split, measure)
            row.append(ABSENT if summary is None else mean_with_interval(summary, intervals))
        rows.append(row)
    return ["arm", "round", *measures], rows


def candidate_rows(rounds: Sequence[RoundResult]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: shares of likely false negatives among the candidates of each round.

    There are no rows if no share is known.
    """
    shares = [name for name in _SHARES if any(name in round_.negatives for round_ in rounds)]
    judges = list(dict.fromkeys(judge for round_ in rounds for judge in round_.verdicts))
    rows = [
        [round_.arm, str(round_.number)]
        + [number(round_.negatives.get(name), ".1%") for name in shares]
        + [number(round_.verdicts.get(judge, {}).get("flagged_share"), ".1%") for judge in judges]
        for round_ in rounds
    ]
    columns = ["arm", "round", *(_SHARES[name] for name in shares), *(f"flagged by {judge}" for judge in judges)]
    return columns, rows if shares or judges else []


def _measures(rounds: Sequence[RoundResult], split: str) -> list[str]:
    return list(dict.fromkeys(summary.measure for round_ in rounds for summary in round_.measures.get(split, [])))


#: Counts of the candidates that the page shows, with their captions.
_SHARES = {
    "answer_share": "with an answer",
    "answer_share_used": "with an answer, after judging",
    "planted_share": "planted",
    "planted_share_used": "planted, after judging",
}


def time_rows(rounds: Sequence[RoundResult]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: seconds of each stage, by round."""
    stages = list(dict.fromkeys(stage for round_ in rounds for stage in round_.seconds))
    rows = []
    for round_ in rounds:
        seconds = [*map(round_.seconds.get, stages), sum(round_.seconds.values())]
        rows.append([round_.arm, str(round_.number), *(number(value, ",.0f") for value in seconds)])
    return ["arm", "round", *stages, "all"], rows


def refresh_page(
    name: str,
    rounds: Sequence[RoundResult],
    splits: Sequence[str],
    best: dict[str, int],
    comparisons: dict[str, str],
    confidence: float,
) -> str:
    """Return the self-contained HTML page.

    Args:
        name: name of the run.
        rounds: rounds of all arms.
        splits: the evaluated splits, dev first.
        best: number of each arm's best round on dev.
        comparisons: pages of the paired comparisons, by split.
        confidence: confidence of the intervals.
    """
    hint = "The paired comparison of all rounds, linked below, says which differences are sure." if comparisons else ""
    page = Page(f"{name}: refresh rounds", *_headlines(rounds, splits, best), hint)
    for split in splits:
        page.heading(f"Measures on {split}")
        columns, rows = refresh_rows(rounds, split)
        labelled = [[f"{arm}, round {at}", *values] for arm, at, *values in rows]
        page.table(
            f"mean [{percent(confidence)} bootstrap interval over queries]", *narrow((["", *columns[2:]], labelled))
        )
        page.picture(_curves(rounds, split), f"measures on {split} after each round, with their intervals")
        if split in comparisons:
            page.link("paired comparison of all rounds", comparisons[split])
    columns, rows = candidate_rows(rounds)
    if rows:
        page.heading("Candidates").table("shares of likely false negatives among the candidates", columns, rows)
    ranker_section(page, [round_.ranker for round_ in rounds if round_.ranker is not None])
    caption = "seconds of the attempt that finished a stage; stages that ran side by side count in full"
    page.heading("Time").table(caption, *time_rows(rounds))
    places = [
        [f"{round_.arm}, round {round_.number}", step, folder, round_.fingerprints[step]]
        for round_ in rounds
        for step, folder in round_.folders.items()
    ]
    page.heading("Artefacts").table("folder of each artefact", ["", "artefact", "folder", "fingerprint"], places)
    return page.render()


def _headlines(rounds: Sequence[RoundResult], splits: Sequence[str], best: dict[str, int]) -> list[str]:
    """Return a sentence for each arm: its best round on dev, and a measure of that round and of the first.

    The measure is on the first test split, which follows dev; on dev without test splits.
    """
    lines = []
    shown_splits = splits[1:2] or splits[:1]
    for arm, chosen in best.items():
        line = f"{arm}: round {chosen} is best on dev"
        of_arm = {round_.number: round_ for round_ in rounds if round_.arm == arm}
        for split in shown_splits:
            measure = telling_measure(_measures(rounds, split))
            shown = {at: of_arm[at].measure(split, measure) for at in (min(of_arm), chosen) if at in of_arm}
            values = [f"{mean_with_interval(mean)} in round {at}" for at, mean in shown.items() if mean is not None]
            line += f"; {measure} on {split} is {', '.join(values)}"
        lines.append(f"{line}.")
    return lines or ["No round is finished."]


def _curves(rounds: Sequence[RoundResult], split: str) -> bytes:
    arms = looks_of(round_.arm for round_ in rounds)

    def draw(measure: str, axes: Axes) -> None:
        for arm, at in arms.items():
            points = [
                (round_.number, summary.mean, summary.low, summary.high)
                for round_ in rounds
                if round_.arm == arm and (summary := round_.measure(split, measure)) is not None
            ]
            if points:
                numbers, means, lows, highs = zip(*points, strict=True)
                look = look_of_line(at)
                axes.plot(numbers, means, marker="o", label=arm, clip_on=False, **look)
                axes.fill_between(numbers, lows, highs, color=look["color"], alpha=0.15, linewidth=0)
        axes.set_xticks(sorted({round_.number for round_ in rounds}))
        axes.set(xlabel="round", ylim=(0, 1))

    panels = [(measure, partial(draw, measure)) for measure in _measures(rounds, split)]
    return grid(panels, f"{split}, by round")
