"""Results of rankers: their trainings, and reranked runs compared with the runs that they order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raydr.pages.evaluation import EvaluationResult, comparison_rows
from raydr.pages.figure import curves
from raydr.pages.html import ABSENT, Page, number

_COLUMNS = ["ranker", "epoch", "mean loss", "dev", "loss", "mined by", "list", "queries"]
_LEGEND = "Epoch: the chosen one. Mean loss: over its steps. Dev: the run as it is, and in the ranker's order."


@dataclass(frozen=True)
class RankerRecord:
    """One trained ranker, or a checkpoint that was taken as it is.

    Args:
        name: of it.
        info: of its manifest.
    """

    name: str
    info: Mapping[str, Any]

    @property
    def chosen(self) -> int | None:
        """The epoch that became the model, from 0; None if it was not trained."""
        history, best = self.info["history"], self.info.get("best_epoch")
        return best if best is not None or not history else history[-1]["epoch"]

    def points(self, metric: str) -> list[tuple[float, float]]:
        """Return a metric by epoch, from 1; epoch 0 has the dev measure of the run that is ordered."""
        before = [(0.0, value) for name, value in self.info.get("dev", {}).items() if name == metric]
        rows = [(row["epoch"] + 1.0, row["metrics"]) for row in self.info["history"]]
        return before + [(epoch, metrics[metric]) for epoch, metrics in rows if metric in metrics]


def ranker_section(page: Page, rankers: Sequence[RankerRecord], evaluations: Sequence[EvaluationResult] = ()) -> None:
    """Add a section on rankers to a page, if there is a ranker or a reranked run.

    Args:
        page: the page.
        rankers: each has a row in the table of trainings, remarks and curves.
        evaluations: their comparisons of a reranked run with the run that it orders are shown.
    """
    reranked = [pairs for evaluation in evaluations if (pairs := _reranked(evaluation)).comparisons]
    if not (rankers or reranked):
        return
    page.heading("Rankers")
    if rankers:
        _trainings(page, rankers)
    for pairs in reranked:
        caption = f"reranked, {pairs.split}: difference to the run that is ordered; p (Holm) is that of all pairs above"
        page.table(caption, *comparison_rows(pairs))


def _reranked(result: EvaluationResult) -> EvaluationResult:
    """Keep the comparisons of reranked runs with the runs that they order."""
    pairs = [
        comparison for comparison in result.comparisons if comparison.system.rpartition("+")[0] == comparison.baseline
    ]
    return replace(result, comparisons=pairs)


def _trainings(page: Page, rankers: Sequence[RankerRecord]) -> None:
    page.table("trainings of rankers", _COLUMNS, map(_row, rankers)).note(_LEGEND)
    for ranker in rankers:
        for remark in ranker.info.get("remarks", []):
            page.paragraph(f"{ranker.name}: {remark}.")
    trained = [ranker for ranker in rankers if ranker.chosen is not None]
    if any(len(ranker.info["history"]) > 1 for ranker in trained):
        losses = {ranker.name: ranker.points("loss") for ranker in trained}
        page.picture(curves(losses, "Loss of the rankers", "epoch", "mean loss of the epoch's steps"), "loss by epoch")
    for measure in dict.fromkeys(name for ranker in trained for name in ranker.info["dev"]):
        points = {ranker.name: ranker.points(measure) for ranker in trained if measure in ranker.info["dev"]}
        title = f"{measure}, reranked"
        picture = curves(points, title, "epoch", measure, mark_best=True, top=1.0)
        page.picture(picture, f"{title} by the ranker of each epoch; epoch 0 is the run that it orders, as it is")


def _row(ranker: RankerRecord) -> list[str]:
    info, chosen = ranker.info, ranker.chosen
    if chosen is None:
        return [ranker.name, "a checkpoint as it is", *[ABSENT] * (len(_COLUMNS) - 2)]
    metrics = info["history"][chosen]["metrics"]
    drawn = ((info["num_hard_negatives"], "mined"), (info["num_random_negatives"], "random"))
    lists = " + ".join(["positive", *(f"{count} {what}" for count, what in drawn if count)])
    dev = [f"{name.removeprefix('dev ')} {old:.3f} → {metrics[name]:.3f}" for name, old in info["dev"].items()]
    # Non-breaking spaces keep the epochs in a line.
    row = [ranker.name, f"{chosen + 1}\xa0of\xa0{len(info['history'])}", f"{metrics['loss']:.4f}"]
    row += [", ".join(dev) or ABSENT, info["loss"], info.get("mined_by") or ABSENT, lists]
    return [*row, number(info["num_examples"])]
