"""Searching over settings: the data are made, then the trials run, then the best is confirmed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raydr.compare import Compared, compare_configs, trained_model
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.graph.node import Node
from raydr.graph.session import Session
from raydr.runtime.cluster import start_ray
from raydr.runtime.console import say, show_table
from raydr.store.artifact import Artifact, fingerprint_of
from raydr.tuning.objective import Objective
from raydr.tuning.outcome import report, search_result, show_result
from raydr.tuning.plan import TunePlan, shares_for, show_plan, split_for
from raydr.tuning.refresh import RefreshObjective, best_model, check_shards, measured_on_dev, refresh_model
from raydr.tuning.report import confirmation_rows
from raydr.tuning.resources import Shares, Split
from raydr.tuning.result import SearchResult
from raydr.tuning.search import Search, search
from raydr.tuning.training import TrainingObjective, trial_config
from raydr.tuning.trial_config import with_values
from raydr.tuning.trial_nodes import nodes_of, trained

#: Raised when a search gives other trials for the same settings.
VERSION = 1
#: The systems of a confirmation.
DEFAULT, BEST = "default", "best"


@dataclass(frozen=True)
class TuneOutcome:
    """What ``raydr tune`` came to.

    Args:
        study: the artefact: its trials, and the best config.
        result: the trials and what mattered.
        confirmations: the best against the default, by split; empty if that was not asked for.
    """

    study: Artifact
    result: SearchResult
    confirmations: list[Compared]


def run_tune(session: Session, plan: TunePlan, name: str) -> TuneOutcome:
    """Run a search, or go on with it; then report it, and confirm its best if the space asks for that.

    Args:
        session: the run.
        plan: what is searched.
        name: of the search in the working folder.

    Raises:
        ConfigError: a trial does not fit into Ray's resources, or the data have no dev split.
        TuningError: no trial was trained to its end.
    """
    start_ray()
    recipe, space = session.recipe, plan.space
    resources = shares_for(plan, session.config) if plan.refreshes else split_for(plan)
    show_plan(plan, resources)
    # The data are what trials start from: only the search is done anew.
    corpus, dataset = session.make(recipe.corpus(), recipe.dataset(), anew=[])
    _check_splits(space.config, Dataset(dataset), confirms=space.settings.confirm.num_seeds > 0)
    dtype = recipe.run.facts.training_dtype(space.config.train, space.config.train.dtype)
    say(f"trials train in {dtype}")
    objective: Objective
    if isinstance(resources, Shares):
        check_shards(plan, corpus.rows("passages"), resources)
        objective = RefreshObjective(measured_on_dev(space.config, dtype), resources)
    else:
        objective = TrainingObjective(trial_config(plan, dtype), resources)
    node = study(session, plan, name, objective, resources)
    [made] = session.make(recipe.named(f"tune/{name}", node))
    result = search_result(plan, made)
    model = _name_best(session, plan, result, objective.config, name)
    show_result(result)
    confirmations = _confirm(session, plan, result)
    with session.tracker.stage(f"tune-{name}", {"raydr.key": node.key}) as tracker:
        report(result, confirmations, made, session.places.root / "tune" / name, model, tracker)
    return TuneOutcome(made, result, confirmations)


def study(session: Session, plan: TunePlan, name: str, objective: Objective, resources: Split | Shares) -> Node:
    """The search as a node: what it depends on are the space, and the nodes of its default and of its corners.

    Which trials are stopped also depends on the order in which they end, which nobody knows.
    """
    settings, refreshes = plan.space.settings, plan.refreshes
    work = Search(
        name, plan.space, plan.schedule, resources.concurrency, plan.total, plan.facts(resources), plan.measure
    )
    corners = [_like(objective.config, corner) for _, corner in plan.space.corners()]
    keys = {key for config in (objective.config, *corners) for key in nodes_of(config, refreshes)}

    def run(work_of: Any) -> dict[str, Any]:
        work_of.tracker.log_params(settings.model_dump(mode="json"))
        return search(work_of.making, work_of.tracker, work, objective)

    return Node(
        "study",
        f"tune-{name}",
        run,
        {
            "space": settings.space,
            "search": settings.search.model_dump(mode="json") | {"num_trials": plan.total},
            "scheduler": settings.scheduler.model_dump(mode="json") | {"grace_epochs": plan.schedule.grace_epochs},
            "measure": plan.measure,
            "default": fingerprint_of(plan.space.config.model_dump(mode="json", include={"train", "model", "seed"})),
            "nodes of the default and of the corners": fingerprint_of(sorted(keys)),
        },
        {"corpus": session.recipe.corpus(), "dataset": session.recipe.dataset()},
        VERSION,
        num_rows=lambda inputs: 10**9,
    )


def _like(default: RunConfig, corner: RunConfig) -> RunConfig:
    """A corner of the space with what all trials have in common."""
    train = corner.train.model_copy(update={"dtype": default.train.dtype})
    return corner.model_copy(update={"train": train, "refresh": corner.refresh.model_copy(
        update={"evaluate_splits": default.refresh.evaluate_splits}
    )})  # fmt: skip


def _name_best(session: Session, plan: TunePlan, result: SearchResult, default: RunConfig, name: str) -> Artifact:
    """Name the best trial's model, so that every verb finds it; what other trials made goes."""
    config = with_values(default, result.best.values)
    node = best_model(config) if plan.refreshes else trained(config)
    [made] = session.make(session.recipe.named(f"models/{name}-best", node), anew=[], moving=True)
    if plan.refreshes:
        session.prune(nodes_of(config, refreshes=True).values())
    return made


def _confirm(session: Session, plan: TunePlan, result: SearchResult) -> list[Compared]:
    """The best config and the default trained anew, if the space asks for it and the two differ."""
    space, num_seeds = plan.space, plan.space.settings.confirm.num_seeds
    if not num_seeds:
        return []
    if result.best.number == 0:
        say("the best trial is the default itself: there is no gain to confirm")
        return []
    run, data = session.recipe.run, space.config.data
    configs = {
        DEFAULT: run.of(space.config),
        BEST: run.of(with_values(space.config, result.best.values)),
    }
    found = compare_configs(
        session,
        configs,
        [space.config.seed + 1 + at for at in range(num_seeds)],
        list(dict.fromkeys([data.dev_split, *data.test_splits])),
        f"confirm-{result.name}",
        (lambda run, name, seed: refresh_model(session, run, seed)) if plan.refreshes else trained_model,
    )
    for one in found:
        columns, rows = confirmation_rows(one, by_seed=False)
        title = f"{one.split}: trained anew with {num_seeds} seeds, means over queries and seeds"
        show_table(title, columns, rows)
    return found


def _check_splits(config: RunConfig, data: Dataset, confirms: bool) -> None:
    split = config.data.dev_split
    if split not in data.splits:
        raise ConfigError(
            f"trials are compared on the dev split {split!r}, which the data set at {data.artifact.folder} has not; it "
            f"has {', '.join(data.splits)}: set data.dev_split"
        )
    missing = [one for one in config.data.test_splits if one not in data.splits]
    if confirms and missing:
        raise ConfigError(
            f"confirm.num_seeds is set, and the data set at {data.artifact.folder} has no split {missing[0]!r} to "
            f"evaluate on; it has {', '.join(data.splits)}: set data.test_splits"
        )
