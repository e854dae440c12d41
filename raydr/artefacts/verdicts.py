"""Verdicts of one judge on candidate negatives, or on annotated pairs.

Artefact ``verdicts``::

    verdicts/SPLIT/part-*.parquet   verdicts(query_id, passage_id, judge, score, action, weight, truth)
    measures/SPLIT/part-*.parquet   (query_id, passage_id, truth, ...), of judges that decide on all at once: for
                                    ``npc`` the perplexity, and that of a random pair; not with cross-fitted margins
    detection/SPLIT/part-*.parquet  (query_id, passage_id, truth, ...), what those decisions rest on: for ``npc``
                                    the same, the log posterior, and the probability of being mismatched (left out
                                    where no mixture was found); its fit and threshold are in the manifest

``truth`` says whether a candidate is a known false negative: planted, or the positive that a mismatched one has
replaced (for pairs: whether it was mismatched on purpose). It is null where no noise was injected into the split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from raydr.artefacts.context import Context, encoders
from raydr.artefacts.corpus import declare_corpus
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.artefacts.judge_workers import JudgeJob, JudgeNegatives, JudgePairs, JudgeWorker, ReadPairs, decide_pairs
from raydr.artefacts.people_decisions import DecideNegatives, DecidePairs, correct
from raydr.artefacts.scoring import PAIRS_ENCODED, PAIRS_READ, CrossFittedScoring, Scoring, scoring_of
from raydr.artefacts.verdict_tables import DETECTION, MEASURES, VERDICTS, open_earlier
from raydr.component import Neutral
from raydr.console import show_summary, warn
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.parts import feed_parts, range_items
from raydr.distributed.pool import Feed, Pool
from raydr.errors import ConfigError, DataError
from raydr.models.encode_config import EncodeConfig
from raydr.noise.audit_result import inconclusive
from raydr.noise.decisions import Label
from raydr.noise.judges.base import Judge, SampleJudge, SecondJudge, SplitJudge
from raydr.noise.judges.people import DecisionsReader, PeopleJudge
from raydr.noise.verdict_report import summarize_verdicts
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of

#: Training pairs that are judged together: their vectors are held at once.
_RANGE_PAIRS = 5_000


def verdicts(
    context: Context,
    judge: Judge,
    split: str,
    negatives: Node | None,
    reads: Mapping[str, Any],
    earlier: Node | None = None,
) -> Node:
    """What a judge says of the candidates, or of the annotated pairs, of a split.

    Args:
        context: the config.
        judge: the rule.
        split: the split.
        negatives: what is judged; None for judges of pairs.
        reads: whose scores are read: ``model``, or ``models`` and ``folds``, or ``margins``; nothing for the scores
            that the candidates were mined with.
        earlier: the verdicts of the judge that this judge comes after.
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


