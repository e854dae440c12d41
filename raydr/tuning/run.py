"""Searching over settings: the data are made, then the trials run, then the best is confirmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raydr.compare import Compared, compare_configs, trained_model
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.graph.node import Node, Work
from raydr.graph.session import Session
from raydr.runtime.console import say, show_table
from raydr.stages.resources import cluster_capacity
from raydr.store.artifact import Artifact
from raydr.store.identity import fingerprint_of
from raydr.tuning.objective import Objective, trial_config
from raydr.tuning.outcome import report, show_result, study_result
from raydr.tuning.plan import TunePlan, show_plan
from raydr.tuning.refresh import best_model, refresh_model
from raydr.tuning.resources import Shares, share_resources
from raydr.tuning.result import StudyResult
from raydr.tuning.search import search
from raydr.tuning.trial_config import with_values
from raydr.tuning.trial_nodes import nodes_of, trained

#: Raised when a search gives other trials for the same settings.
VERSION = 1


@dataclass(frozen=True)
class TuneOutcome:
    """What ``raydr tune`` came to.

    Args:
        study: the artefact: its trials, and the best config.
        result: the trials and what mattered.
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
    wanted = space.settings.trials.concurrency
    shares = share_resources(space.config, plan.refreshes, cluster_capacity(), plan.total, wanted)
    show_plan(plan, shares)
    if not session.dry_run:
        # The data are what trials start from: only the search is done anew.
        corpus, dataset = session.make(recipe.corpus(), recipe.dataset(), anew=[])
        _check_splits(plan, Dataset(dataset))
        check_sharing(plan, corpus.rows("passages"), shares)
    dtype = recipe.run.facts.training_dtype(space.config.train, space.config.train.dtype)
    say(f"trials train in {dtype}")
    objective = Objective(trial_config(plan, space.config, dtype), plan.refreshes, shares)
    if not plan.refreshes:
        # Most trials train on what the default trains on.
        session.make(*trained(objective.config).inputs.values(), anew=[])
    made = session.make(recipe.named(f"tune/{name}", study(session, plan, name, objective)))
    if session.dry_run:
        return None
    [searched] = made
    result = study_result(plan, searched)
    model = _name_best(session, plan, result, objective.config)
    show_result(result)
    confirmations = _confirm(session, plan, result)
    with session.tracker.stage(f"tune-{name}", {"raydr.key": searched.fingerprint}) as tracker:
        report(result, confirmations, searched, session.places.root / "tune" / name, model, tracker)
    return TuneOutcome(searched, result, confirmations)


def study(session: Session, plan: TunePlan, name: str, objective: Objective) -> Node:
    """The search as a node: what it depends on are the space, and the nodes of its default and of its corners.

    Which trials are stopped also depends on the order in which they end, which nobody knows.
    """
    settings, schedule = plan.space.settings, plan.schedule
    corners = [trial_config(plan, corner, objective.config.train.dtype) for _, corner in plan.space.corners]
    nodes = [nodes_of(config, plan.refreshes) for config in corners]

    def run(work: Work) -> dict[str, Any]:
        work.tracker.log_params(settings.model_dump(mode="json"))
        return search(work.making, work.tracker, plan, name, objective)

    return Node(
        "study",
        f"tune-{name}",
        run,
        {
            **settings.model_dump(mode="json", include={"space"}, exclude_unset=True, by_alias=True),
            "search": settings.search.model_dump(mode="json") | {"num_trials": plan.total},
            "scheduler": settings.scheduler.model_dump(mode="json") | {"grace_epochs": schedule.grace_epochs},
            "measure": plan.measure,
            "model": dict(next(one for one in reversed(nodes[0].values()) if one.kind == "model").settings),
            "nodes of the default and of the corners": fingerprint_of(sorted({key for one in nodes for key in one})),
        },
        {"corpus": session.recipe.corpus(), "dataset": session.recipe.dataset()},
        VERSION,
        # Ray Tune needs Ray.
        num_rows=lambda inputs: 10**9,
    )


def _name_best(session: Session, plan: TunePlan, result: StudyResult, default: RunConfig) -> Artifact:
    """Name the best trial's model, so that every verb finds it; what other trials made goes."""
    config = with_values(default, result.best.values)
    node = best_model(config) if plan.refreshes else trained(config)
    [made] = session.make(session.recipe.named(f"models/{result.name}-best", node), anew=[], moving=True)
    if plan.refreshes:
        session.prune(nodes_of(config, refreshes=True).values())
    return made


def _confirm(session: Session, plan: TunePlan, result: StudyResult) -> list[Compared]:
    """The best config and the default trained anew, if the space asks for it and the two differ."""
    space, num_seeds = plan.space, plan.space.settings.confirm.num_seeds
    if not num_seeds:
        return []
    if result.best.number == 0:
        say("the best trial is the default itself: there is no gain to confirm")
        return []
    run, data = session.recipe.run, space.config.data
    best = with_values(space.config, result.best.values)
    found = compare_configs(
        session,
        {"default": run.of(space.config), "best": run.of(best)},
        [space.config.seed + 1 + at for at in range(num_seeds)],
        list(dict.fromkeys([data.dev_split, *data.test_splits])),
        f"confirm-{result.name}",
        (lambda run, name, seed: refresh_model(session, run, seed)) if plan.refreshes else trained_model,
    )
    for one in found:
        title = f"{one.split}: trained anew with {num_seeds} seeds, means over queries and seeds"
        show_table(title, *one.rows())
    return found


def _check_splits(plan: TunePlan, data: Dataset) -> None:
    named, confirms = plan.space.config.data, plan.space.settings.confirm.num_seeds > 0
    missing = [one for one in (named.dev_split, *(named.test_splits if confirms else ())) if one not in data.splits]
    if missing:
        raise ConfigError(
            f"the data set at {data.artifact.folder} has no split {missing[0]!r}; it has {', '.join(data.splits)}. Set "
            "data.dev_split, on which trials are compared, and data.test_splits, on which confirm.num_seeds evaluates"
        )


def check_sharing(plan: TunePlan, num_passages: int, shares: Shares) -> None:
    """Refuse refreshes side by side that could wait for each other.

    Raises:
        ConfigError: indexes have several shards.
    """
    config, beside = plan.space.config, f"{shares.concurrency} refreshes would run side by side"
    num_shards = -(-num_passages // config.index.shard_rows)
    if shares.concurrency == 1 or not plan.refreshes:
        return
    if num_shards > 1:
        raise ConfigError(
            f"{beside}, and an index of {num_passages:,} passages has {num_shards} shards: two trials that search at a "
            "time could each hold some of the actors that the other waits for. Set trials.concurrency: 1, or make "
            "index.shard_rows larger"
        )
