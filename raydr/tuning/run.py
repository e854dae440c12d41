"""``raydr tune``: make the data, run the trials of a search, and confirm the best."""

from __future__ import annotations

import math
from pathlib import Path

from raydr.artefacts import Context, Node
from raydr.config.run import RunConfig
from raydr.console import say, show_summary, show_table
from raydr.distributed.resources import cluster_capacity
from raydr.errors import ConfigError
from raydr.pipeline.compare import Compared, compare_models
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.refresh import finish_rounds
from raydr.pipeline.running import check_split
from raydr.pipeline.session import Session
from raydr.store import Artifact, Folder
from raydr.store.identity import fingerprint_of
from raydr.tracking.tracker import Tracker
from raydr.tuning.plan import TunePlan, num_side_by_side
from raydr.tuning.report import Trial, TuneOutcome, score_by_setting, tuning_page
from raydr.tuning.search import BEST, TRIALS, search
from raydr.tuning.space import with_values
from raydr.tuning.trial import Objective, facts_of, nodes_of, trained

#: The page and its picture, beside the artefact's parts: every command writes them again.
PAGE, PICTURE = "report.html", "settings.png"
#: Maximal number of trials in the console's table.
_SHOWN = 20


def run_tune(session: Session, plan: TunePlan) -> TuneOutcome | None:
    """Run or resume a search, report it, and confirm its best trial if the space has ``confirm.num_seeds``.

    Args:
        session: session of the run.
        plan: plan of the search.

    Returns:
        None in a dry run, which prints the search and the artefacts that would be made before the trials.

    Raises:
        ConfigError: a trial does not fit into Ray's resources, or the data have no dev split.
        TuningError: no trial was trained to its end.
    """
    # Data and checkpoints may have changed since the last search of this process.
    facts_of.cache_clear()
    space, recipe = plan.space, session.recipe
    concurrency = num_side_by_side(plan, cluster_capacity())
    show_table(f"space {space.name}: {space.settings.description}".rstrip(": "), *space.rows())
    for fact in plan.facts(concurrency):
        say(fact)
    dtype = recipe.context.facts.training_dtype(space.config.train, space.config.train.dtype)
    say(f"trials train in {dtype}")
    config = trial_config(plan, space.config, dtype)
    objective = Objective(config, plan.refreshes, space.settings.trials.max_failures)
    node = study(session, plan, objective, concurrency)
    if not session.dry_run:
        # --again repeats the search, not its data.
        _, dataset = session.make(recipe.corpus(), recipe.dataset(), anew=[])
        for split in _splits(plan):
            check_split(dataset, split, node.label)
    if not plan.refreshes:
        # Most trials share the inputs of the default trial.
        session.make(*trained(objective.config).inputs.values(), anew=[])
    made = session.make(recipe.named(f"tune/{space.name}", node))
    if session.dry_run:
        return None
    trials = [Trial.model_validate(raw) for raw in made[0].read_json(TRIALS)]
    outcome = TuneOutcome(plan, made[0], trials)
    model = _name_best(session, outcome, objective)
    columns, rows = outcome.table(_SHOWN)
    show_table(f"{len(rows)} of {len(trials)} trials, the best first", columns, rows)
    outcome.confirmations.extend(_confirm(session, outcome))
    with session.tracker.stage(node.label, {"raydr.key": node.key}) as tracker:
        report(outcome, session.places.root / "tune" / space.name, model, tracker)
    return outcome


def trial_config(plan: TunePlan, config: RunConfig, dtype: str) -> RunConfig:
    """Return a config of the space as trials run it: with the same dtype, shared warm-ups, evaluated only on dev."""
    warmups = None if plan.refreshes else plan.warmups or None
    train = config.train.model_copy(update={"dtype": dtype, "share_warmup": warmups})
    refresh = config.refresh.model_copy(update={"evaluate_splits": [config.data.dev_split]})
    return config.model_copy(update={"train": train, "refresh": refresh})


def study(session: Session, plan: TunePlan, objective: Objective, concurrency: int) -> Node:
    """Declare the artefact of the search; its key depends on the space and on the nodes of the default and the corners.

    The choice of stopped trials also depends on the order in which trials end, which is not known beforehand.

    Raises:
        ConfigError: a searched setting changes nothing.
    """
    settings, dtype = plan.space.settings, objective.config.train.dtype
    nodes = [nodes_of(trial_config(plan, corner, dtype), plan.refreshes) for _, corner in plan.space.corners]
    corners = zip(plan.space.corners, nodes, strict=True)
    changing = {key for (values, _), own in corners if own.keys() != nodes[0].keys() for key in values}
    if idle := [key for key in plan.space.parameters if key not in changing]:
        raise ConfigError(f"{idle[0]} cannot be searched: with this config none of its values changes a trial's model")
    content = {
        **settings.model_dump(mode="json", include={"space"}, exclude_unset=True, by_alias=True),
        "search": settings.search.model_dump(mode="json") | {"num_trials": plan.total},
        "scheduler": settings.scheduler.model_dump(mode="json") | {"grace_epochs": plan.grace_epochs},
        "measure": plan.measure,
        "model": dict(next(node for node in reversed(nodes[0].values()) if node.kind == "model").settings),
        "nodes of the default and of the corners": fingerprint_of(sorted({key for made in nodes for key in made})),
    }
    recipe = session.recipe
    return search.node(
        f"tune-{plan.space.name}", corpus=recipe.corpus(), dataset=recipe.dataset(), content=content, plan=plan,
        objective=objective, concurrency=concurrency,
    )  # fmt: skip


