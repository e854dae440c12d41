"""Diagnosis of a training: run all checks on samples of its queries, and show the findings.

Artefact ``diagnosis``::

    findings.json    measures, findings with severity, settings and advice, compared quantities, checks without input
    report.html      the same as a page
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_corpus
from raydr.artefacts.evidence import gather
from raydr.artefacts.evidence_samples import SAMPLE_SIZE, DiagnosisJob
from raydr.artefacts.scoring import scoring_of
from raydr.component import Neutral
from raydr.console import say, show_summary, show_table
from raydr.data import Corpus, Dataset
from raydr.diagnosis.diagnosis import FAULT, Diagnosis, Finding
from raydr.diagnosis.diagnosis import diagnose as examine_all
from raydr.diagnosis.evidence import BM25, UNTRAINED
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.parts import as_json, feed_parts, part_batch, write_contents
from raydr.distributed.pool import Batch, Feed, Pool
from raydr.evaluation.significance import Interval
from raydr.models.encode_config import EncodeConfig
from raydr.negatives.config import BM25Config
from raydr.pages.html import ABSENT, Page
from raydr.store import Artifact, Building
from raydr.training.training import Training

KIND = "diagnosis"
FINDINGS, REPORT = "findings.json", "report.html"


class Examine:
    """Gathers the evidence and runs the checks, in a worker that can load models."""

    def __init__(self, job: DiagnosisJob) -> None:
        self.job = job

    def __call__(self, batch: Batch) -> Batch:
        findings = as_json(examine_all(gather(self.job)).to_json())
        [(name, part)] = write_contents(self.job.output, {FINDINGS: findings}).items()
        return part_batch(name, part)


def diagnosis(context: Context, name: str, model: Node, untrained: Node, margins: Node | None) -> Node:
    """Return the node of a training's diagnosis.

    Args:
        context: config, or that of a variant.
        name: name of the model.
        model: trained model.
        untrained: model before training.
        margins: cross-fitted margins of its pairs; may be None.
    """
    config = context.config
    return diagnose.node(
        context.label("diagnose", name),
        model=model,
        untrained=untrained,
        dataset=model.inputs["dataset"],
        corpus=declare_corpus(context),
        negatives=model.inputs.get("negatives"),
        margins=margins,
        fold=None if margins is None else margins.inputs["models/0"],
        held_out=config.data.held_out_splits,
        hold_out=[split for split in config.data.held_out_splits if split in config.data.hold_out],
        training=context.training(),
        bm25=config.bm25,
        **context.scoring(),
    )


def _num_examined(of: Any) -> int:
    return 2 * int(min(of.corpus.rows("passages"), sum(SAMPLE_SIZE.values())))


@artefact(KIND, version=6, rows=_num_examined, asks_model=True, moves=True)
def diagnose(
    making: Building,
    pool: Pool,
    model: Artifact,
    untrained: Artifact,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact | None = None,
    margins: Artifact | None = None,
    fold: Artifact | None = None,
    *,
    held_out: Sequence[str],
    hold_out: Sequence[str] = (),
    training: Annotated[Training, Neutral],
    bm25: BM25Config,
    settings: Annotated[EncodeConfig, Neutral],
    arithmetic: Arithmetic,
) -> dict[str, Any]:
    """Diagnose a training.

    Args:
        making: ``diagnosis`` artefact to make.
        pool: pool for the models.
        model: trained model.
        untrained: model before training.
        dataset, corpus: training data.
        negatives: candidates used in training; None: those of the data set.
        margins: cross-fitted margins of the pairs; may be None.
        fold: model of the first fold, which was trained on the others; set with ``margins``.
        held_out: candidates for the held-out split; the first with judgments is used.
        hold_out: those that were held out of the training pairs.
        training: training settings, which the model represents in the key.
        bm25: settings of BM25.
        settings: settings of the worker.
        arithmetic: arithmetic of the scores.

    Returns:
        ``split``, and ``faults``: names of checks, the likeliest cause first.
    """
    trained, before, of_fold = (
        None if asked is None else scoring_of(pool, asked, settings, arithmetic) for asked in (model, untrained, fold)
    )
    assert trained is not None
    assert before is not None
    job = DiagnosisJob(
        Dataset(dataset), Corpus(corpus), tuple(held_out), tuple(hold_out), training, bm25, trained, before, of_fold,
        negatives, margins, making.folder,
    )  # fmt: skip
    feed = Feed(Examine, job, settings)
    feed_parts(making, pool, feed, {FINDINGS: {"name": FINDINGS, "rows": 1}}, "diagnose", "runs")
    result = Diagnosis.from_json(making.folder.read_json(FINDINGS))
    page = diagnosis_page(result, list(making.identity.inputs.items()))
    making.done.update(write_contents(making.folder, {REPORT: page}))
    return {"split": result.split, "faults": [fault.check for fault in result.faults]}


def load_result(artifact: Artifact) -> Diagnosis:
    """Read the findings of a ``diagnosis`` artefact."""
    return Diagnosis.from_json(artifact.read_json(FINDINGS))


def show(artifact: Artifact) -> None:
    """Print the findings with remedies, the likeliest cause first."""
    result = load_result(artifact)
    show_table(*reader_rows(result))
    say(outcome(result))
    notable = [*result.faults, *result.of_level("note")]
    if notable:
        show_table(
            "findings",
            ["", "check", "share", "observation"],
            ([*cells(finding)[:3], finding.observation] for finding in notable),
        )
        for finding in notable:
            say(f"{finding.check}: {finding.remedy}")
    say(f"no finding: {', '.join(finding.check for finding in result.of_level('ok')) or 'none'}")
    for check, why in result.missing.items():
        say(f"not checked: {check} ({why})")
    show_summary(KIND, {"report": artifact.folder / REPORT})


_RULE = (
    "Severity is a share: of the pairs, of the queries, or of the gain that is possible. It is the lower end of a 95 % "
    f"interval. From {FAULT:.0%} on, the finding is a fault. Causes come first, symptoms last; within each, the most "
    "severe first."
)


def reader_rows(diagnosis: Diagnosis) -> tuple[str, list[str], list[list[str]]]:
    """Return title, columns and rows: RR@10 by reader, and its difference to the untrained model."""
    num_queries, num_ranked, split = diagnosis.num_queries, diagnosis.num_ranked, diagnosis.split
    title = f"RR@10 of {num_queries:,} queries of {split or 'no split'} in {num_ranked:,} passages"
    rows = [
        [reader, _with_interval(interval, ".3f"), _with_interval(diagnosis.gains.get(reader), "+.3f")]
        for reader, interval in diagnosis.scores.items()
    ]
    return title, ["reader", "mean [95 %]", "against untrained"], rows


def _with_interval(interval: Interval | None, form: str) -> str:
    return ABSENT if interval is None else f"{interval.mean:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def outcome(diagnosis: Diagnosis) -> str:
    """Return the result in a sentence."""
    if diagnosis.faults:
        return f"likeliest cause: {diagnosis.faults[0].check}"
    bm25, untrained = diagnosis.scores.get(BM25), diagnosis.scores.get(UNTRAINED)
    start = ""
    if bm25 and untrained and untrained.high < bm25.low / 2:
        start = "the start finds less than half of what BM25 finds: another model.checkpoint (or more of its layers), "
    return f"no fault found; {start}more pairs, hard negatives or a fusion with BM25 (raydr fuse) may still help"


def cells(finding: Finding) -> list[str]:
    """Return level, check, severity, finding and remedy."""
    return [finding.level, finding.check, f"{finding.severity:.0%}", finding.observation, finding.remedy]


#: Name of the variant, or end of the folder, that tries a remedy.
_REMEDY = "remedy"


def trial_settings(fault: Finding, workdir: str, changes: Mapping[str, Any]) -> list[str]:
    """Return settings of a run that compares a fault's remedy with the training; empty where no setting is a remedy.

    A remedy in the section ``train`` becomes a variant, which shares everything else; any other needs a folder of its
    own.

    Args:
        fault: the fault.
        workdir: working folder of the training.
        changes: changes of the variant that was trained to the section ``train``; empty for the section itself.

    >>> trial_settings(Finding("mismatched_pairs", 0.4, "", ("train.loss=npc",), ""), "work", {})
    ['variants.remedy.loss=npc']
    >>> trial_settings(Finding("mismatched_pairs", 0.4, "", ("train.loss=npc",), ""), "work", {"num_epochs": 9})
    ['variants.remedy={"num_epochs": 9}', 'variants.remedy.loss=npc']
    >>> trial_settings(Finding("temperature", 0.4, "", ("model.scale=20",), ""), "work", {})
    ['model.scale=20', 'workdir=work-remedy']
    """
    if all(setting.startswith("train.") for setting in fault.settings):
        start = [f"variants.{_REMEDY}={json.dumps(changes)}"] if changes else []
        return start + [f"variants.{_REMEDY}.{setting.removeprefix('train.')}" for setting in fault.settings]
    return [*fault.settings, f"workdir={workdir.rstrip('/')}-{_REMEDY}"]


def diagnosis_page(diagnosis: Diagnosis, provenance: Sequence[tuple[str, str]] = ()) -> str:
    """Return the self-contained HTML page.

    Args:
        diagnosis: the findings.
        provenance: names and fingerprints of the examined artefacts.
    """
    answer = [outcome(diagnosis)]
    if diagnosis.faults:
        worst = diagnosis.faults[0]
        answer += [f"how sure: {worst.observation}", f"what may help: {worst.remedy}"]
    page = Page("Diagnosis", *(f"{sentence[0].upper()}{sentence[1:]}." for sentence in answer))
    page.table(*reader_rows(diagnosis))
    if len(diagnosis.of_level("ok")) < len(diagnosis.findings):
        page.heading("Findings").note(_RULE)
    for finding in diagnosis.findings:
        if finding.level != "ok":
            page.beside(
                f"{finding.check}: {finding.level}",
                f"severity at least {finding.severity:.1%}; compared: {diagnosis.compared[finding.check]}",
                [("observation", finding.observation), ("remedy", finding.remedy)],
            )
    passed = [
        [finding.check, finding.observation, diagnosis.compared[finding.check]] for finding in diagnosis.of_level("ok")
    ]
    if passed:
        page.heading("No fault").table("checks that passed", ["check", "observation", "compared"], passed)
    if diagnosis.missing:
        page.heading("Not checked").table("checks without their input", ["check", "why"], diagnosis.missing.items())
    return page.render(provenance)
