"""Searching over settings: the data are made, then the trials run, then the best is confirmed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydr.artefacts.context import Context
from raydr.artefacts.declaration import Node, NodeWork
from raydr.config.run import RunConfig
from raydr.console import say, show_summary, show_table
from raydr.data.dataset import Dataset
from raydr.distributed.resources import cluster_capacity
from raydr.errors import ConfigError
from raydr.pipeline.compare import Compared, compare_models
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.refresh import finish_rounds
from raydr.pipeline.session import Session
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.identity import fingerprint_of
from raydr.tracking.tracker import Tracker
from raydr.tuning.plan import TunePlan, num_side_by_side
from raydr.tuning.report import StudyResult, Trial, score_by_setting, tuning_page
from raydr.tuning.search import BEST, TRIALS, search
from raydr.tuning.space import with_values
from raydr.tuning.trial import Objective, nodes_of, trained

#: The page and its picture, beside the artefact's parts: they are written anew by every command.
PAGE, PICTURE = "report.html", "settings.png"
#: Trials that the console's table shows.
_SHOWN = 20
#: Raised when a search gives other trials for the same settings.
VERSION = 1


@dataclass(frozen=True)
class TuneOutcome:
    """What ``raydr tune`` came to.

    Args:
        study: the artefact: its trials, and the best config.
        result: the trials.
        confirmations: the best against the default, by split; empty if that was not asked for.
    """

    study: Artifact
    result: StudyResult
    confirmations: list[Compared]


def run_tune(session: Session, plan: TunePlan, name: str) -> TuneOutcome | None:
    """Run a search, or go on with it; then report it, and confirm its best if the space asks for that.

    Args:
        session: the run.
        plan: what is searched.
        name: of the search in the working folder.

    Returns:
        None in a dry run, which says what is searched and what would be made before the trials.

    Raises:
        ConfigError: a trial does not fit into Ray's resources, or the data have no dev split.
        TuningError: no trial was trained to its end.
    """
    space, recipe = plan.space, session.recipe
    concurrency = num_side_by_side(plan, cluster_capacity())
    show_table(f"space {space.name}: {space.settings.description}".rstrip(": "), *space.rows())
    for fact in plan.facts(concurrency):
        say(fact)
    dtype = recipe.context.facts.training_dtype(space.config.train, space.config.train.dtype)
    say(f"trials train in {dtype}")
    config, max_failures = trial_config(plan, space.config, dtype), space.settings.trials.max_failures
    objective = Objective(config, plan.refreshes, max_failures)
    node = study(session, plan, name, objective, concurrency)
    if not session.dry_run:
        # The data are what trials start from: only the search is done anew.
        _, dataset = session.make(recipe.corpus(), recipe.dataset(), anew=[])
        _check_splits(plan, Dataset(dataset))
    if not plan.refreshes:
        # Most trials train on what the default trains on.
        session.make(*trained(objective.config).inputs.values(), anew=[])
    made = session.make(recipe.named(f"tune/{name}", node))
    if session.dry_run:
        return None
    [searched] = made
    trials = [Trial.model_validate(raw) for raw in searched.read_json(TRIALS)]
    result = StudyResult(plan, name, searched.info["facts"], trials)
    model = _name_best(session, result, objective)
    columns, rows = result.table(_SHOWN)
    show_table(f"{len(rows)} of {len(trials)} trials, the best first", columns, rows)
    confirmations = _confirm(session, plan, result)
    with session.tracker.stage(f"tune-{name}", {"raydr.key": searched.fingerprint}) as tracker:
        report(result, confirmations, searched, session.places.root / "tune" / name, model, tracker)
    return TuneOutcome(searched, result, confirmations)


def trial_config(plan: TunePlan, config: RunConfig, dtype: str) -> RunConfig:
    """A config of the space as trials have it: one arithmetic for all, shared warm-ups, and dev alone is looked at."""
    warmups = None if plan.refreshes else plan.warmups or None
    train = config.train.model_copy(update={"dtype": dtype, "share_warmup": warmups})
    refresh = config.refresh.model_copy(update={"evaluate_splits": [config.data.dev_split]})
    return config.model_copy(update={"train": train, "refresh": refresh})


def study(session: Session, plan: TunePlan, name: str, objective: Objective, concurrency: int) -> Node:
    """The search as a node: what it depends on are the space, and the nodes of its default and of its corners.

    Which trials are stopped also depends on the order in which they end, which nobody knows.

    Raises:
        ConfigError: a setting is searched that changes nothing.
    """
    settings, dtype = plan.space.settings, objective.config.train.dtype
    nodes = [nodes_of(trial_config(plan, corner, dtype), plan.refreshes) for _, corner in plan.space.corners]
    changing = {
        key
        for (values, _), own in zip(plan.space.corners, nodes, strict=True)
        for key in values
        if own.keys() != nodes[0].keys()
    }
    if idle := [key for key in plan.space.parameters if key not in changing]:
        raise ConfigError(f"{idle[0]} cannot be searched: with this config no value of it changes what a trial makes")

    def run(work: NodeWork) -> dict[str, Any]:
        work.tracker.log_params(settings.model_dump(mode="json"))
        return search(work.making, work.tracker, plan, name, objective, concurrency)

    return Node(
        "study",
        f"tune-{name}",
        run,
        {
            **settings.model_dump(mode="json", include={"space"}, exclude_unset=True, by_alias=True),
            "search": settings.search.model_dump(mode="json") | {"num_trials": plan.total},
            "scheduler": settings.scheduler.model_dump(mode="json") | {"grace_epochs": plan.grace_epochs},
            "measure": plan.measure,
            "model": dict(next(node for node in reversed(nodes[0].values()) if node.kind == "model").settings),
            "nodes of the default and of the corners": fingerprint_of(sorted({key for made in nodes for key in made})),
        },
        {"corpus": session.recipe.corpus(), "dataset": session.recipe.dataset()},
        VERSION,
        # Ray Tune needs Ray.
        num_rows=lambda inputs: 10**9,
    )


def _name_best(session: Session, result: StudyResult, objective: Objective) -> Artifact:
    """Name the best trial's model, so that every verb finds it; what other trials made goes."""
    config = with_values(objective.config, result.best.values)
    context = session.recipe.context.of(config)
    node = finish_rounds(session, context).best.model if objective.refreshes else trained(config)
    [made] = session.make(session.recipe.named(f"models/{result.name}-best", node), anew=[], moving=True)
    if objective.refreshes:
        session.prune(objective.nodes(result.best.values))
    return made


