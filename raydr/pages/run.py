"""All that a run has made, on one page: trainings, detections of mismatched pairs, evaluations, audits, verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raydr.noise.audit_result import AuditResult
from raydr.pages.audit import (
    KNOWN_LEGEND,
    NEGATIVES_LEGEND,
    PAIRS_CAPTION,
    PAIRS_LEGEND,
    negative_rows,
    pair_rows,
)
from raydr.pages.evaluation import (
    MEANINGS,
    EvaluationResult,
    bar_plot,
    comparison_rows,
    count_rows,
    measure_rows,
)
from raydr.pages.html import ABSENT, Page
from raydr.pages.plots import curves

#: Quantities of a detection that are drawn by epoch, with their names in the picture.
DETECTION_CURVES = {
    "precision": "precision",
    "recall": "recall",
    "auroc": "AUROC",
    "share_flagged": "share flagged",
}


@dataclass(frozen=True)
class ModelStory:
    """One model of a working folder.

    Args:
        name: of the model.
        settings: what it was trained with, short.
        info: of its manifest; a model that was not trained has no ``history``.
        panel: picture of its detections of mismatched pairs; None if it has none.
    """

    name: str
    settings: str
    info: dict[str, Any]
    panel: bytes | None

    @property
    def history(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.info.get("history", [])
        return rows

    @property
    def detections(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.info.get("detections", [])
        return rows

    def points(self, metric: str) -> list[tuple[float, float]]:
        """A metric by epoch, from 1; epochs that do not have it are left out."""
        return [(row["epoch"] + 1, row["metrics"][metric]) for row in self.history if metric in row["metrics"]]

    @property
    def dev_measures(self) -> list[str]:
        return sorted({name for row in self.history for name in row["metrics"] if name.startswith("dev ")})


@dataclass(frozen=True)
class AuditStory:
    """One audit of a working folder.

    Args:
        result: its figures.
        pictures: PNGs with captions.
        address: of its own page, relative to the run's.
    """

    result: AuditResult
    pictures: tuple[tuple[bytes, str], ...]
    address: str


@dataclass(frozen=True)
class PlanStory:
    """The plan of a run beside what its stages took so far.

    Args:
        title: of the table.
        columns, rows: its cells.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class RunStory:
    """What is in a working folder.

    Args:
        name: of the run.
        models: in the order of their names.
        evaluations: result, and the address of its own page.
        audits: in the order of their names.
        verdicts: artefact name and ``info`` of its manifest.
        plan: if one was made.
        pages: other pages of the working folder: what they show, and their addresses.
    """

    name: str
    models: Sequence[ModelStory]
    evaluations: Sequence[tuple[EvaluationResult, str]]
    audits: Sequence[AuditStory]
    verdicts: Sequence[tuple[str, dict[str, Any]]]
    plan: PlanStory | None = None
    pages: Sequence[tuple[str, str]] = ()


def run_page(story: RunStory) -> str:
    """The self-contained HTML page; its links lead to the pages of the single artefacts."""
    page = Page(f"Run {story.name}")
    trained = [model for model in story.models if model.history]
    if not (story.models or story.evaluations or story.audits or story.verdicts or story.pages):
        page.paragraph("There is no finished model, evaluation, audit or verdict in the working folder yet.")
    for title, address in story.pages:
        page.link(title, address)
    for result, address in story.evaluations:
        _evaluation_section(page, result, address)
    if trained:
        _training_section(page, trained)
    for model in trained:
        if model.detections:
            _detection_section(page, model)
    for audit in story.audits:
        _audit_section(page, audit)
    if story.verdicts:
        page.heading("Verdicts")
        page.table("all judgings in the working folder", *_verdict_rows(story.verdicts))
        page.note(KNOWN_LEGEND)
    if story.plan is not None:
        page.heading("Plan and what it took")
        page.table(story.plan.title, story.plan.columns, story.plan.rows)
    return page.render()


def training_pictures(models: Sequence[ModelStory]) -> list[tuple[bytes, str]]:
    """Loss and dev measures of all trainings by epoch, with captions."""
    losses = {model.name: model.points("loss") for model in models}
    pictures = [(curves(losses, "Training loss", "epoch", "mean loss of the epoch's steps"), "training loss by epoch")]
    for measure in sorted({name for model in models for name in model.dev_measures}):
        points = {model.name: model.points(measure) for model in models if model.points(measure)}
        caption = f"{measure} by epoch, the best epoch of each training ringed"
        pictures.append((curves(points, measure, "epoch", measure, mark_best=True), caption))
    return pictures


