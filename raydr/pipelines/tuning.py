"""Searching over settings: the data and what trials share are made, then the trials run, then the best is confirmed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from raydr.artifacts import MANIFEST, Artifact, Identity
from raydr.config import RunConfig
from raydr.console import say, show_table
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError, ConfigError
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.noise.judges.base import Judge
from raydr.noise.judges.sieve import Sieve
from raydr.pipelines.job import Job, log_made
from raydr.pipelines.tune_confirm import BEST, DEFAULT, Confirming
from raydr.pipelines.tune_inputs import Upstream, Workshop, uses_candidates
from raydr.pipelines.tune_outcome import report, search_result, show_result
from raydr.pipelines.tune_plan import TunePlan, show_plan, split_for
from raydr.pipelines.tune_training import TrainingObjective
from raydr.reporting.tuning_report import Confirmation, confirmation_rows
from raydr.stages.train import training_key
from raydr.stages.tune import Search, search
from raydr.stages.worker_group import training_dtype
from raydr.storage import Folder
from raydr.tracking import Tracker
from raydr.tuning.result import SearchResult
from raydr.tuning.trial_config import with_values
from raydr.workspace import BM25, TRAINED, UNTRAINED

#: Raised when a search gives other trials for the same settings.
VERSION = 1
#: Folders below the search: what trials read, and what its confirmation makes.
UPSTREAM, CONFIRM = "upstream", "confirm"


@dataclass(frozen=True)
class TuneOutcome:
    """What ``raydr tune`` came to.

    Args:
        search: the artefact: its trials, and the best config.
        result: the trials and what mattered.
        confirmations: the best against the default, by split; empty if that was not asked for.
    """

    search: Artifact
    result: SearchResult
    confirmations: list[Confirmation]


def run_tune(job: Job, plan: TunePlan, name: str) -> TuneOutcome:
    """Run a search, or go on with it; then report it, and confirm its best if the space asks for that.

    Args:
        job: the run.
        plan: what is searched.
        name: of the search in the working folder.

    Raises:
        ConfigError: a trial does not fit into Ray's resources, or the data have no dev split.
        TuningError: no trial was trained to its end.
    """
    import ray

    space = plan.space
    split = split_for(plan, job.config)
    show_plan(plan, split)
    # The data are what trials start from: only the search is done anew.
    data = replace(job, config=space.config, overwrite=False)
    data.prepare()
    if space.config.inject_noise is not None:
        data.inject_noise()
    _check_dev(data)
    output = job.workspace.root / "tune" / name
    dtype, reason = training_dtype(space.config.train, space.config.train.dtype)
    say(f"trials train in {dtype}: {reason}")
    upstream = _upstream(data, plan, output / UPSTREAM)
    identity = _identity(plan, data, upstream, dtype)
    work = Search(name, space, plan.schedule, split, plan.total, plan.facts(split), identity, plan.judged)
    workshop = ray.remote(num_cpus=0)(Workshop).remote(upstream)
    objective = TrainingObjective(
        _trial_config(plan, dtype, output), data.corpus, workshop, split, plan.schedule.name == "pbt"
    )
    with job.tracker.stage(f"tune-{name}", {"raydr.search": identity.fingerprint}) as tracker:
        tracker.log_params(space.settings.model_dump(mode="json"))
        made = search(work, objective, output, tracker, job.overwrite)
        ray.kill(workshop)
        log_made(tracker, made)
        result = search_result(plan, made)
        show_result(result)
        confirmations = _confirm(data, plan, result, upstream, output, tracker)
        report(result, confirmations, made, tracker)
    return TuneOutcome(made, result, confirmations)


def _confirm(
    job: Job, plan: TunePlan, result: SearchResult, upstream: Upstream, output: Folder, tracker: Tracker
) -> list[Confirmation]:
    """The best config and the default trained anew, if the space asks for it and the two differ."""
    space, num_seeds = plan.space, plan.space.settings.confirm.num_seeds
    if not num_seeds:
        return []
    if result.best.number == 0:
        say("the best trial is the default itself: there is no gain to confirm")
        return []
    configs = {DEFAULT: space.config, BEST: with_values(space.config, result.best.values)}
    confirming = Confirming(
        configs,
        {system: upstream.make(config) for system, config in configs.items()},
        [space.config.seed + 1 + at for at in range(num_seeds)],
        Artifact.open(job.corpus, "corpus"),
        Artifact.open(job.dataset, "dataset"),
        output / CONFIRM,
        tracker,
    )
    found = confirming.run()
    for one in found:
        columns, rows = confirmation_rows(one, by_seed=False)
        title = f"{one.split}: trained anew with {num_seeds} seeds, means over queries and seeds"
        show_table(title, columns, rows)
    return found


def _check_dev(job: Job) -> None:
    data, split = Dataset.open(job.dataset), job.config.data.dev_split
    if split not in data.splits:
        raise ConfigError(
            f"trials are compared on the dev split {split!r}, which the data set at {job.dataset} has not; it has "
            f"{', '.join(data.splits)}: set data.dev_split"
        )


def _trial_config(plan: TunePlan, dtype: str, output: Folder) -> RunConfig:
    """The default trial's config: warm-ups are shared below the search, and the arithmetic is the same for all."""
    config, longest = plan.space.config, plan.schedule.longest_warmup
    changes = {
        "dtype": dtype,
        "share_warmup": tuple(range(1, longest + 1)) or None,
        # A trial has its own share of the CPUs and no more.
        "dev": config.train.dev.model_copy(update={"beside": False}),
    }
    train = config.train.model_copy(update=changes)
    return config.model_copy(update={"train": train, "workdir": output.url})


