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

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.inspection import SplitInspection, count_leaks
from raydr.data.inspection_report import SplitReport
from raydr.errors import ConfigError
from raydr.evaluation.config import EvaluateConfig
from raydr.models.encode_config import EncodeConfig
from raydr.noise.audit_result import AuditResult, NegativeFindings, PairFindings, inconclusive
from raydr.noise.offenders import Offender
from raydr.pages.audit import negative_rows, pair_rows, quality_rows
from raydr.runtime.console import show_summary, show_table, warn
from raydr.stages.audit_parts import AuditInputs, add_up, audit_negatives, audit_pairs, suspected_queries
from raydr.stages.audit_report import REPORT, SUMMARY, write_report
from raydr.stages.audit_scores import SAMPLE, ScorePairs, ScoresJob, draw_pairs
from raydr.stages.parts import feed_parts
from raydr.stages.pool import Feed, Pool
from raydr.stages.row_ranges import items_of, row_ranges
from raydr.stages.scoring import Scoring
from raydr.store.artifact import Artifact, Building

#: The sample whose scores are drawn: queries, and passages of each at most.
SAMPLE_SIZE = {"num_queries": 500, "num_candidates": 15, "num_random": 15}
_RANGE_SCORES = 2_000
#: Raised when the same inputs lead to another page; with it what is shown of how many. 2: says by what rule each judge
#: flags, and counts agreement in the trusted queries; 3: puts judges that cut what they judge into pieces of different
#: sizes side by side; 4: shows the detector's share, and every pair's own probability; 5: begins with faults of the
#: data themselves; 6: suspects what the last judge of a cascade suspects.
VERSION = 6


def audit(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    verdicts: Mapping[str, Artifact],
    negatives: Artifact | None,
    *,
    model_name: str,
    split: str,
    train_split: str,
    seed: int,
    answers: EvaluateConfig,
    settings: EncodeConfig,
    scoring: Scoring,
) -> dict[str, Any]:
    """Put the verdicts of several judges together into one report.

    Args:
        making: the ``audit`` artefact.
        pool: where parts are counted and the sample is scored.
        dataset, corpus: what was judged.
        verdicts: by judge; of pairs or of negatives.
        negatives: the candidates that were judged; needed if there are verdicts on negatives.
        model_name: what the report calls the model whose scores are drawn.
        split: what was judged.
        train_split: what is trained on; its queries should not be in other splits.
        answers: whose answers count, and how they are found in passages.
        seed: draws the sample.
        settings: of the workers that score it.
        scoring: by the model.

    Raises:
        ConfigError: there are no verdicts.
    """
    if not verdicts:
        raise ConfigError("an audit needs the verdicts of at least one judge")
    inputs = AuditInputs(split, Dataset(dataset), Corpus(corpus), negatives, dict(verdicts))
    scores = _score(making, pool, inputs, seed, settings, scoring)
    looked = pool.run(_look_at_data, inputs, train_split, answers, seed)
    result, offenders = _count(making, pool, inputs, model_name, train_split, looked)
    provenance = list(making.identity.inputs.items())
    parts, facts = pool.run(write_report, inputs, result, offenders, scores, provenance, making.folder)
    making.done.update(parts)
    return {"split": split, "model": model_name, "judges": list(verdicts), **facts}


def load_result(artifact: Artifact) -> AuditResult:
    """The figures of an ``audit`` artefact."""
    return AuditResult.from_json(artifact.read_json(SUMMARY))


def show(artifact: Artifact) -> None:
    """Print the tables of an ``audit`` artefact."""
    result = load_result(artifact)
    for fault in result.faults:
        warn(fault)
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
            warn(inconclusive(one.judge, one.reason))
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
    ranges = row_ranges({SAMPLE: making.done[SAMPLE].rows}, _RANGE_SCORES)
    items = items_of({f"scores/part-{one.number:05d}.parquet": one for one in ranges})
    job = ScoresJob(inputs, making.folder, scoring)
    feed_parts(making, pool, Feed(ScorePairs, job, settings), items, "audit: scores", "rows")
    return sorted(items)


