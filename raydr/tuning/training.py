"""The search over one training: a trial makes what it reads, trains, and tells its dev measure after each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError
from raydr.graph.job import Job
from raydr.graph.retrieval_steps import trainers
from raydr.graph.steps import Step
from raydr.graph.workspace import BM25, TRAINED, UNTRAINED
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.noise.judges.base import Judge
from raydr.noise.judges.sieve import Sieve
from raydr.runtime.console import say
from raydr.runtime.tracking import Tracker
from raydr.stages.failures import worker_errors
from raydr.stages.lone_worker import POPULATION, Alone, newest_state
from raydr.stages.tasks import fetch
from raydr.stages.train import train, training_key
from raydr.store.artifact import MANIFEST, Artifact, Identity
from raydr.store.folder import Folder
from raydr.tuning.confirm import Confirming, Runs
from raydr.tuning.inputs import TrainingInputs, Upstream, Workshop
from raydr.tuning.objective import MODEL, RowsSoFar
from raydr.tuning.plan import TunePlan
from raydr.tuning.resources import Split
from raydr.tuning.task import VERSION, Task
from raydr.tuning.trial import streamed, training_rows
from raydr.tuning.trial_config import with_values

#: What trials read, below the search.
UPSTREAM = "upstream"


@dataclass(frozen=True)
class TrainingObjective:
    """See :class:`raydr.tuning.objective.Objective`.

    Args:
        config: of the default trial, with its arithmetic resolved.
        corpus: of the run.
        workshop: actor that makes what trainings read.
        split: of the resources.
        population: trials are members of a population.
    """

    config: RunConfig
    corpus: Folder
    workshop: Any
    split: Split
    population: bool

    def run(self, values: Mapping[str, Any], place: Folder, start: Folder | None) -> Iterator[RowsSoFar]:
        config = with_values(self.config, values)
        inputs: TrainingInputs = fetch(self.workshop.make.remote(config))
        # A group's workers book their own resources; a single process is the task itself.
        alone = Alone(self.population, start) if self.split.alone else None
        work = streamed(training_rows, self.split.cpus if alone else 0, self.split.gpus if alone else 0)
        with worker_errors():
            yield from work(config, inputs.dataset, self.corpus, inputs.negatives, place / MODEL, alone)

    def state(self, place: Folder) -> Folder | None:
        return newest_state(place / f"{MODEL}.training" / POPULATION) if self.population else None

    def forget(self, ended: Mapping[str, Any], running: Sequence[Mapping[str, Any]]) -> None:
        """All that a training makes lies in its trial's folder."""


@dataclass
class TrainingConfirming(Confirming):
    """Trains the default and the best anew.

    Args:
        inputs: what each of their trainings reads, by system.
    """

    inputs: Mapping[str, TrainingInputs] = field(default_factory=dict)

    def runs(self) -> Runs:
        found: Runs = {split: {} for split in self.splits}
        for name, system, config in self.names():
            model = self._train(name, config, self.inputs[system])
            index = self.book.index(name, config, model)[1]
            for split in self.splits:
                queries = self.book.queries(name, split, config, model)
                found[split][name] = self.book.search(name, split, config, index, queries)
        return found

    def _train(self, name: str, config: RunConfig, inputs: TrainingInputs) -> Step:
        read = {"dataset": Artifact.open(inputs.dataset, "dataset").fingerprint}
        if inputs.negatives is not None:
            read["negatives"] = Artifact.open(inputs.negatives, "negatives").fingerprint
        settings = {**training_key(config), **read, "checkpoint": checkpoint_fingerprint(config.model)}

        def fit(output: Folder, _: dict[str, Folder]) -> Artifact:
            handle = self.trackers.get(step.key)
            return train(config, inputs.dataset, self.corpus.folder, output, inputs.negatives, handle)

        step = self.book.add(f"{name}/train", "model", settings, {}, fit, trainers(config))
        return step


def training_task(job: Job, plan: TunePlan, split: Split, output: Folder, dtype: str) -> Task:
    """Make what all trials read, and say what one does.

    Args:
        job: the run, with its data prepared.
        plan: what is searched.
        split: of the resources.
        output: the folder of the search.
        dtype: the arithmetic of all trials.
    """
    import ray

    upstream = _upstream(job, plan, output / UPSTREAM)
    workshop = ray.remote(num_cpus=0)(Workshop).remote(upstream)
    config = _trial_config(plan, dtype, output)

    def confirming(
        configs: Mapping[str, RunConfig], seeds: Sequence[int], root: Folder, tracker: Tracker
    ) -> TrainingConfirming:
        return TrainingConfirming(
            configs,
            seeds,
            Artifact.open(job.corpus, "corpus"),
            Artifact.open(job.dataset, "dataset"),
            root,
            tracker,
            inputs={system: upstream.make(own) for system, own in configs.items()},
        )

    return Task(
        TrainingObjective(config, job.corpus, workshop, split, plan.schedule.name == "pbt"),
        _identity(plan, job, upstream, dtype),
        confirming,
        lambda: ray.kill(workshop),
    )


def _trial_config(plan: TunePlan, dtype: str, output: Folder) -> RunConfig:
    """The default trial's config: warm-ups are shared below the search, and the arithmetic is the same for all."""
    config, longest = plan.space.config, plan.schedule.longest_warmup
    changes = {
        "dtype": dtype,
        "share_warmup": tuple(range(1, longest + 1)) or None,
    }
    train = config.train.model_copy(update=changes)
    return config.model_copy(update={"train": train, "workdir": output.url})


def _upstream(job: Job, plan: TunePlan, root: Folder) -> Upstream:
    """What all trials read: the ranked passages that candidates are taken from, and the model that judges ask."""
    config = job.config
    corners = [one for _, one in plan.space.corners()]
    run = None
    if any(one.draws_candidates for one in corners):
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
    if job.config.draws_candidates:
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
            "negatives": config.negatives.fingerprint_settings() if config.negatives is not None else None,
            "judge": config.judge.fingerprint_settings() if plan.judged else None,
            "space": settings.space,
            "search": settings.search.fingerprint_settings() | {"num_trials": plan.total},
            "scheduler": settings.scheduler.fingerprint_settings() | {"grace_epochs": plan.schedule.grace_epochs},
        },
        inputs=inputs,
    )
