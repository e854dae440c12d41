"""Searching over settings: the data and what trials share are made, then the trials run, then the best is confirmed."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from raydr.artifacts import MANIFEST, Artifact, Identity
from raydr.config import RunConfig
from raydr.console import say, show_summary, show_table
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError, ConfigError
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.noise.judges.base import Judge
from raydr.noise.judges.sieve import Sieve
from raydr.pipelines.job import Job, log_made
from raydr.pipelines.tune_inputs import Upstream, Workshop, uses_candidates
from raydr.pipelines.tune_training import TrainingObjective
from raydr.stages.resources import cluster_capacity
from raydr.stages.train import training_key
from raydr.stages.tune import Search, search
from raydr.stages.worker_group import training_dtype
from raydr.storage import Folder
from raydr.tuning.distributions import as_text
from raydr.tuning.proposals import check_proposals, describe, num_trials
from raydr.tuning.resources import Split, split_resources
from raydr.tuning.schedule import Schedule, plan_schedule
from raydr.tuning.space import Space
from raydr.workspace import BM25, TRAINED, UNTRAINED

#: Raised when a search gives other trials for the same settings.
VERSION = 1
#: Where what trials read is made, below the search.
UPSTREAM = "upstream"


@dataclass(frozen=True)
class TunePlan:
    """A search as far as it can be checked without data and Ray."""

    space: Space
    schedule: Schedule
    total: int

    @property
    def nested(self) -> bool:
        """Whether trials run Ray Train."""
        return self.space.config.train.num_workers != 1


def plan_search(space: Space) -> TunePlan:
    """Check what can be checked before anything starts.

    Raises:
        ConfigError: the space, its schedule or the number of its trials make no sense, or trials need what the config
            has not.
    """
    schedule = plan_schedule(space)
    total = num_trials(space)
    check_proposals(space)
    for values, config in space.corners():
        _check_training(config, values)
    return TunePlan(space, schedule, total)


def _check_training(config: RunConfig, values: dict[str, Any]) -> None:
    where = "".join(f" with {key} = {as_text(value)}" for key, value in values.items())
    judging = [judge.name for judge in config.judge.judges if judge.subject == "negatives"]
    if judging and not uses_candidates(config):
        raise ConfigError(
            f"the space{where} judges hard negatives with {judging[0]}, and the training has none: set a section "
            "negatives and train.num_hard_negatives in the config, for example --set negatives.miner=bm25 --set "
            "train.num_hard_negatives=4"
        )


def run_tune(job: Job, plan: TunePlan, name: str) -> Artifact:
    """Run a search, or go on with it.

    Args:
        job: the run.
        plan: what is searched.
        name: of the search in the working folder.

    Raises:
        ConfigError: a trial does not fit into Ray's resources, or the data have no dev split.
        TuningError: no trial was trained to its end.
    """
    space = plan.space
    split = _split(job, plan)
    _say_plan(plan, split)
    # The data are what trials start from: only the search is done anew.
    data = replace(job, config=space.config, overwrite=False)
    data.prepare()
    if job.config.inject_noise is not None:
        data.inject_noise()
    _check_dev(data)
    output = job.workspace.root / "tune" / name
    dtype, reason = training_dtype(space.config.train, space.config.train.dtype)
    say(f"trials train in {dtype}: {reason}")
    upstream = _upstream(data, plan, output / UPSTREAM)
    identity = _identity(plan, data, upstream, dtype)
    work = Search(space, plan.schedule, split, plan.total, identity, space.config)
    objective = TrainingObjective(_trial_config(plan, dtype, output), data.corpus, _workshop(upstream), split)
    with job.tracker.stage(f"tune-{name}", {"raydr.search": identity.fingerprint}) as tracker:
        tracker.log_params(space.settings.model_dump(mode="json"))
        made = search(work, objective, output, tracker, job.overwrite)
        log_made(tracker, made)
    return made


def _split(job: Job, plan: TunePlan) -> Split:
    remote = bool(job.config.ray.address or os.environ.get("RAY_ADDRESS"))
    wanted = plan.space.settings.trials.concurrency
    return split_resources(plan.space.config.train, cluster_capacity(), plan.total, wanted, may_grow=remote)


def _say_plan(plan: TunePlan, split: Split) -> None:
    space, schedule = plan.space, plan.schedule
    rows = [(key, as_text(space.defaults[key]), values) for key, values in describe(space.parameters)]
    show_table(f"space {space.name}: {space.settings.description}".rstrip(": "), ["setting", "default", "tried"], rows)
    search_settings = space.settings.search
    say(f"{plan.total} trials ({search_settings.algorithm}), trial 0 is the default; {split.describe()}")
    if schedule.name == "none":
        say(f"all are trained for {schedule.max_epochs} epochs")
    else:
        rungs = schedule.rungs(space.settings.scheduler.reduction_factor) if schedule.name == "asha" else []
        say(
            f"{schedule.name}: nothing is stopped in the first {schedule.grace_epochs} of {schedule.max_epochs} epochs "
            f"(the longest warm-up of the space is {schedule.longest_warmup})"
            + (f"; compared after {', '.join(map(str, rungs))}" if rungs else "")
        )


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
    train = config.train.model_copy(update={"dtype": dtype, "share_warmup": tuple(range(1, longest + 1)) or None})
    return config.model_copy(update={"train": train, "workdir": output.url})


def _workshop(upstream: Upstream) -> Any:
    import ray

    return ray.remote(num_cpus=0)(Workshop).remote(upstream)


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
    judges = [judge for one in corners for judge in one.judge.judges]
    return Upstream(config, root, job.dataset, job.corpus, run, _retriever(job, judges))


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
            "judge": config.judge.model_dump(mode="json"),
            "space": settings.space,
            "search": settings.search.model_dump(mode="json") | {"num_trials": plan.total},
            "scheduler": settings.scheduler.model_dump(mode="json") | {"grace_epochs": plan.schedule.grace_epochs},
        },
        inputs=inputs,
    )


def show_result(made: Artifact) -> None:
    """Print what a search came to."""
    show_summary("search", {"best": made.info["best"], "at": str(made.folder)})