def _upstream(job: Job, plan: TunePlan, root: Folder) -> Upstream:
    """What all trials read: the ranked passages that candidates are taken from, and the model that judges ask."""
    config = job.config
    corners = [one for _, one in plan.space.corners()]
    run = None
    if any(uses_candidates(one) for one in corners):
        assert config.negatives is not None
        split = config.data.train_split
        if config.negatives.miner == BM25:
            job.search_bm25(split)
        if config.negatives.miner != "source":
            run = job.workspace.run(split, job.candidate_source)
    judges = [judge for one in corners for judge in one.judge.judges] if plan.judged else []
    return Upstream(config, root, job.dataset, job.corpus, run, _retriever(job, judges), plan.judged)


def _retriever(job: Job, judges: list[Judge]) -> Folder | None:
    """The model that judges ask; trained as the config says if it is not there."""
    asking = [
        one
        for one in judges
        if one.reads == "random_sample"
        or (one.reads == "retriever" and (isinstance(one, Sieve) or job.config.judge.scores == "model"))
    ]
    if not asking:
        return None
    name = job.config.judge.model
    folder = job.workspace.model(name)
    if folder.exists(MANIFEST):
        say(f"judge {asking[0].name} asks the model {folder}")
        return folder
    if name == UNTRAINED:
        return job.untrained().folder
    if name != TRAINED:
        raise ArtifactError(
            f"judge.model {name!r} is not in {job.workspace.root}/models: train it first, or take another"
        )
    say(f"judge {asking[0].name} asks a trained retriever: it is trained first, with the unjudged negatives")
    if uses_candidates(job.config):
        job.mine(job.config.data.train_split)
    return job.train(TRAINED).folder


def _identity(plan: TunePlan, job: Job, upstream: Upstream, dtype: str) -> Identity:
    """What the trials depend on. Which are stopped also depends on the order in which they end, which nobody knows."""
    config = plan.space.config
    settings = plan.space.settings
    key = training_key(config)
    key["train"] |= {"dtype": dtype}
    data = Dataset.open(job.dataset)
    inputs = {
        "dataset": data.fingerprint,
        "corpus": data.corpus_fingerprint,
        "checkpoint": checkpoint_fingerprint(config.model),
    }
    if upstream.run is not None:
        inputs["run"] = Artifact.open(upstream.run, "run").fingerprint
    if upstream.model is not None:
        inputs["retriever"] = Artifact.open(upstream.model, "model").fingerprint
    return Identity(
        kind="search",
        version=VERSION,
        config={
            **key,
            "negatives": config.negatives.model_dump(mode="json") if config.negatives is not None else None,
            "judge": config.judge.model_dump(mode="json") if plan.judged else None,
            "space": settings.space,
            "search": settings.search.model_dump(mode="json") | {"num_trials": plan.total},
            "scheduler": settings.scheduler.model_dump(mode="json") | {"grace_epochs": plan.schedule.grace_epochs},
        },
        inputs=inputs,
    )
