"""An audit from a data set to a report: the model, candidates and verdicts that it needs are made on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.graph.judging import TRUTH, give_verdicts
from raydr.graph.workspace import UNTRAINED
from raydr.negatives.config import NegativesConfig
from raydr.runtime.console import say
from raydr.stages.audit import audit
from raydr.store.artifact import MANIFEST, Artifact
from raydr.store.folder import Folder

if TYPE_CHECKING:
    from raydr.graph.job import Job

#: Judges of a run whose config has none: those that need no model but the one that is audited with.
JUDGES = ("npc", "consistency", "margin")


def run_audit(job: Job, names: list[str], split: str, model: str = "") -> Artifact:
    """Mine candidates if there are none, let all judges give their verdicts, and report them.

    Args:
        job: the run. Its ``overwrite`` replaces the audit, the verdicts and the untrained encoder, not the candidates.
        names: judges by name; if empty those of the config, and if it has none :data:`JUDGES`.
        split: what is judged.
        model: of the working folder; by default ``judge.model`` if it is there, else the untrained encoder.

    Raises:
        ConfigError: a judge is unknown, or judges nothing.
        ArtifactError: there is no such model.
        DataError: the candidates that are there were mined for another data set.
    """
    config = job.config
    names = list(dict.fromkeys(names)) or [one.name for one in config.judge.judges] or list(JUDGES)
    if TRUTH in names:
        raise ConfigError(f"{TRUTH} is no judge that could be audited: the truth is compared with where it is known")
    judges = [config.judge.judge(name) for name in names]
    model = model or _default_model(job)
    folder = _model(job, model)
    source, negatives = job.candidate_source, None
    if any(one.subject == "negatives" for one in judges):
        negatives = _candidates(job, source, split)
    verdicts = [give_verdicts(job, one, split, source, model).folder for one in judges]
    output = job.workspace.audit(f"{model}-{split}")
    return audit(
        config,
        split,
        job.dataset,
        job.corpus,
        folder,
        model,
        verdicts,
        output,
        negatives,
        overwrite=job.replaces(output),
    )


def _default_model(job: Job) -> str:
    name = job.config.judge.model
    if name == UNTRAINED or job.workspace.model(name).exists(MANIFEST):
        return name
    say(f"audit: there is no model {name!r} in {job.workspace.root}/models, the untrained encoder is asked")
    return UNTRAINED


def _model(job: Job, name: str) -> Folder:
    folder = job.workspace.model(name)
    if name == UNTRAINED:
        job.untrained()
    elif not folder.exists(MANIFEST):
        raise ArtifactError(f"there is no model {name!r} at {folder}: train it, or take --model {UNTRAINED}")
    return folder


def _candidates(job: Job, source: str, split: str) -> Folder:
    """The candidates that are there, or BM25's if the run mines none itself."""
    folder = job.workspace.negatives(f"{source}-{split}")
    if not folder.exists(MANIFEST):
        config = job.config
        if config.negatives is None:
            config = config.model_copy(update={"negatives": NegativesConfig()})
        replace(job, config=config, overwrite=False).mine(split, source)
    mined = Artifact.open(folder, "negatives").manifest.identity.inputs["dataset"]
    if mined != Artifact.open(job.dataset, "dataset").fingerprint:
        raise DataError(
            f"the candidates at {folder} were mined for another data set: mine them again, with --overwrite"
        )
    return folder
