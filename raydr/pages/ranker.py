"""What the trainings of rankers came to, and how reranked runs compare with the runs that they order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raydr.pages.evaluation import EvaluationResult, comparison_rows
from raydr.pages.html import ABSENT, Page, number
from raydr.pages.plots import curves

_CAPTION = (
    "by name; the loss is the mean over the steps of the chosen epoch, guessing's that of a model which cannot tell "
    "the passages of a list apart"
)
_COLUMNS = [
    *("ranker", "loss", "mined by", "list", "queries", "epochs", "chosen epoch", "mean loss", "guessing"),
    *("dev measure", "of the run", "reranked"),
]


@dataclass(frozen=True)
class RankerStory:
    """One trained ranker, or a checkpoint that was taken as it is.

    Args:
        name: of it.
        settings: of its training, from its manifest; of a checkpoint as it is only a few.
        info: of its manifest.
    """

    name: str
    settings: Mapping[str, Any]
    info: Mapping[str, Any]

    @property
    def chosen(self) -> int | None:
        """The epoch that became the model, from 0; None if it was not trained."""
        history, best = self.info["history"], self.info.get("best_epoch")
        return best if best is not None or not history else history[-1]["epoch"]

    def points(self, metric: str) -> list[tuple[float, float]]:
        """A metric by epoch, from 1; as epoch 0 what a dev measure is of the run that is ordered."""
        before = [(0.0, value) for name, value in self.info.get("dev", {}).items() if name == metric]
        return before + [(row["epoch"] + 1.0, row["metrics"][metric]) for row in self.info["history"]]


def ranker_section(page: Page, rankers: Sequence[RankerStory]) -> None:
    """A table of the trainings, what is to be said of them, and their curves; nothing if there are none."""
    if not rankers:
        return
    page.heading("Rankers").table(_CAPTION, _COLUMNS, map(_row, rankers))
    for one in rankers:
        for remark in one.info.get("remarks", []):
            page.paragraph(f"{one.name}: {remark}.")
    trained = [one for one in rankers if one.chosen is not None]
    if any(len(one.info["history"]) > 1 for one in trained):
        losses = {one.name: one.points("loss") for one in trained}
        losses |= {f"{one.name}, guessing": one.points("guessing") for one in trained}
        picture = curves(losses, "Loss of the rankers", "epoch", "mean loss of the epoch's steps")
        page.picture(picture, "loss by epoch, beside guessing's on the same lists")
    for measure in dict.fromkeys(name for one in trained for name in one.info["dev"]):
        points = {one.name: one.points(measure) for one in trained if measure in one.info["dev"]}
        title = f"{measure}, reranked"
        picture = curves(points, title, "epoch", measure, mark_best=True)
        page.picture(picture, f"{title} by the ranker of each epoch; epoch 0 is the run that it orders, as it is")


def reranked_section(page: Page, result: EvaluationResult) -> None:
    """How each reranked run compares with the run that it orders; nothing where an evaluation has not both."""
    pairs = [one for one in result.comparisons if one.system.rpartition("+")[0] == one.baseline]
    if pairs:
        caption = f"reranked on {result.split}: difference to the run that is ordered, tested as every pair"
        page.table(caption, *comparison_rows(replace(result, comparisons=pairs)))


def _row(ranker: RankerStory) -> list[str]:
    info, settings, chosen = ranker.info, ranker.settings, ranker.chosen
    if chosen is None:
        return [ranker.name, "a checkpoint as it is", *[ABSENT] * (len(_COLUMNS) - 2)]
    metrics = info["history"][chosen]["metrics"]
    lists = " + ".join(
        f"{number} {what}"
        for number, what in (
            (1, "positive"),
            (settings["num_hard_negatives"], "mined"),
            (settings["num_random_negatives"], "random"),
        )
        if number
    )
    row = [ranker.name, settings["loss"]["name"], info["mined_by"] or ABSENT, lists, number(info["num_examples"])]
    row += [number(len(info["history"])), number(chosen + 1), f"{metrics['loss']:.4f}", f"{metrics['guessing']:.4f}"]
    [(measure, before)] = info["dev"].items() or [(ABSENT, None)]
    return [*row, measure.removeprefix("dev "), number(before, ".3f"), number(metrics.get(measure), ".3f")]