def detection_curves(detections: Sequence[dict[str, Any]], title: str) -> bytes:
    """Precision, recall, AUROC and share flagged by the epoch that the detection was made for."""
    series = {
        label: [(found["epoch"] + 1, found[key]) for found in detections if found.get(key) is not None]
        for key, label in DETECTION_CURVES.items()
    }
    return curves({label: points for label, points in series.items() if points}, title, "epoch", "share")


def _training_section(page: Page, models: Sequence[ModelStory]) -> None:
    page.heading("Training")
    rows = []
    for model in models:
        best = model.info.get("best_epoch")
        shown = next((row for row in model.history if row["epoch"] == best), model.history[-1])
        dev = ", ".join(
            f"{name} {shown['metrics'][name]:.3f}" for name in model.dev_measures if name in shown["metrics"]
        )
        losses = model.points("loss")
        rows.append(
            [
                model.name,
                model.settings,
                f"{model.info['num_examples']:,}",
                f"{len(model.history)}",
                ABSENT if best is None else f"{best + 1}",
                dev,
                f"{losses[-1][1]:.4f}" if losses else ABSENT,
                model.info["dtype"],
            ]
        )
    columns = ["model", "trained with", "queries", "epochs", "best epoch", "dev at it", "last loss", "dtype"]
    page.table("trainings", columns, rows)
    for png, caption in training_pictures(models):
        page.picture(png, caption)


def _detection_section(page: Page, model: ModelStory) -> None:
    page.heading(f"Detection of mismatched pairs: {model.name}")
    rows = []
    for found in model.detections:
        figures = (found.get(key) for key in ("precision", "recall", "auroc"))
        cells = [ABSENT if value is None else f"{value:.3f}" for value in figures]
        rows.append([f"{found['epoch'] + 1}", f"{found['share_flagged']:.1%}", *cells, found["reason"]])
    columns = ["epoch", "share flagged", "precision", "recall", "AUROC", "why all were kept"]
    page.table("by the epoch that it was made for", columns, rows)
    if model.panel is not None:
        page.picture(model.panel, "perplexities of the training pairs, by the epoch that they were flagged for")
    if len(model.detections) > 1:
        page.picture(detection_curves(model.detections, "Detection by epoch"), "quality of the detection by epoch")


def _evaluation_section(page: Page, result: EvaluationResult, address: str) -> None:
    page.heading(f"Evaluation on {result.split}")
    page.note(MEANINGS)
    page.picture(bar_plot(result), f"means over queries with {result.confidence:.0%} bootstrap intervals")
    page.table(f"mean [{result.confidence:.0%} bootstrap interval over queries]", *measure_rows(result))
    if result.comparisons:
        caption = f"against {result.comparisons[0].baseline}: paired randomisation test (two-sided), Holm's correction"
        page.table(caption, *comparison_rows(result))
    page.table("queries", *count_rows(result))
    page.link("the page of this evaluation", address)


def _audit_section(page: Page, audit: AuditStory) -> None:
    result = audit.result
    page.heading(f"Audit of {result.split} with model {result.model}")
    if result.pairs:
        page.table(PAIRS_CAPTION, *pair_rows(result))
        page.note(PAIRS_LEGEND)
    if result.negatives:
        note = f", without queries that {result.suspected_by} suspects" if result.suspected_by else ""
        page.table(f"what the judges take for false negatives{note}", *negative_rows(result))
        page.note(NEGATIVES_LEGEND)
    for png, caption in audit.pictures:
        page.picture(png, caption)
    page.link("the page of this audit, with the worst offenders", audit.address)


def _verdict_rows(verdicts: Sequence[tuple[str, dict[str, Any]]]) -> tuple[list[str], list[list[str]]]:
    columns = ["verdicts", "judge", "of", "split", "judged", "dropped", "flagged", "precision", "recall", "AUROC"]
    rows = []
    for name, info in verdicts:
        quality = info.get("detection", {})
        figures = (quality.get(key) for key in ("precision", "recall", "auroc"))
        rows.append(
            [
                name,
                info["judge"],
                info["subject"],
                info["split"],
                f"{info['verdicts']:,}",
                f"{info['drop']:,}",
                f"{info['flagged_share']:.1%}",
                *(ABSENT if value is None else f"{value:.3f}" for value in figures),
            ]
        )
    return columns, rows