def _name_best(session: Session, outcome: TuneOutcome, objective: Objective) -> Artifact:
    """Name the best trial's model, so that every verb finds it, and remove the vectors of its refresh."""
    config = with_values(objective.config, outcome.best.values)
    context = session.recipe.context.of(config)
    node = finish_rounds(session, context).best.model if objective.refreshes else trained(config)
    [made] = session.make(session.recipe.named(f"models/{outcome.plan.space.name}-best", node), anew=[], moving=True)
    if objective.refreshes:
        session.prune(objective.nodes(outcome.best.values))
    return made


def _confirm(session: Session, outcome: TuneOutcome) -> list[Compared]:
    """Train the best config and the default with other seeds and compare them, if configured and if they differ."""
    plan, space = outcome.plan, outcome.plan.space
    num_seeds = space.settings.confirm.num_seeds
    if num_seeds and outcome.best is outcome.default:
        say("the best trial is the default itself: there is no gain to confirm")
    if not num_seeds or outcome.best is outcome.default:
        return []
    seeds = [space.config.seed + 1 + number for number in range(num_seeds)]
    context = session.recipe.context.of(space.config)
    systems = {"default": context, "best": context.of(with_values(space.config, outcome.best.values))}
    models = {
        name: [train_anew(session, system, name, seed, plan.refreshes) for seed in seeds]
        for name, system in systems.items()
    }
    compared = compare_models(session, context, models, seeds, _splits(plan), f"confirm-{space.name}")
    for evaluation in compared:
        title = f"{evaluation.split}: trained again with {num_seeds} seeds, means over queries and seeds"
        show_table(title, *evaluation.rows())
    return compared


def train_anew(session: Session, context: Context, name: str, seed: int, refreshes: bool) -> Node:
    """Declare a config's training with another seed, on the data that its judges keep; or run its refresh.

    Returns:
        The model; for a refresh the model of the best round. Vectors of its other rounds are removed.
    """
    if not refreshes:
        recipe, settings = Recipe(context), context.training().model_copy(update={"seed": seed})
        data = recipe.training_data(bool(context.config.train.num_hard_negatives))
        return recipe.training(context, f"{name}-{seed}", settings, data)
    # Only the best round is evaluated further.
    on_dev = context.config.refresh.model_copy(update={"evaluate_splits": [context.config.data.dev_split]})
    finished = finish_rounds(session, context.of(context.config.model_copy(update={"seed": seed, "refresh": on_dev})))
    kept = {node.key for node in finished.best.vectors()}
    nodes = {key: node for refresh_round in finished.rounds for key, node in refresh_round.nodes().items()}
    session.prune(node for key, node in nodes.items() if key not in kept)
    return finished.best.model


def report(outcome: TuneOutcome, place: Folder, model: Artifact, tracker: Tracker) -> None:
    """Write the page and its picture, log them with numbers and model, and print their places.

    Args:
        outcome: the search.
        place: folder of the search in the working folder.
        model: model of the best trial.
        tracker: MLflow run of the search.
    """
    folder = outcome.study.folder
    picture, best_config = score_by_setting(outcome), Path(outcome.study.local(BEST)).read_text(encoding="utf-8")
    with folder.publish(PICTURE) as path:
        Path(path).write_bytes(picture)
    with folder.publish(PAGE) as path:
        Path(path).write_text(tuning_page(outcome, picture, best_config), encoding="utf-8")
    for part in (BEST, TRIALS, PAGE, PICTURE):
        tracker.log_artifact(folder.localize(part))
    for part in model.parts():
        tracker.log_artifact(model.local(part), f"best-model/{part.rpartition('/')[0]}".rstrip("/"))
    ends = {"best": outcome.best, "default": outcome.default}
    numbers = {f"{name}/dev": trial.score for name, trial in ends.items() if trial.status == "finished"}
    for compared in outcome.confirmations:
        numbers |= {f"gain/{compared.split}/{row.measure}": row.difference for row in compared.comparisons}
    tracker.log_metrics({name: value for name, value in numbers.items() if math.isfinite(value)})
    facts = {"on dev": outcome.summary(), "best config": place / BEST, "its model": str(model.folder)}
    facts |= {"report": place / PAGE, "trials": place / TRIALS}
    show_summary(f"search {outcome.plan.space.name}", facts)


def _splits(plan: TunePlan) -> list[str]:
    """Return the splits to evaluate: dev, and the test splits if the best is confirmed."""
    data, confirms = plan.space.config.data, plan.space.settings.confirm.num_seeds > 0
    return list(dict.fromkeys([data.dev_split, *(data.test_splits if confirms else ())]))
