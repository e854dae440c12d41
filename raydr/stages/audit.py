"""An audit: what judges say of a data set, in figures, pictures and examples.

Artefact ``audit``::

    report.html                          all of it on one page
    summary.json                         the figures, see :class:`raydr.noise.audit_result.AuditResult`
    offenders.parquet                    the most suspicious verdicts of each judge with their texts
    false_negatives/part-*.parquet       (query_id, judge, candidates, flagged, first_rank, suspected)
    sample.parquet, scores/part-*.parquet  (query_id, passage_id, kind, score) of a sample of the queries
    plots/*.png                          the pictures of the report

The verdicts are artefacts of their own. Each part of them is counted in a task of its own, one more task draws and
writes; the driver gets counts and a few ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError, DataError
from raydr.noise.agreement import Agreement
from raydr.noise.audit_result import AuditResult, NegativeFindings, PairFindings
from raydr.noise.false_negative_statistics import FalseNegativeStatistics
from raydr.noise.offenders import Offender, merge_offenders
from raydr.pages.audit import negative_rows, pair_rows, quality_rows
from raydr.runtime.console import say, show_summary, show_table, warn
from raydr.stages.audit_parts import PartFindings, audit_negatives, audit_pairs, suspected_queries
from raydr.stages.audit_report import REPORT, SUMMARY, AuditInputs, write_report
from raydr.stages.audit_scores import SAMPLE, ScorePairs, ScoresJob, draw_pairs
from raydr.stages.tasks import fetch, results
from raydr.stages.units import Scoring, Unit, plan_scoring, run_units
from raydr.store.artifact import MANIFEST, Artifact, Building, Identity, Part, begin
from raydr.store.folder import Folder

#: Verdicts shown of each judge.
NUM_OFFENDERS = 10
#: The sample whose scores are drawn: queries, and passages of each at most.
SAMPLE_SIZE = {"num_queries": 500, "num_candidates": 15, "num_random": 15}
_UNIT_SCORES = 2_000
#: 2: says by what rule each judge flags, and counts agreement in the trusted queries; 3: puts judges that cut what they
#: judge into pieces of different sizes side by side.
VERSION = 3


def audit(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    model: Folder,
    model_name: str,
    verdicts: list[Folder],
    output: Folder,
    negatives: Folder | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Put the verdicts of several judges together into one report.

    Args:
        config: ``encode`` says with which workers and arithmetic the sample is scored, ``seed`` draws it.
        split: the split.
        dataset, corpus: what was judged.
        model: whose scores are drawn.
        model_name: what the report calls it.
        verdicts: one ``verdicts`` artefact a judge, of pairs or of negatives.
        output: where the ``audit`` artefact goes.
        negatives: the candidates that were judged; needed if there are verdicts on negatives.
        overwrite: make it again if it is there already; one that was made of other verdicts is replaced anyway.

    Raises:
        ConfigError: there are no verdicts, or no negatives to verdicts on negatives.
        DataError: verdicts are on something else.
    """
    data = Dataset.open(dataset)
    opened = {str(one.info["judge"]): one for one in (Artifact.open(folder, "verdicts") for folder in verdicts)}
    mined = Artifact.open(negatives, "negatives") if negatives is not None else None
    _check(opened, split, data, mined)
    scoring = plan_scoring(config, model, is_cross_encoder=False)
    identity = Identity(
        kind="audit",
        version=VERSION,
        config={
            "split": split,
            "model": model_name,
            "judges": list(opened),
            "seed": config.seed,
            "offenders": NUM_OFFENDERS,
            "sample": SAMPLE_SIZE,
            **scoring.identity,
        },
        inputs={"dataset": data.fingerprint, "corpus": data.corpus_fingerprint, "model": scoring.fingerprint}
        | ({"negatives": mined.fingerprint} if mined is not None else {})
        | {f"verdicts.{name}": one.fingerprint for name, one in opened.items()},
    )
    inputs = AuditInputs(split, dataset, corpus, negatives, {name: one.folder for name, one in opened.items()})
    replaced = output.exists(MANIFEST) and Artifact.open(output, "audit").fingerprint != identity.fingerprint
    if replaced and not overwrite:
        say(f"audit {output}: takes the place of the one that was made of other verdicts")
    with begin(output, identity, overwrite or replaced) as state:
        if isinstance(state, Artifact):
            say(f"audit {output}: already there with the same fingerprint, reused")
            show(load_result(state), state)
            return state
        scores = _score(config, inputs, scoring, state)
        result, offenders = _count(inputs, opened, model_name, state)
        found = _write(inputs, result, offenders, scores, state)
        info = {"split": split, "model": model_name, "judges": list(opened), **found}
        made = state.finish(info, run_config=config.model_dump(mode="json"))
    show(load_result(made), made)
    return made