def _confirm(session: Session, plan: TunePlan, result: StudyResult) -> list[Compared]:
    """The best config and the default trained anew, if the space asks for it and the two differ."""
    space, num_seeds = plan.space, plan.space.settings.confirm.num_seeds
    if not num_seeds:
        return []
    if result.best.number == 0:
        say("the best trial is the default itself: there is no gain to confirm")
        return []
    seeds, data = [space.config.seed + 1 + at for at in range(num_seeds)], space.config.data
    context = session.recipe.context.of(space.config)
    systems = {"default": context, "best": context.of(with_values(space.config, result.best.values))}
    models = {
        name: [train_anew(session, system, name, seed, plan.refreshes) for seed in seeds]
        for name, system in systems.items()
    }
    splits = list(dict.fromkeys([data.dev_split, *data.test_splits]))
    compared = compare_models(session, context, models, seeds, splits, f"confirm-{result.name}")
    for evaluation in compared:
        title = f"{evaluation.split}: trained anew with {num_seeds} seeds, means over queries and seeds"
        show_table(title, *evaluation.rows())
    return compared


def train_anew(session: Session, context: Context, name: str, seed: int, refreshes: bool) -> Node:
    """Declare a config's training with another seed, on the data that its judges keep; run a refresh with it.

    Returns:
        The model; of a refresh that of the best round, whose vectors stay while those of the others go.
    """
    if not refreshes:
        recipe, settings = Recipe(context), context.training().model_copy(update={"seed": seed})
        data = recipe.training_data(context.config.draws_candidates)
        return recipe.training(context, f"{name}-{seed}", settings, data)
    finished = finish_rounds(session, context.of(context.config.model_copy(update={"seed": seed})))
    kept = {node.key for node in finished.best.vectors()}
    nodes = {key: node for refresh_round in finished.rounds for key, node in refresh_round.nodes().items()}
    session.prune(node for key, node in nodes.items() if key not in kept)
    return finished.best.model


def report(
    result: StudyResult,
    confirmations: Sequence[Compared],
    made: Artifact,
    place: Folder,
    model: Artifact,
    tracker: Tracker,
) -> None:
    """Write the page and its picture, log everything, and say where it is.

    Args:
        result: of the search.
        confirmations: of its best.
        made: the study.
        place: where its name leads to.
        model: of the best trial.
        tracker: its MLflow run.
    """
    picture, best_config = score_by_setting(result), Path(made.local(BEST)).read_text(encoding="utf-8")
    with made.folder.publish(PICTURE) as path:
        Path(path).write_bytes(picture)
    with made.folder.publish(PAGE) as path:
        Path(path).write_text(tuning_page(result, picture, confirmations, best_config), encoding="utf-8")
    for part in (BEST, TRIALS, PAGE, PICTURE):
        tracker.log_artifact(made.folder.localize(part))
    for part in model.parts():
        tracker.log_artifact(model.local(part), f"best-model/{part.rpartition('/')[0]}".rstrip("/"))
    numbers = {"best/dev": result.best.score, "default/dev": result.default.score}
    for compared in confirmations:
        numbers |= {f"gain/{compared.split}/{row.measure}": row.difference for row in compared.comparisons}
    tracker.log_metrics({name: value for name, value in numbers.items() if value is not None})
    facts = {"on dev": result.outcome(), "best config": place.path(BEST), "its model": str(model.folder)}
    show_summary(f"search {result.name}", facts | {"report": place.path(PAGE), "trials": place.path(TRIALS)})


def _check_splits(plan: TunePlan, data: Dataset) -> None:
    named, confirms = plan.space.config.data, plan.space.settings.confirm.num_seeds > 0
    missing = [
        split for split in (named.dev_split, *(named.test_splits if confirms else ())) if split not in data.splits
    ]
    if missing:
        raise ConfigError(
            f"the data set at {data.artifact.folder} has no split {missing[0]!r}; it has {', '.join(data.splits)}. Set "
            "data.dev_split, on which trials are compared, and data.test_splits, on which confirm.num_seeds evaluates"
        )