def _look_at_data(inputs: AuditInputs, train_split: str, answers: EvaluateConfig, seed: int) -> tuple[SplitReport, int]:
    """Counts of the split, and of its leaked queries."""
    data, split = inputs.data, inputs.split
    looking = SplitInspection.of(data, inputs.corpus, split, seed)
    report = looking.report(answers.answer_match, answers.answer_query_prefixes)
    return report, count_leaks(data, split, train_split)


def _count(
    making: Building,
    pool: Pool,
    inputs: AuditInputs,
    model_name: str,
    train_split: str,
    looked: tuple[SplitReport, int],
) -> tuple[AuditResult, dict[str, list[Offender]]]:
    """Count all parts of all verdicts, and add the counts up."""
    of_data, num_leaked = looked
    split, verdicts = inputs.split, inputs.verdicts
    pair_judges, negative_judges = (
        [name for name, one in verdicts.items() if one.info["subject"] == subject] for subject in ("pairs", "negatives")
    )
    calls: list[tuple[Any, ...]] = [(inputs, pair_judges, judged) for judged in _judged_parts(inputs, pair_judges)]
    pairs = add_up(pool.map(audit_pairs, calls, "audit: pairs"), pair_judges)
    suspecting = pair_judges[:1]
    for name in pair_judges[1:]:
        if verdicts[name].info.get("after") == suspecting[-1]:
            suspecting.append(name)
    suspected = pool.run(suspected_queries, inputs, suspecting)
    mined = inputs.negatives
    candidates = mined.parts(f"negatives/{split}") if mined is not None else []
    calls = []
    for judged in _judged_parts(inputs, negative_judges):
        number = judged.rpartition("/part-")[2].removesuffix("-")
        written = f"false_negatives/part-{number}.parquet"
        part = candidates[int(number)]
        calls.append((inputs, negative_judges, judged, part, suspected, making.folder, written))
    negatives = add_up(pool.map(audit_negatives, calls, "audit: negatives"), negative_judges)
    making.done.update(negatives.written)
    result = AuditResult(
        split=split,
        model=model_name,
        train_split=train_split,
        data=of_data,
        num_leaked=num_leaked,
        num_left_out=sum(one.info.get("num_bad", 0) for one in (inputs.corpus.artifact, inputs.data.artifact)),
        pairs=[_pair_findings(name, verdicts[name]) for name in pair_judges],
        negatives=[
            NegativeFindings(
                name, negatives.all_queries[name], negatives.trusted_queries[name], verdicts[name].info["settings"],
                verdicts[name].info.get("detection"),
            )
            for name in negative_judges
        ],
        pair_agreement=pairs.agreement,
        negative_agreement=negatives.agreement,
        suspected_by=", then ".join(suspecting),
        num_known=negatives.num_known,
        num_known_trusted=negatives.num_known_trusted,
    )  # fmt: skip
    return result, pairs.offenders | negatives.offenders


def _judged_parts(inputs: AuditInputs, judges: list[str]) -> list[str]:
    """How the names of the verdicts on each part of what was judged begin; judges cut parts into different pieces."""
    names = {name for judge in judges for name in inputs.verdicts[judge].parts(f"verdicts/{inputs.split}")}
    return sorted({name.rpartition("-")[0] + "-" for name in names})


def _pair_findings(judge: str, verdicts: Artifact) -> PairFindings:
    info = verdicts.info
    detector = info.get("detector", {})
    return PairFindings(
        judge=judge,
        num_judged=info["verdicts"],
        num_flagged=info["verdicts"] - info["keep"],
        mean_probability=None,
        share_estimated=detector.get("share_mismatched"),
        # Who comes after another judge leaves that one's word where it has none of its own.
        reason=detector.get("reason", "") if "after" not in info else "",
        settings=info["settings"],
        detection=info.get("detection"),
    )
