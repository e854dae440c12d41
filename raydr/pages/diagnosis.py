"""The findings on a training, for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from raydr.diagnosis.checks.base import FAULT, Finding
from raydr.diagnosis.diagnosis import Diagnosis
from raydr.diagnosis.evidence import BM25, UNTRAINED
from raydr.evaluation.significance import Interval
from raydr.pages.html import ABSENT, Page

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


def trial_settings(fault: Finding, workdir: str) -> list[str]:
    """Return settings of a run that compares a fault's remedy with the training; empty where no setting is a remedy.

    A remedy in the section ``train`` becomes a variant, which shares everything else; any other needs a folder of its
    own.

    >>> trial_settings(Finding("mismatched_pairs", 0.4, "", ("train.loss=npc",), ""), "work")
    ['variants.remedy.loss=npc']
    >>> trial_settings(Finding("temperature", 0.4, "", ("model.scale=20",), ""), "work")
    ['model.scale=20', 'workdir=work-remedy']
    """
    if all(setting.startswith("train.") for setting in fault.settings):
        return [f"variants.{_REMEDY}.{setting.removeprefix('train.')}" for setting in fault.settings]
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