def load_result(artifact: Artifact) -> AuditResult:
    """The figures of an ``audit`` artefact."""
    return AuditResult.from_json(artifact.folder.read_json(SUMMARY))


def show(result: AuditResult, artifact: Artifact) -> None:
    """Print the tables."""
    if result.pairs:
        show_table("mismatched pairs", *_turned(*pair_rows(result)))
    if result.negatives:
        note = f", without queries that {result.suspected_by} suspects" if result.suspected_by else ""
        show_table(f"false negatives{note}", *_turned(*negative_rows(result)))
    columns, rows = quality_rows([*result.pairs, *result.negatives])
    if rows:
        show_table("against the truth", *_turned(columns, rows))
    for one in result.pairs:
        if one.reason:
            warn(f"judge {one.judge} keeps all pairs: {one.reason}")
    show_summary("audit", {"report": artifact.folder.path(REPORT)})


def _turned(columns: list[str], rows: list[list[str]]) -> tuple[list[str], list[list[str]]]:
    """Rows as columns: the figures of a judge are too many for the width of a terminal."""
    first, *others = zip(columns, *rows, strict=True)
    return list(first), [list(row) for row in others]


def _check(opened: Mapping[str, Artifact], split: str, data: Dataset, mined: Artifact | None) -> None:
    if not opened:
        raise ConfigError("an audit needs the verdicts of at least one judge")
    for name, one in opened.items():
        if one.info["split"] != split:
            raise DataError(f"the verdicts at {one.folder} are on split {one.info['split']!r}, expected {split!r}")
        expected = {"dataset": data.fingerprint}
        if one.info["subject"] == "negatives":
            if mined is None:
                raise ConfigError(f"judge {name} has judged negatives: give the negatives too")
            expected["negatives"] = mined.fingerprint
        for role, fingerprint in expected.items():
            if one.manifest.identity.inputs[role] != fingerprint:
                raise DataError(f"the verdicts at {one.folder} were given on another {role}: judge this one")


def _score(config: RunConfig, inputs: AuditInputs, scoring: Scoring, state: Building) -> list[str]:
    """Draw and score the sample; returns the parts with scores."""
    import ray

    if SAMPLE not in state.done:
        task = ray.remote(num_cpus=1)(draw_pairs)
        drawn = task.remote(
            inputs.dataset,
            inputs.corpus,
            inputs.negatives,
            inputs.split,
            config.seed,
            output=state.folder,
            **SAMPLE_SIZE,
        )
        state.done.update(_part(fetch(drawn)))
    job = ScoresJob(inputs.split, inputs.dataset, inputs.corpus, state.folder, scoring)
    sample = state.done[SAMPLE]
    units = [
        Unit(SAMPLE, start, min(start + _UNIT_SCORES, sample.rows), f"{at:05d}")
        for at, start in enumerate(range(0, sample.rows, _UNIT_SCORES))
    ]
    run_units(config, state, units, job.name_of, ScorePairs, job, "audit: scores")
    return sorted(job.name_of(unit) for unit in units)