@artefact("verdicts", version=3, rows=_num_judged)
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
    """Judge with the model that the judge asks, see :func:`judge_labels`.

    Args:
        making, pool, dataset, corpus, margins, negatives, earlier, judge, split, seed, settled, settings: see there.
        models: that have not seen a fold, by its number; then each query is judged by the model of its ``folds``.
        model: that scores, in their place.
        folds: the fold of each query.
        measures: what the judge measures of a pair.
        decisions: checksum of what people have settled.
        arithmetic: of the scores.
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
    """Judge every candidate negative of a split, or every annotated pair, whichever the judge is for.

    Args:
        making: the ``verdicts`` artefact.
        pool: where scores are made.
        dataset: queries and judgments; and the truth where noise was injected.
        corpus: the passages.
        judge: the rule and its settings.
        split: the split.
        seed: draws random samples.
        settings: of the workers.
        scoring: by a cross-encoder for judges that read one, else by a retriever; None takes the scores that the
            candidates were mined with.
        negatives: the ``negatives`` artefact that is judged, whole; None for judges of pairs.
        margins: a ``margins`` artefact in whose place no model scores the pairs.
        settled: whether each label that people have decided is wrong, for judges that tell it.
        earlier: ``verdicts`` of the judge that this one comes after; what that one is sure of is not read.

    Raises:
        ConfigError: the judge needs negatives, or a model, that are not given, or is given some that it has no use for.
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
        if before is not None and isinstance(judge, DecisionsReader):
            before, facts["detector"] = pool.run(correct, before, judged, Corpus(corpus), judge.subject, settled or {})
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
    """Judge by scores, range by range; returns what the decision rests on, for judges that decide on all at once."""
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
    """Who judges, and how many rows together."""
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
            + ("needs negatives: mine some first" if negatives is None else "takes no negatives")
        )
    reads_pairs = judge.reads == "cross_encoder"
    if scoring is None and judge.reads not in ("retriever", "earlier") and margins is None:
        raise ConfigError(f"judge {judge.name} reads a {judge.reads.replace('_', ' ')} and needs a model")
    if scoring is not None and scoring.is_cross_encoder != reads_pairs:
        raise ConfigError(
            f"judge {judge.name} needs a {'cross-encoder' if reads_pairs else 'dual encoder'}, the model at "
            f"{scoring.model.folder} is none"
        )
    if split not in data.splits:
        raise ConfigError(
            f"the data set at {data.artifact.folder} has no split {split!r}; it has {', '.join(data.splits)}"
        )
    if negatives is not None and not negatives.parts(f"negatives/{split}"):
        raise DataError(f"the negatives at {negatives.folder} have none of split {split!r}: mine that split first")


def _summarize(judge: Judge, folder: Folder, names: list[str]) -> dict[str, Any]:
    """Counts over all parts, made by a worker: the driver does not hold the scores that the quality needs."""
    tables = (read_parquet(folder.localize(name)) for name in names)
    if not isinstance(judge, SplitJudge):
        return summarize_verdicts(judge, tables)
    detections = [read_parquet(folder.localize(name.replace(VERDICTS, DETECTION, 1))) for name in names]
    known = all("probability" in table.column_names for table in detections)
    probabilities = [table["probability"].to_numpy() for table in detections] if known else None
    return summarize_verdicts(judge, tables, probabilities)


def report_verdicts(judge: Judge, info: Mapping[str, Any]) -> None:
    """Show what a judge has said, and what is to be thought of.

    Args:
        judge: who.
        info: of the artefact ``verdicts``.
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
        "queries with a flagged one": "queries_flagged",
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
    if "num_decided" in rests_on:
        line = "log-odds = {shift:.2f} + {slope:.2f} x {after}'s".format(**rests_on, after=info["after"])
        show_summary("corrected by people", {"labels decided": f"{rests_on['num_decided']:,}", "line": line})
    reason = rests_on.get("reason")
    if "after" in info and (reason or not info.get("asked", info["verdicts"])):
        why = reason or "it is sure of everything"
        warn(f"{judge.name} goes by what {info['after']} says alone: {why}")
    elif reason:
        warn(inconclusive(judge.name, reason))
    if info.get("unjudged"):
        warn(
            f"{info['unjudged']:,} candidates have no verdict and stay as they are: their queries have no positive, or "
            "the miner did not retrieve it (then set judge.scores to model)"
        )
    if info.get("decided") == 0:
        warn(f"people have decided on no {what} of split {info['split']}: raydr review asks them")
    elif info.get("decided", 0) > info["verdicts"]:
        warn(f"{info['decided'] - info['verdicts']:,} decisions are on pairs, candidates or texts that are not here")
    elif judge.subject == "negatives" and info["queries_empty"] and not {"decided", "after"} & info.keys():
        advice = ", or set the judge's keep_minimum" if judge.name == "sieve" else ""
        warn(
            f"{info['queries_empty']:,} of {info['queries']:,} queries have no negative left: training fills them up "
            f"with random passages. Mine deeper{advice}"
        )
