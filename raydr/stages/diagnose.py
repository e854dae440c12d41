"""Why is a trained model worse than it could be? All checks over samples of its queries.

Artefact ``diagnosis``::

    findings.json    measures, findings with severity, settings and advice, what was compared, what was not looked at
    report.html      the same as a page
"""

from __future__ import annotations

import shlex
from typing import Any

from raydr.diagnosis.diagnosis import Diagnosis
from raydr.diagnosis.diagnosis import diagnose as examine_all
from raydr.models.encode_config import EncodeConfig
from raydr.pages.diagnosis import cells, diagnosis_page, outcome, reader_rows
from raydr.runtime.console import say, show_summary, show_table
from raydr.stages.evidence import gather
from raydr.stages.evidence_samples import DiagnosisJob
from raydr.stages.parts import as_json, feed_parts, part_batch, write_contents
from raydr.stages.pool import Batch, Feed, Pool
from raydr.store.artifact import Artifact, Building

KIND = "diagnosis"
FINDINGS, REPORT = "findings.json", "report.html"
#: Raised when the same inputs lead to other findings.
VERSION = 3


class Examine:
    """Gathers the evidence and lets the checks look at it, where models can be loaded."""

    def __init__(self, job: DiagnosisJob) -> None:
        self.job = job

    def __call__(self, batch: Batch) -> Batch:
        found = as_json(examine_all(gather(self.job)).to_json())
        [(name, part)] = write_contents(self.job.output, {FINDINGS: found}).items()
        return part_batch(name, part)


def diagnose(making: Building, pool: Pool, job: DiagnosisJob, *, settings: EncodeConfig) -> dict[str, Any]:
    """Examine a training.

    Args:
        making: the ``diagnosis`` artefact.
        pool: where the models are asked.
        job: what is examined.
        settings: of the worker that asks them.

    Returns:
        ``split``, and ``faults``: names of checks, the likeliest cause first.
    """
    feed = Feed(Examine, job, settings)
    feed_parts(making, pool, feed, {FINDINGS: {"name": FINDINGS, "rows": 1}}, "diagnose", "runs")
    found = Diagnosis.from_json(making.folder.read_json(FINDINGS))
    page = diagnosis_page(found, list(making.identity.inputs.items()))
    making.done.update(write_contents(making.folder, {REPORT: page}))
    return {"split": found.split, "faults": [one.check for one in found.faults]}


def load_result(artifact: Artifact) -> Diagnosis:
    """The findings of a ``diagnosis`` artefact."""
    return Diagnosis.from_json(artifact.read_json(FINDINGS))


def show(artifact: Artifact) -> None:
    """Print the findings, the likeliest cause first, and a remedy for each."""
    found = load_result(artifact)
    show_table(*reader_rows(found))
    say(outcome(found))
    told = [*found.faults, *found.of_level("note")]
    if told:
        show_table("findings", ["", "check", "hit", "found"], ([*cells(one)[:3], one.found] for one in told))
        for one in told:
            say(f"{one.check}: {one.remedy}")
    if found.faults and found.faults[0].settings:
        settings = " ".join(f"--set {shlex.quote(one)}" for one in found.faults[0].settings)
        say(f"to see what the first of these brings: train again with {settings} --set workdir=ANOTHER")
    say(f"nothing found: {', '.join(one.check for one in found.of_level('ok')) or 'none'}")
    for check, why in found.missing.items():
        say(f"not looked at: {check} ({why})")
    show_summary(KIND, {"report": artifact.folder.path(REPORT)})
