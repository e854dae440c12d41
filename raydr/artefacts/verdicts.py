"""Verdicts of a judge on candidate negatives, or on annotated pairs.

Artefact ``verdicts``::

    verdicts/SPLIT/part-*.parquet   verdicts(query_id, passage_id, judge, score, action, weight, truth)
    measures/SPLIT/part-*.parquet   (query_id, passage_id, truth, ...), of judges that decide on all pairs at once: for
                                    ``npc`` the perplexity, and that of a random pair; not with cross-fitted margins
    detection/SPLIT/part-*.parquet  (query_id, passage_id, truth, ...), the basis of those decisions: for ``npc``
                                    the same, the log posterior, and P(mismatched) (omitted without a mixture);
                                    fit and threshold are in the manifest

``truth`` is whether a candidate is a known false negative (injected, or the positive that a mismatched one replaced),
or whether a pair was mismatched on purpose. It is null without injected noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from raydr.artefacts.context import Context, encoders
from raydr.artefacts.dataset import declare_corpus, declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.judge_workers import JudgeJob, JudgeNegatives, JudgePairs, JudgeWorker, ReadPairs, decide_pairs
from raydr.artefacts.judged import DETECTION, MEASURES, VERDICTS, open_earlier
from raydr.artefacts.people_decisions import DecideNegatives, DecidePairs, warrant
from raydr.artefacts.scoring import PAIRS_ENCODED, PAIRS_READ, CrossFittedScoring, Scoring, scoring_of
from raydr.component import Neutral
from raydr.console import say, show_summary, warn
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.tables import read_parquet
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.parts import feed_parts, range_items
from raydr.distributed.pool import Feed, Pool
from raydr.errors import ConfigError, DataError
from raydr.models.encode_config import EncodeConfig
from raydr.noise.audit_result import inconclusive
from raydr.noise.decisions import Label
from raydr.noise.judges.base import Judge, SampleJudge, SecondJudge, SplitJudge
from raydr.noise.judges.calibrated import CalibratedJudge
from raydr.noise.judges.people import DecisionsReader, PeopleJudge
from raydr.noise.verdict_report import reason_for_doubt, summarize_verdicts
from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of

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
        earlier: verdicts of the judge before this one.
    """
    config, measured = context.config, "margins" in reads
    asks_model = bool(reads) and not measured
    settled = context.facts.settled(judge, split) if isinstance(judge, DecisionsReader) else None
    return give_verdicts.node(
        f"{context.place}judge-{judge.name}-{split}",
        dataset=declare_dataset(context),
        corpus=declare_corpus(context),
        negatives=negatives,
        earlier=earlier,
        **{"models": {}} | dict(reads),
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
def give_verdicts(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    models: Mapping[str, Artifact],
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
    settled: Annotated[Mapping[Label, bool], Neutral],
    settings: Annotated[EncodeConfig, Neutral],
    arithmetic: Arithmetic | None = None,
) -> dict[str, Any]:
    """Judge by the model that the judge needs, see :func:`judge_labels`.

    Args:
        making, pool, dataset, corpus, margins, negatives, earlier, judge, split, seed, settled, settings: see there.
        models: models by the fold that they have not seen; each query is judged by that of its fold.
        model: scoring model, if there are no ``models``.
        folds: fold of each query.
        measures: names of the judge's measures.
        decisions: checksum of settled decisions.
        arithmetic: arithmetic of the scores.
    """
    scoring: Scoring | None = None
    if arithmetic is not None:
        first, *others = [model] if model is not None else list(models.values())
        scoring = scoring_of(pool, first, settings, arithmetic)
        if folds is not None:
            queries = Dataset(dataset)
            scoring = CrossFittedScoring(**vars(scoring), others=tuple(others), folds=folds, data=queries, split=split)
    return judge_labels(
        making, pool, dataset, corpus, judge=judge, split=split, seed=seed, settings=settings, scoring=scoring,
        negatives=negatives, margins=margins, settled=settled, earlier=earlier,
    )  # fmt: skip


def judge_labels(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    *,
    judge: Judge,
    split: str,
    seed: int,
    settings: EncodeConfig,
    scoring: Scoring | None,
    negatives: Artifact | None,
    margins: Artifact | None = None,
    settled: Mapping[Label, bool] | None = None,
    earlier: Artifact | None = None,
) -> dict[str, Any]:
    """Judge each candidate negative of a split, or each annotated pair, by the judge's subject.

    Args:
        making: ``verdicts`` artefact to make.
        pool: pool for the scores.
        dataset: queries, judgments, and the truth of injected noise.
        corpus: corpus of the passages.
        judge: judge with its settings.
        split: split to judge.
        seed: seed of random samples.
        settings: settings of the workers.
        scoring: scoring by a cross-encoder or retriever, as the judge needs; None: the miner's scores.
        negatives: whole ``negatives`` artefact to judge; None for judges of pairs.
        margins: ``margins`` artefact that replaces a model.
        settled: whether each decided label is wrong, for judges that read decisions.
        earlier: ``verdicts`` of the judge before this one, whose sure verdicts are skipped.

    Raises:
        ConfigError: negatives or a model are missing, or given but unused.
        DataError: the inputs were not made for each other.
    """
    judged = Dataset(dataset)
    judged.require_corpus(corpus)
    _check(judge, split, judged, scoring, negatives, margins)
    if scoring is not None:
        scoring.tell("judge")
    facts: dict[str, Any] = {"judge": judge.name, "settings": judge.model_dump(mode="json"), "subject": judge.subject}
    if margins is not None:
        assert isinstance(judge, SplitJudge)
        parts, facts["detector"] = pool.run(decide_pairs, judge, making.folder, margins.folder, margins.parts(MEASURES))
        making.done.update(parts)
    else:
        before = None if earlier is None else pool.run(open_earlier, earlier, split)
        if before is not None and isinstance(judge, CalibratedJudge):
            before, facts["detector"] = pool.run(warrant, before, judged, Corpus(corpus), judge, settled or {})
        facts |= _score(
            making,
            pool,
            JudgeJob(
                judge, split, judged, Corpus(corpus), negatives, scoring, seed, making.folder, settled or {}, before
            ),
            settings,
        )
    names = sorted(name for name in making.done if name.startswith(f"{VERDICTS}/{split}/"))
    info: dict[str, Any] = facts | {"split": split} | pool.run(_summarize, judge, making.folder, names)
    if isinstance(judge, PeopleJudge):
        info["decided"] = len(settled or {})
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


def _check(
    judge: Judge,
    split: str,
    data: Dataset,
    scoring: Scoring | None,
    negatives: Artifact | None,
    margins: Artifact | None,
) -> None:
    if (negatives is None) != (judge.subject == "pairs"):
        raise ConfigError(
            f"judge {judge.name} judges {judge.subject} and "
            + ("needs negatives: mine some first" if negatives is None else "cannot judge negatives")
        )
    reads_pairs = judge.reads == "cross_encoder"
    if scoring is None and judge.reads not in ("retriever", "earlier") and margins is None:
        raise ConfigError(f"judge {judge.name} needs a model: it reads a {judge.reads.replace('_', ' ')}")
    if scoring is not None and scoring.is_cross_encoder != reads_pairs:
        raise ConfigError(
            f"judge {judge.name} needs a {'cross-encoder' if reads_pairs else 'dual encoder'}, but the model at "
            f"{scoring.model.folder} is none"
        )
    if split not in data.splits:
        raise ConfigError(
            f"the data set at {data.artifact.folder} has no split {split!r}; it has {', '.join(data.splits)}"
        )
    if negatives is not None and not negatives.parts(f"negatives/{split}"):
        raise DataError(f"the negatives at {negatives.folder} have none of split {split!r}: mine that split first")


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
    elif "after" in info and not info.get("asked", info["verdicts"]):
        warn(f"{judge.name} repeats the verdicts of {info['after']}: no verdict is doubtful")
    elif reason:
        warn(inconclusive(judge.name, reason))
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
            f"passages for them. Mine deeper{advice}"
        )
