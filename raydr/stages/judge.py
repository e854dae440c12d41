"""Verdicts of one judge on candidate negatives, or on annotated pairs.

Artefact ``verdicts``::

    verdicts/SPLIT/part-*.parquet   verdicts(query_id, passage_id, judge, score, action, weight, truth)
    measures/SPLIT/part-*.parquet   (query_id, passage_id, truth, ...), of judges that decide on all at once: for
                                    ``npc`` the perplexity, and that of a random pair
    detection/SPLIT/part-*.parquet  (query_id, passage_id, truth, ...), what those decisions rest on: for ``npc``
                                    the same, the log posterior, and the probability of being mismatched (left out
                                    where no mixture was found); its fit and threshold are in the manifest

``truth`` says whether a candidate is a known false negative: planted, or the positive that a mismatched one has
replaced (for pairs: whether it was mismatched on purpose). It is null where no noise was injected into the split.
"""

from __future__ import annotations

from typing import Any

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet
from raydr.errors import ConfigError, DataError
from raydr.noise.judges.base import Judge, SampleJudge, SplitJudge
from raydr.noise.verdict_report import summarize_verdicts
from raydr.runtime.console import say, show_summary, warn
from raydr.stages.tasks import fetch
from raydr.stages.units import Scoring, plan_scoring, plan_units, run_units
from raydr.store.artifact import Artifact, Building, Identity, begin
from raydr.store.folder import Folder

#: Raised when the same settings lead to other parts.
VERSION = 3
#: Candidates, or pairs, that are judged together: their vectors are held at once.
_UNIT_CANDIDATES = 20_000
#: The same for a cross-encoder, which reads every pair anew: minutes of work, of which a killed worker loses one unit.
_UNIT_READ = 2_000
_UNIT_PAIRS = 5_000


def judge(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    judge: Judge,
    output: Folder,
    negatives: Folder | None = None,
    model: Folder | None = None,
    overwrite: bool = False,
) -> Artifact:
    """Judge every candidate negative of a split, or every annotated pair, whichever the judge is for.

    Args:
        config: ``encode`` says with which workers and arithmetic scores are made, ``seed`` draws random samples.
        split: the split.
        dataset: queries and judgments; and the truth where noise was injected.
        corpus: the passages.
        judge: the rule and its settings.
        output: where the ``verdicts`` artefact goes.
        negatives: the ``negatives`` artefact that is judged, whole; None for judges of pairs.
        model: whose scores are judged: a ``cross_encoder`` artefact for judges that read one, else a ``model``; None
            takes the scores that the candidates were mined with.
        overwrite: replace what is at ``output``.

    Raises:
        ConfigError: the judge needs negatives, or a model, that are not given, or is given some that it has no use for.
        DataError: the inputs were not made for each other.
    """
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    data.require_corpus(passages.artifact)
    if (negatives is None) != (judge.subject == "pairs"):
        raise ConfigError(
            f"judge {judge.name} judges {judge.subject} and "
            + ("needs negatives: mine some first" if negatives is None else "takes no negatives")
        )
    if model is None and judge.reads != "retriever":
        raise ConfigError(f"judge {judge.name} reads a {judge.reads.replace('_', ' ')} and needs a model")
    if split not in data.splits:
        raise ConfigError(f"the data set at {dataset} has no split {split!r}; it has {', '.join(data.splits)}")
    scoring = plan_scoring(config, model, judge.reads == "cross_encoder") if model is not None else None
    identity = _identity(config, split, data, judge, negatives, scoring)
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"verdicts {output}: already there with the same fingerprint, reused")
            return state
        if judge.subject == "pairs":
            assert scoring is not None
            facts = _judge_pairs(config, split, data, corpus, judge, scoring, state)
            num_rows = None
        else:
            assert negatives is not None
            num_rows = _judge_negatives(config, split, data, corpus, judge, scoring, negatives, state)
            facts = {}
        summary = _summarize(judge, split, state)
        if num_rows is not None:
            summary["unjudged"] = num_rows - summary["verdicts"]
        info = {"judge": judge.name, "subject": judge.subject, "split": split, **facts, **summary}
        made = state.finish(info, run_config=config.model_dump(mode="json"))
    _report(judge, made)
    return made


def _identity(
    config: RunConfig, split: str, data: Dataset, judge: Judge, negatives: Folder | None, scoring: Scoring | None
) -> Identity:
    settings: dict[str, Any] = {"split": split, "judge": judge.fingerprint_settings()}
    inputs = {"dataset": data.fingerprint, "corpus": data.corpus_fingerprint}
    if negatives is not None:
        inputs["negatives"] = Artifact.open(negatives, "negatives").fingerprint
    if scoring is not None:
        settings |= scoring.identity
        inputs["model"] = scoring.fingerprint
    if isinstance(judge, SampleJudge):
        settings["seed"] = config.seed
    if isinstance(judge, SplitJudge):
        settings["measures"] = list(judge.measures)
    return Identity(kind="verdicts", version=VERSION, config=settings, inputs=inputs)


