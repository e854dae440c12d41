"""An audit: what judges say of a data set, in figures, pictures and examples.

Artefact ``audit``::

    report.html                          all of it on one page
    summary.json                         the figures, see :class:`raydr.noise.audit_result.AuditResult`
    offenders.parquet                    the most suspicious verdicts of each judge with their texts
    false_negatives/part-*.parquet       (query_id, judge, candidates, flagged, first_rank, suspected)
    sample.parquet, scores/part-*.parquet  (query_id, passage_id, kind, score) of a sample of the queries
    plots/*.png                          the pictures of the report

The verdicts are artefacts of their own. Each part of them is counted by a call of its own, one more call draws and
writes; the driver gets counts and a few ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from raydr.errors import ConfigError
from raydr.models.encode_config import EncodeConfig
from raydr.noise.agreement import Agreement
from raydr.noise.audit_result import AuditResult, NegativeFindings, PairFindings
from raydr.noise.false_negative_statistics import FalseNegativeStatistics
from raydr.noise.offenders import Offender, merge_offenders
from raydr.pages.audit import negative_rows, pair_rows, quality_rows
from raydr.runtime.console import show_summary, show_table, warn
from raydr.stages.audit_parts import AuditInputs, PartFindings, audit_negatives, audit_pairs, suspected_queries
from raydr.stages.audit_report import REPORT, SUMMARY, write_report
from raydr.stages.audit_scores import SAMPLE, ScorePairs, ScoresJob, draw_pairs
from raydr.stages.parts import feed_parts
from raydr.stages.pool import Feed, Pool
from raydr.stages.row_ranges import RowRange
from raydr.stages.scoring import Scoring
from raydr.store.artifact import Artifact, Building

#: Verdicts shown of each judge.
NUM_OFFENDERS = 10
#: The sample whose scores are drawn: queries, and passages of each at most.
SAMPLE_SIZE = {"num_queries": 500, "num_candidates": 15, "num_random": 15}
_RANGE_SCORES = 2_000
#: Raised when the same inputs lead to another page; with it what is shown of how many. 2: says by what rule each judge
#: flags, and counts agreement in the trusted queries; 3: puts judges that cut what they judge into pieces of different
#: sizes side by side.
VERSION = 3


def audit(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    model: Artifact,
    verdicts: Mapping[str, Artifact],
    negatives: Artifact | None,
    *,
    model_name: str,
    split: str,
    seed: int,
    settings: EncodeConfig,
    scoring: Scoring,
) -> dict[str, Any]:
    """Put the verdicts of several judges together into one report.

    Args:
        making: the ``audit`` artefact.
        pool: where parts are counted and the sample is scored.
        dataset, corpus: what was judged.
        model: whose scores are drawn, as ``scoring`` says.
        verdicts: by judge; of pairs or of negatives.
        negatives: the candidates that were judged; needed if there are verdicts on negatives.
        model_name: what the report calls the model.
        split: what was judged.
        seed: draws the sample.
        settings: of the workers that score it.
        scoring: by the model.

    Raises:
        ConfigError: there are no verdicts.
    """
    if not verdicts:
        raise ConfigError("an audit needs the verdicts of at least one judge")
    inputs = AuditInputs(
        split,
        dataset.folder,
        corpus.folder,
        negatives.folder if negatives is not None else None,
        {name: one.folder for name, one in verdicts.items()},
    )
    scores = _score(making, pool, inputs, seed, settings, scoring)
    result, offenders = _count(making, pool, inputs, verdicts, negatives, model_name)
    provenance = list(making.identity.inputs.items())
    parts, facts = pool.run(write_report, inputs, result, offenders, scores, provenance, making.folder)
    making.done.update(parts)
    return {"split": split, "model": model_name, "judges": list(verdicts), **facts}


def load_result(artifact: Artifact) -> AuditResult:
    """The figures of an ``audit`` artefact."""
    return AuditResult.from_json(artifact.folder.read_json(SUMMARY))


def show(artifact: Artifact) -> None:
    """Print the tables of an ``audit`` artefact."""
    result = load_result(artifact)
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


def _score(
    making: Building, pool: Pool, inputs: AuditInputs, seed: int, settings: EncodeConfig, scoring: Scoring
) -> list[str]:
    """Draw and score the sample; returns the parts with scores."""
    if SAMPLE not in making.done:
        making.done[SAMPLE] = pool.run(draw_pairs, inputs, seed, making.folder, *SAMPLE_SIZE.values())
    rows = making.done[SAMPLE].rows
    items = {}
    for at, start in enumerate(range(0, rows, _RANGE_SCORES)):
        name = f"scores/part-{at:05d}.parquet"
        items[name] = RowRange(name, SAMPLE, start, min(start + _RANGE_SCORES, rows)).item
    job = ScoresJob(inputs, making.folder, scoring)
    feed_parts(making, pool, Feed(ScorePairs, job, settings), items, "audit: scores", "rows")
    return sorted(items)


def _count(
    making: Building,
    pool: Pool,
    inputs: AuditInputs,
    verdicts: Mapping[str, Artifact],
    mined: Artifact | None,
    model_name: str,
) -> tuple[AuditResult, dict[str, list[Offender]]]:
    """Count all parts of all verdicts, and add the counts up."""
    pair_judges, negative_judges = (
        [name for name, one in verdicts.items() if one.info["subject"] == subject] for subject in ("pairs", "negatives")
    )
    split = inputs.split
    calls: list[tuple[Any, ...]] = [
        (inputs, pair_judges, judged, NUM_OFFENDERS) for judged in _judged_parts(verdicts, pair_judges, split)
    ]
    pairs: list[PartFindings] = list(pool.map(audit_pairs, calls, "audit: pairs"))
    suspected = np.zeros(0, dtype=np.uint64)
    if pair_judges:
        suspected = pool.run(suspected_queries, inputs.verdicts[pair_judges[0]], split)
    candidates = mined.parts(f"negatives/{split}") if mined is not None else []
    calls = []
    for judged in _judged_parts(verdicts, negative_judges, split):
        number = judged.rpartition("/part-")[2].removesuffix("-")
        written = f"false_negatives/part-{number}.parquet"
        part = candidates[int(number)]
        calls.append((inputs, negative_judges, judged, part, suspected, NUM_OFFENDERS, making.folder, written))
    negatives: list[PartFindings] = list(pool.map(audit_negatives, calls, "audit: negatives"))
    for found in negatives:
        making.done.update(found.written)
    # The order in which parts are done does not matter: counts are added, and offenders are put in order.
    offenders = {
        judge: merge_offenders([found.offenders[judge] for found in parts], NUM_OFFENDERS)
        for judges, parts in ((pair_judges, pairs), (negative_judges, negatives))
        for judge in judges
    }
    result = AuditResult(
        split=split,
        model=model_name,
        pairs=[_pair_findings(name, verdicts[name]) for name in pair_judges],
        negatives=[_negative_findings(name, verdicts[name], negatives) for name in negative_judges],
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
        settings=info["settings"],
        detection=info.get("detection"),
    )


def _negative_findings(judge: str, verdicts: Artifact, parts: list[PartFindings]) -> NegativeFindings:
    everywhere, trusted = FalseNegativeStatistics.none(), FalseNegativeStatistics.none()
    for found in parts:
        everywhere += found.all_queries[judge]
        trusted += found.trusted_queries[judge]
    return NegativeFindings(judge, everywhere, trusted, verdicts.info["settings"], verdicts.info.get("detection"))


def _total_agreement(parts: list[PartFindings]) -> Agreement | None:
    total: Agreement | None = None
    for found in parts:
        total = found.agreement if total is None else total + found.agreement
    return total