def _count(
    inputs: AuditInputs, opened: Mapping[str, Artifact], model_name: str, state: Building
) -> tuple[AuditResult, dict[str, list[Offender]]]:
    """Count all parts of all verdicts, and add the counts up."""
    import ray

    by_subject = {
        subject: [name for name, one in opened.items() if one.info["subject"] == subject]
        for subject in ("pairs", "negatives")
    }
    pair_judges, negative_judges = by_subject["pairs"], by_subject["negatives"]
    folders = {subject: [inputs.verdicts[name] for name in names] for subject, names in by_subject.items()}
    count = ray.remote(num_cpus=1)(audit_pairs)
    pending = [
        count.remote(pair_judges, folders["pairs"], judged, NUM_OFFENDERS)
        for judged in _judged_parts(opened, pair_judges, inputs.split)
    ]
    pairs = list(results(pending, "audit: pairs", "parts"))
    suspected: Any = ray.put(np.zeros(0, dtype=np.uint64))
    if pair_judges:
        suspected = ray.remote(num_cpus=1)(suspected_queries).remote(folders["pairs"][0], inputs.split)
    pending = []
    if inputs.negatives is not None:
        mined = Artifact.open(inputs.negatives, "negatives").parts(f"negatives/{inputs.split}")
        count_negatives = ray.remote(num_cpus=1)(audit_negatives)
        for judged in _judged_parts(opened, negative_judges, inputs.split):
            number = judged.rpartition("/part-")[2].removesuffix("-")
            pending.append(
                count_negatives.remote(
                    negative_judges,
                    folders["negatives"],
                    judged,
                    inputs.negatives,
                    mined[int(number)],
                    suspected,
                    NUM_OFFENDERS,
                    state.folder,
                    f"false_negatives/part-{number}.parquet",
                )
            )
    negatives = list(results(pending, "audit: negatives", "parts"))
    for found in negatives:
        state.done.update(_part(found.record))
    # The order in which tasks finish does not matter: counts are added, and offenders are put in order.
    offenders = {
        judge: merge_offenders([found.offenders[judge] for found in parts], NUM_OFFENDERS)
        for judges, parts in ((pair_judges, pairs), (negative_judges, negatives))
        for judge in judges
    }
    result = AuditResult(
        split=inputs.split,
        model=model_name,
        pairs=[_pair_findings(name, opened[name]) for name in pair_judges],
        negatives=[_negative_findings(name, opened[name], negatives) for name in negative_judges],
        pair_agreement=_total_agreement(pairs),
        negative_agreement=_total_agreement(negatives),
        suspected_by=pair_judges[0] if pair_judges else "",
        num_known=sum(found.num_known for found in negatives),
        num_known_trusted=sum(found.num_known_trusted for found in negatives),
    )
    return result, offenders


def _judged_parts(opened: Mapping[str, Artifact], judges: list[str], split: str) -> list[str]:
    """How the names of the verdicts on each part of what was judged begin; judges cut parts into different pieces."""
    names = {name for judge in judges for name in opened[judge].parts(f"verdicts/{split}")}
    return sorted({name.rpartition("-")[0] + "-" for name in names})


def _pair_findings(judge: str, verdicts: Artifact) -> PairFindings:
    info = verdicts.info
    detector = info.get("detector", {})
    fit = detector.get("fit") if not detector.get("reason") else None
    return PairFindings(
        judge=judge,
        num_judged=info["verdicts"],
        num_flagged=info["verdicts"] - info["keep"],
        mean_probability=None,
        mixture_weight=fit["weights"][1] if fit else None,
        reason=detector.get("reason", ""),
        settings=verdicts.manifest.identity.config["judge"],
        detection=info.get("detection"),
    )


def _negative_findings(judge: str, verdicts: Artifact, parts: list[PartFindings]) -> NegativeFindings:
    everywhere, trusted = FalseNegativeStatistics.none(), FalseNegativeStatistics.none()
    for found in parts:
        everywhere += found.all_queries[judge]
        trusted += found.trusted_queries[judge]
    settings = verdicts.manifest.identity.config["judge"]
    return NegativeFindings(judge, everywhere, trusted, settings, verdicts.info.get("detection"))


def _total_agreement(parts: list[PartFindings]) -> Agreement | None:
    total: Agreement | None = None
    for found in parts:
        total = found.agreement if total is None else total + found.agreement
    return total


def _write(
    inputs: AuditInputs,
    result: AuditResult,
    offenders: dict[str, list[Offender]],
    scores: list[str],
    state: Building,
) -> dict[str, Any]:
    """Let one task draw and write everything; returns the main figures and the pictures' captions."""
    import ray

    task = ray.remote(num_cpus=1)(write_report)
    provenance = list(state.identity.inputs.items())
    parts, facts = fetch(task.remote(inputs, result, offenders, scores, provenance, state.folder))
    state.done.update({name: Part.model_validate(part) for name, part in parts.items()})
    found: dict[str, Any] = facts
    return found


def _part(record: dict[str, Any] | None) -> dict[str, Part]:
    """The part in a one-row batch, as from :func:`raydr.stages.units.write_unit`."""
    if record is None:
        return {}
    return {record["name"][0]: Part(**{key: record[key][0] for key in ("rows", "bytes", "checksum")})}