def _judge_negatives(
    config: RunConfig,
    split: str,
    data: Dataset,
    corpus: Folder,
    judge: Judge,
    scoring: Scoring | None,
    negatives: Folder,
    state: Building,
) -> int:
    """Judge all candidates; returns how many there are."""
    from raydr.stages.judge_negatives import JudgeNegatives, NegativesJob

    candidates = Artifact.open(negatives, "negatives")
    under = f"negatives/{split}"
    if not candidates.parts(under):
        raise DataError(f"the negatives at {negatives} have none of split {split!r}: mine that split first")
    job = NegativesJob(judge, split, data.artifact.folder, corpus, negatives, state.folder, scoring)
    units = plan_units(candidates, under, _UNIT_READ if judge.reads == "cross_encoder" else _UNIT_CANDIDATES)
    run_units(config, state, units, job.name_of, JudgeNegatives, job, f"judge: {judge.name}")
    return candidates.rows(under)


def _judge_pairs(
    config: RunConfig,
    split: str,
    data: Dataset,
    corpus: Folder,
    judge: Judge,
    scoring: Scoring,
    state: Building,
) -> dict[str, Any]:
    """Judge all pairs; returns what the decision rests on, for judges that decide on all at once."""
    import ray

    from raydr.stages.judge_pairs import JudgePairs, PairsJob, decide_pairs
    from raydr.stages.judge_read_pairs import ReadPairs

    job = PairsJob(judge, split, data.artifact.folder, corpus, state.folder, scoring, config.seed)
    worker, rows = (JudgePairs, _UNIT_PAIRS) if isinstance(judge, SampleJudge) else (ReadPairs, _UNIT_READ)
    units = plan_units(data.artifact, f"qrels/{split}", rows)
    run_units(config, state, units, job.name_of, worker, job, f"judge: {judge.name}")
    if not isinstance(judge, SplitJudge):
        return {}
    task = ray.remote(num_cpus=1)(decide_pairs)
    names = sorted(job.name_of(unit) for unit in units)
    parts, facts = fetch(task.remote(judge, state.folder, names, split))
    state.done.update(parts)
    return {"detector": facts}


def _summarize(judge: Judge, split: str, state: Building) -> dict[str, Any]:
    """Counts over all parts, made by a worker: the driver does not hold the scores that the quality needs."""
    import ray

    def read(judge: Judge, folder: Folder, names: list[str]) -> dict[str, Any]:
        tables = (read_parquet(folder.localize(name)) for name in names)
        if not isinstance(judge, SplitJudge):
            return summarize_verdicts(judge, tables)
        detections = [read_parquet(folder.localize(name.replace("verdicts/", "detection/", 1))) for name in names]
        known = all("probability" in table.column_names for table in detections)
        probabilities = [table["probability"].to_numpy() for table in detections] if known else None
        return summarize_verdicts(judge, tables, probabilities)

    names = sorted(name for name in state.done if name.startswith(f"verdicts/{split}/"))
    summary: dict[str, Any] = fetch(ray.remote(num_cpus=1)(read).remote(judge, state.folder, names))
    return summary


def _report(judge: Judge, made: Artifact) -> None:
    info = made.info
    what = "pairs" if judge.subject == "pairs" else "candidates"
    share = "sieve-out rate" if judge.name == "sieve" else "share flagged"
    facts = {
        f"{what} judged": f"{info['verdicts']:,} of {info['queries']:,} queries",
        "kept": f"{info['keep']:,}",
        "dropped": f"{info['drop']:,}",
        "weighted less": f"{info['down_weight']:,}",
        "relabelled": f"{info['relabel']:,}",
        share: f"{info['flagged_share']:.1%}",
        "queries with a flagged one": f"{info['queries_flagged']:,}",
    }
    if "kept_by_minimum" in info:
        facts["kept by the keep-minimum"] = f"{info['kept_by_minimum']:,}"
    for name in ("precision", "recall", "f1", "auroc", "calibration_error"):
        value = info.get("detection", {}).get(name)
        if value is not None:
            facts[name.replace("_", " ")] = f"{value:.3f}"
    show_summary(f"verdicts of {judge.name} on {info['split']}", facts | {"at": str(made.folder)})
    reason = info.get("detector", {}).get("reason")
    if reason:
        warn(f"judge {judge.name} keeps all pairs: {reason}")
    if info.get("unjudged"):
        warn(
            f"{info['unjudged']:,} candidates have no verdict and stay as they are: their queries have no positive, or "
            "the miner did not retrieve it (then set judge.scores to model)"
        )
    if judge.subject == "negatives" and info["queries_empty"]:
        advice = ", or set the judge's keep_minimum" if judge.name == "sieve" else ""
        warn(
            f"{info['queries_empty']:,} of {info['queries']:,} queries have no negative left: training fills them up "
            f"with random passages. Mine deeper{advice}"
        )
