"""The page of a run: its trainings, rankers, detections of mismatched pairs, evaluations, audits and verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from raydr.noise.audit_result import AuditResult
from raydr.pages.audit import KNOWN_LEGEND
from raydr.pages.evaluation import EvaluationResult, Table, bar_plot, comparison_rows, evaluation_section, headline
from raydr.pages.figure import curves
from raydr.pages.html import ABSENT, Page, QueryBrowser, number

#: Quantities of a detection that are drawn by epoch, with their names in the picture.
DETECTION_CURVES = {"precision": "precision", "recall": "recall", "auroc": "AUROC", "share_flagged": "share flagged"}


@dataclass(frozen=True)
class ModelRecord:
    """A model of a working folder.

    Args:
        name: name of the model.
        info: info of its manifest; a retriever that was not trained has no ``history``.
        settings: loss and detection of its training, for a table.
        histogram: picture of its last detection of mismatched pairs; None without a detection.
    """

    name: str
    info: Mapping[str, Any]
    settings: str = ""
    histogram: bytes | None = None

    @property
    def history(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.info.get("history", [])
        return rows

    def points(self, metric: str) -> list[tuple[float, float]]:
        """Return a metric by epoch, from 1; epochs without it are left out.

        Epoch 0 has the dev measure of the run that a ranker orders.
        """
        before = [(0.0, value) for name, value in self.info.get("dev", {}).items() if name == metric]
        rows = [(row["epoch"] + 1.0, row["metrics"]) for row in self.history]
        return before + [(epoch, metrics[metric]) for epoch, metrics in rows if metric in metrics]

    @property
    def dev_measures(self) -> list[str]:
        return sorted({name for row in self.history for name in row["metrics"] if name.startswith("dev ")})

    @property
    def chosen(self) -> int | None:
        """The epoch, from 0, whose weights became the model; None if it was not trained."""
        best: int | None = self.info.get("best_epoch")
        return best if best is not None or not self.history else self.history[-1]["epoch"]


@dataclass(frozen=True)
class RunRecord:
    """The content of a working folder.

    Args:
        name: name of the run.
        models: ordered by name.
        evaluations: result and page address of each evaluation.
        audits: result and page address of each audit.
        verdicts: name and manifest ``info`` of each ``verdicts`` artefact.
        rankers: ordered by name.
        plan: title, columns and rows of the table of forecast and time taken; None without a forecast.
        pages: titles and addresses of other pages of the working folder.
        browsers: queries with their passages, by split.
        made: name, time, seconds, folder and command of each artefact.
        outdated: sentences on evaluations and audits of earlier data or models.
    """

    name: str
    models: Sequence[ModelRecord]
    evaluations: Sequence[tuple[EvaluationResult, str]]
    audits: Sequence[tuple[AuditResult, str]]
    verdicts: Sequence[tuple[str, dict[str, Any]]]
    rankers: Sequence[ModelRecord] = ()
    plan: tuple[str, list[str], list[list[str]]] | None = None
    pages: Sequence[tuple[str, str]] = ()
    browsers: Mapping[str, QueryBrowser] = field(default_factory=dict)
    made: Sequence[Sequence[str]] = ()
    outdated: Sequence[str] = ()


def run_page(record: RunRecord) -> str:
    """Return the self-contained HTML page; its links lead to the pages of single artefacts."""
    results = [result for result, _ in record.evaluations]
    answer = [*map(headline, results), *record.outdated, *(audit.headline for audit, _ in record.audits)]
    if not (record.models or record.rankers or answer or record.verdicts or record.pages):
        answer = ["There is no finished model, evaluation, audit or verdict in the working folder yet."]
    elif not results:
        answer.append("Nothing was evaluated yet: raydr evaluate CONFIG compares systems.")
    elif not record.audits:
        answer.append("Next: raydr audit CONFIG estimates which training pairs are wrong.")
    page = Page(f"Run {record.name}", *answer)
    audits = [(f"audit of {audit.split} with model {audit.model}: the worst pairs", at) for audit, at in record.audits]
    for title, address in [*record.pages, *audits]:
        page.link(title, address)
    for result, address in record.evaluations:
        evaluation_section(page.heading(f"Evaluation on {result.split}"), result, bar_plot(result))
        page.link("the page of this evaluation", address)
        if result.split in record.browsers:
            page.heading(f"Queries of {result.split}").queries(record.browsers[result.split])
    trained = [model for model in record.models if model.history]
    if trained:
        _training_section(page, trained, [system for result in results for system in result.systems])
    ranker_section(page, record.rankers, results)
    for model in trained:
        if detections := model.info.get("detections"):
            _detection_section(page, model, detections)
    if record.verdicts:
        page.heading("Verdicts").table("all verdicts in the working folder", *_verdict_rows(record.verdicts))
        page.note(KNOWN_LEGEND)
    if record.plan is not None:
        page.heading("Plan, and the time taken").table(*record.plan)
    if record.made:
        page.heading("Artefacts").table("by name", ["name", "made", "seconds", "folder", "command"], record.made)
    return page.render()


def detection_curves(detections: Sequence[dict[str, Any]], title: str) -> bytes:
    """Draw precision, recall, AUROC and share flagged by the epoch whose training uses the detection.

    An inconclusive detection has only an AUROC.
    """
    series = {
        label: [(row["epoch"] + 1, value) for row in detections if (value := _known(row, key)) is not None]
        for key, label in DETECTION_CURVES.items()
    }
    return curves({label: points for label, points in series.items() if points}, title, "epoch", "share", top=1.0)


def _training_section(page: Page, models: Sequence[ModelRecord], systems: Sequence[str]) -> None:
    columns = ["model", "trained with", "queries", "epochs", "best epoch"]
    columns += ["dev in the best epoch", "last loss", "dtype"]
    rows = []
    for model in models:
        best = model.info.get("best_epoch")
        metrics = next((row for row in model.history if row["epoch"] == best), model.history[-1])["metrics"]
        dev = ", ".join(f"{name} {metrics[name]:.3f}" for name in model.dev_measures if name in metrics)
        last = model.history[-1]["metrics"].get("loss")
        row = [model.name, model.settings, number(model.info["num_examples"]), number(len(model.history))]
        row += [number(None if best is None else best + 1), dev, number(last, ".4f"), model.info["dtype"]]
        rows.append(row)
    page.heading("Training").table("trainings", columns, rows)
    losses = {model.name: model.points("loss") for model in models}
    picture = curves(losses, "Training loss", "epoch", "mean loss of the epoch's steps", systems=systems)
    page.picture(picture, "training loss by epoch")
    for measure in sorted({name for model in models for name in model.dev_measures}):
        points = {model.name: model.points(measure) for model in models if model.points(measure)}
        picture = curves(points, measure, "epoch", measure, mark_best=True, top=1.0, systems=systems)
        page.picture(picture, f"{measure} by epoch; the best epoch of each training is ringed, its value in the legend")


def _detection_section(page: Page, model: ModelRecord, detections: Sequence[dict[str, Any]]) -> None:
    rows = []
    for detection in detections:
        share = _share(detection)
        rows.append([number(detection["epoch"] + 1), share, *_quality(detection), detection["reason"]])
    columns = ["epoch", "share flagged", "precision", "recall", "AUROC", "reason to keep all"]
    page.heading(f"Detection of mismatched pairs: {model.name}")
    page.table("by the epoch whose training uses the detection", columns, rows)
    if model.histogram is not None:
        page.picture(model.histogram, "the training pairs, and the threshold of flags")
    if len(detections) > 1:
        page.picture(detection_curves(detections, "Detection by epoch"), "quality of the detection by epoch")


def _verdict_rows(verdicts: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    columns = ["verdicts", "judge", "subject", "split", "judged", "dropped", "flagged", "precision", "recall", "AUROC"]
    rows = []
    for name, info in verdicts:
        row = [name, info["judge"], info["subject"], info["split"], number(info["verdicts"]), number(info["drop"])]
        outcome = info.get("detection", {}) | {
            "share_flagged": info["flagged_share"],
            "reason": info.get("detector", {}).get("reason"),
        }
        rows.append([*row, _share(outcome), *_quality(outcome)])
    return columns, rows


def _known(detection: dict[str, Any], key: str) -> float | None:
    """Return a figure of a detection; None for figures that an inconclusive detection does not have."""
    return None if detection.get("reason") and key != "auroc" else detection.get(key)


def _share(detection: dict[str, Any]) -> str:
    return "inconclusive" if detection["reason"] else number(detection["share_flagged"], ".1%")


def _quality(detection: dict[str, Any]) -> list[str]:
    return [number(_known(detection, key), ".3f") for key in ("precision", "recall", "auroc")]


_COLUMNS = ["ranker", "epoch", "mean loss", "dev", "loss", "mined by", "list", "queries"]
_LEGEND = "Epoch: the chosen epoch. Mean loss: over its steps. Dev: of the run before and after the ranker."


def ranker_section(page: Page, rankers: Sequence[ModelRecord], evaluations: Sequence[EvaluationResult] = ()) -> None:
    """Add a section on rankers to a page, if there is a ranker or a reranked run.

    Args:
        page: the page.
        rankers: shown with a row in the table of trainings, remarks and curves.
        evaluations: searched for comparisons of a reranked run with the run before reranking.
    """
    reranked = [pairs for evaluation in evaluations if (pairs := _reranked(evaluation)).comparisons]
    if not (rankers or reranked):
        return
    page.heading("Rankers")
    if rankers:
        _trainings(page, rankers)
    for pairs in reranked:
        caption = f"reranked, {pairs.split}: difference to the run before reranking; p (Holm) over all pairs above"
        page.table(caption, *comparison_rows(pairs))


def _reranked(result: EvaluationResult) -> EvaluationResult:
    """Keep the comparisons of reranked runs with the runs before reranking."""
    pairs = [
        comparison for comparison in result.comparisons if comparison.system.rpartition("+")[0] == comparison.baseline
    ]
    return replace(result, comparisons=pairs)


def _trainings(page: Page, rankers: Sequence[ModelRecord]) -> None:
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
        page.picture(picture, f"{title} by the ranker of each epoch; epoch 0 is the run before reranking")


def _row(ranker: ModelRecord) -> list[str]:
    info, chosen = ranker.info, ranker.chosen
    if chosen is None:
        return [ranker.name, "untrained checkpoint", *[ABSENT] * (len(_COLUMNS) - 2)]
    metrics = info["history"][chosen]["metrics"]
    drawn = ((info["num_hard_negatives"], "mined"), (info["num_random_negatives"], "random"))
    lists = " + ".join(["positive", *(f"{count} {kind}" for count, kind in drawn if count)])
    dev = [f"{name.removeprefix('dev ')} {old:.3f} → {metrics[name]:.3f}" for name, old in info["dev"].items()]
    # Non-breaking spaces keep the epochs in a line.
    row = [ranker.name, f"{chosen + 1}\xa0of\xa0{len(info['history'])}", f"{metrics['loss']:.4f}"]
    row += [", ".join(dev) or ABSENT, info["loss"], info.get("mined_by") or ABSENT, lists]
    return [*row, number(info["num_examples"])]
