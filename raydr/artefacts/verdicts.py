"""Verdicts of a judge on candidate negatives, or on annotated pairs.

Artefact ``verdicts``::

    verdicts/SPLIT/part-*.parquet   verdicts(query_id, passage_id, judge, score, action, weight, truth)
    measures/SPLIT/part-*.parquet   (query_id, passage_id, truth, ...), of judges that decide on all pairs at once: for
                                    ``npc`` the margin, and that of a random pair; not with cross-fitted margins
    detection/SPLIT/part-*.parquet  (query_id, passage_id, truth, ...), the basis of those decisions: for ``npc``
                                    the same, the log posterior, and P(mismatched) (omitted without a mixture);
                                    fit and threshold are in the manifest

``truth`` is whether a candidate is a known false negative (injected, or the positive that a mismatched one replaced),
or whether a pair was mismatched on purpose. It is null without injected noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from raydr.artefacts import Context, Node, artefact, encoders
from raydr.artefacts.dataset import declare_data
from raydr.artefacts.judge_workers import JudgeJob, JudgeNegatives, JudgePairs, JudgeWorker, ReadPairs, decide_pairs
from raydr.artefacts.judged import DETECTION, MEASURES, VERDICTS, open_earlier
from raydr.artefacts.people_decisions import DecideNegatives, DecidePairs, warrant
from raydr.artefacts.scoring import PAIRS_ENCODED, PAIRS_READ, CrossFittedScoring, Scoring, scoring_of
from raydr.component import Neutral
from raydr.console import say, show_summary, warn
from raydr.data import Corpus, Dataset
from raydr.data.tables import read_parquet
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.parts import feed_parts, range_items
from raydr.distributed.pool import Feed, Pool
from raydr.models.encode_config import EncodeConfig
from raydr.noise.audit_result import inconclusive
from raydr.noise.decisions import Label
from raydr.noise.judges.base import CascadeJudge, Judge, SampleJudge, SecondJudge, SplitJudge
from raydr.noise.judges.calibrated import CalibratedJudge
from raydr.noise.judges.people import DecisionsReader, PeopleJudge
from raydr.noise.verdict_report import reason_for_doubt, summarize_verdicts
from raydr.store import Artifact, Building, Folder
from raydr.store.identity import fingerprint_of

_NONE: Mapping[Any, Any] = MappingProxyType({})
#: Training pairs judged together, whose vectors are held at once.
_RANGE_PAIRS = 5_000


def verdicts(
    context: Context,
    judge: Judge,
    split: str,
    negatives: Node | None,
    reads: Mapping[str, Any],
    earlier: Node | None = None,
) -> Node:
    """Return the node of a judge's verdicts on the candidates, or annotated pairs, of a split.

    Args:
        context: config.
        judge: judge of the verdicts.
        split: judged split.
        negatives: judged candidates; None for judges of pairs.
        reads: inputs of the judge: ``model``, or ``models`` and ``folds``, or ``margins``; empty for the miner's
            scores.
        earlier: verdicts of the earlier judge.
    """
    config, measured = context.config, "margins" in reads
    asks_model = bool(reads) and not measured
    settled = context.facts.settled(judge, split) if isinstance(judge, DecisionsReader) else None
    return judge_labels.node(
        f"{context.place}judge-{judge.name}-{split}",
        **declare_data(context),
        negatives=negatives,
        earlier=earlier,
        **reads,
        judge=judge,
        split=split,
        seed=config.seed if isinstance(judge, SampleJudge) and not measured else 0,
        measures=judge.measures if isinstance(judge, SplitJudge) else (),
        settled=settled or {},
        decisions="" if settled is None else fingerprint_of([*settled.items()]),
        settings=config.encode,
        arithmetic=context.facts.encoding(config.encode) if asks_model else None,
        asks_model=asks_model,
        demand=encoders(config),
    )


def _num_judged(of: Any) -> int:
    if of.judge.subject == "pairs":
        return int(of.dataset.rows(f"qrels/{of.split}"))
    return int(of.negatives.rows(f"negatives/{of.split}"))


@artefact("verdicts", version=4, rows=_num_judged)
def judge_labels(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    models: Mapping[str, Artifact] = _NONE,
    model: Artifact | None = None,
    folds: Artifact | None = None,
    margins: Artifact | None = None,
    negatives: Artifact | None = None,
    earlier: Artifact | None = None,
    *,
    judge: Judge,
    split: str,
    seed: int = 0,
    measures: Sequence[str] = (),
    decisions: str = "",
    settled: Annotated[Mapping[Label, bool], Neutral] = _NONE,
    settings: Annotated[EncodeConfig, Neutral],
    arithmetic: Arithmetic | None = None,
) -> dict[str, Any]:
    """Judge each candidate negative of a split, or each annotated pair, by the judge's subject.

    Args:
        making: ``verdicts`` artefact to make.
        pool: pool for the scores.
        dataset: queries, judgments, and the truth of injected noise.
        corpus: corpus of the passages.
        models: models by the fold that they have not seen; each query is judged by that of its fold.
        model: scoring model, if there are no ``models``; without both the miner's scores count.
        folds: fold of each query.
        margins: ``margins`` artefact that replaces a model.
        negatives: whole ``negatives`` artefact to judge; None for judges of pairs.
        earlier: ``verdicts`` of the earlier judge, whose sure verdicts are skipped.
        judge: judge with its settings.
        split: split to judge.
        seed: seed of random samples.
        measures: names of the judge's measures.
        decisions: checksum of settled decisions.
        settled: whether each decided label is wrong, for judges that read decisions.
        settings: settings of the workers.
        arithmetic: arithmetic of the scores; None: no model is asked.
    """
    judged = Dataset(dataset)
    scoring: Scoring | None = None
    if arithmetic is not None:
        first, *others = [model] if model is not None else list(models.values())
        scoring = scoring_of(pool, first, settings, arithmetic)
        if folds is not None:
            scoring = CrossFittedScoring(**vars(scoring), others=tuple(others), folds=folds, data=judged, split=split)
        scoring.tell("judge")
    facts: dict[str, Any] = {"judge": judge.name, "settings": judge.model_dump(mode="json"), "subject": judge.subject}
    if margins is not None:
        assert isinstance(judge, SplitJudge)
        parts, facts["detector"] = pool.run(decide_pairs, judge, making.folder, margins.folder, margins.parts(MEASURES))
        making.done.update(parts)
    else:
        before = None if earlier is None else pool.run(open_earlier, earlier, split)
        if before is not None and isinstance(judge, CalibratedJudge):
            before, facts["detector"] = pool.run(warrant, before, judged, Corpus(corpus), judge, settled)
        inputs = (judged, Corpus(corpus), negatives, scoring)
        job = JudgeJob(judge, split, *inputs, seed, making.folder, settled, before)
        facts |= _score(making, pool, job, settings)
    names = sorted(name for name in making.done if name.startswith(f"{VERDICTS}/{split}/"))
    info: dict[str, Any] = facts | {"split": split} | pool.run(_summarize, judge, making.folder, names)
    if isinstance(judge, PeopleJudge):
        info["decided"] = len(settled)
    elif earlier is not None:
        assert isinstance(judge, SecondJudge)
        info |= {"after": judge.after, "before": earlier.rows(f"{VERDICTS}/{split}")}
    elif negatives is not None:
        info["unjudged"] = negatives.rows(f"negatives/{split}") - info["verdicts"]
    report_verdicts(judge, info)
    return info


def _score(making: Building, pool: Pool, job: JudgeJob, settings: EncodeConfig) -> dict[str, Any]:
    """Judge by scores, range by range; return the basis of decisions on whole splits."""
    judge, split = job.judge, job.split
    worker, range_rows = _worker(judge)
    judged, under = (job.data.artifact, "qrels") if job.negatives is None else (job.negatives, "negatives")
    folder = MEASURES if isinstance(judge, SplitJudge) else VERDICTS
    items = range_items(f"{folder}/{split}/", judged.sizes(f"{under}/{split}"), range_rows)
    feed_parts(making, pool, Feed(worker, job, settings), items, f"judge: {judge.name}", "rows")
    if not isinstance(judge, SplitJudge):
        return {}
    parts, facts = pool.run(decide_pairs, judge, making.folder, None, sorted(items))
    making.done.update(parts)
    return {"detector": facts}


def _worker(judge: Judge) -> tuple[type[JudgeWorker], int]:
    """Return the worker class of a judge, and its number of rows in a call."""
    reads_pairs = judge.reads == "cross_encoder"
    if isinstance(judge, PeopleJudge):
        return (DecidePairs if judge.subject == "pairs" else DecideNegatives), PAIRS_ENCODED
    if judge.subject == "negatives":
        return JudgeNegatives, PAIRS_READ if reads_pairs else PAIRS_ENCODED
    return (JudgePairs, _RANGE_PAIRS) if isinstance(judge, SampleJudge) else (ReadPairs, PAIRS_READ)


def _summarize(judge: Judge, folder: Folder, names: list[str]) -> dict[str, Any]:
    """Summarise all parts in a worker, so that the driver does not hold the scores."""
    tables = (read_parquet(folder.localize(name)) for name in names)
    if not isinstance(judge, SplitJudge):
        return summarize_verdicts(judge, tables)
    detections = [read_parquet(folder.localize(name.replace(VERDICTS, DETECTION, 1))) for name in names]
    known = all("probability" in table.column_names for table in detections)
    probabilities = [table["probability"].to_numpy() for table in detections] if known else None
    return summarize_verdicts(judge, tables, probabilities)


def report_verdicts(judge: Judge, info: Mapping[str, Any]) -> None:
    """Print the counts of a judge's verdicts, with warnings.

    Args:
        judge: judge of the verdicts.
        info: manifest info of ``verdicts``.
    """
    what = "pairs" if judge.subject == "pairs" else "candidates"
    share = "sieve-out rate" if judge.name == "sieve" else "share flagged"
    facts = {f"{what} judged": f"{info['verdicts']:,} of {info['queries']:,} queries"}
    if "after" in info:
        facts["of those that"] = f"{info['after']} has judged: {info['before']:,}"
    counts = {
        "kept": "keep",
        "dropped": "drop",
        "weighted less": "down_weight",
        "relabelled": "relabel",
        "queries with a flag": "queries_flagged",
        "kept by the keep-minimum": "kept_by_minimum",
    }
    facts |= {words: f"{info[name]:,}" for words, name in counts.items() if name in info}
    facts[share] = f"{info['flagged_share']:.1%}"
    for name in ("precision", "recall", "f1", "auroc", "calibration_error"):
        value = info.get("detection", {}).get(name)
        if value is not None:
            facts[name.replace("_", " ")] = f"{value:.3f}"
    show_summary(f"verdicts of {judge.name} on {info['split']}", facts)
    rests_on = info.get("detector", {})
    reason = rests_on.get("reason")
    if "warranty" in rests_on:
        sentence = f"{info['after']}: {rests_on['warranty']}"
        if rests_on["num_drops"]:
            say(sentence)
        else:
            warn(f"{judge.name} drops nothing. {sentence}; raydr review collects decisions")
    elif isinstance(judge, CascadeJudge) and "after" in info and not info.get("asked", info["verdicts"]):
        warn(
            f"{judge.name} repeats the verdicts of {info['after']}: none has a probability of a wrong label in "
            f"{list(judge.unsure)}. With a wider range (unsure: [0, 1]) it reads more"
        )
    elif reason:
        warn(inconclusive(judge.name, reason, info["verdicts"]))
    elif doubt := reason_for_doubt(type(judge), info):
        warn(
            f"flags of {judge.name} are likely to be false: {doubt}. Use a stronger model "
            "(judge.guide, judge.model), or look for mismatched pairs first (raydr audit)"
        )
    if info.get("unjudged"):
        warn(
            f"{info['unjudged']:,} candidates have no verdict and stay unchanged: their queries have no positive, or "
            "the miner did not retrieve it (then set judge.scores to model)"
        )
    if info.get("decided") == 0:
        warn(f"no {what} of split {info['split']} have a decision: raydr review collects decisions")
    elif info.get("decided", 0) > info["verdicts"]:
        warn(f"{info['decided'] - info['verdicts']:,} decisions are on pairs, candidates or texts that no longer exist")
    elif judge.subject == "negatives" and info["queries_empty"] and not {"decided", "after"} & info.keys():
        advice = ", or set the judge's keep_minimum" if judge.name == "sieve" else ""
        warn(
            f"{info['queries_empty']:,} of {info['queries']:,} queries have no negative left: training uses random "
            f"passages for them. Mine more candidates (negatives.depth, negatives.miner){advice}"
        )
