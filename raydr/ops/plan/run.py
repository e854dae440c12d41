"""``raydr plan``: estimate, show and store the cost of each node of a run or of its refresh rounds."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from raydr.artefacts.declaration import Node
from raydr.artefacts.places import TRAINED
from raydr.config.run import RunConfig
from raydr.console import console, duration, prose
from raydr.data import Corpus, Dataset
from raydr.distributed.resources import cluster_capacity
from raydr.ops.plan.estimate import Estimator
from raydr.ops.plan.trials import Trials
from raydr.pipeline.forecast import FORECAST_FILE, GIB, Forecast
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.rounds import lay_out
from raydr.pipeline.running import check_split
from raydr.pipeline.session import Session


def run_plan(session: Session, refresh: bool) -> Forecast:
    """Measure rates, estimate every node, print the forecast and store it in the working folder.

    Args:
        session: the run; its data are prepared first if necessary.
        refresh: plan the refresh rounds of the config instead of the run and its evaluation.

    Raises:
        ConfigError: the data have no training split, or the cluster lacks the resources of one worker.
    """
    config, recipe = session.config, session.recipe
    corpus, dataset = session.make(recipe.corpus(), recipe.dataset())
    data = Dataset(dataset)
    check_split(dataset, config.data.train_split, "plan")
    num_queries = {split: dataset.rows(f"queries/{split}") for split in data.splits}
    num_passages = config.plan.num_passages or corpus.rows("passages")
    planned, rates = config.ray.capacity, Trials(config, Corpus(corpus), data)
    # A plan may be made on this machine for a cluster elsewhere.
    capacity = (
        cluster_capacity() if planned is None else {"CPU": planned.get("CPU", 1.0), "GPU": planned.get("GPU", 0.0)}
    )
    estimate = Estimator(config, num_passages, num_queries, capacity, rates)
    nodes = {node.key: node for node in (_nodes_of_refresh(recipe) if refresh else _nodes_of_run(recipe))}
    stages = [(node, estimate(node)) for node in nodes.values()]
    missing = {node.label.rpartition("/")[2] for node, stage in stages if stage is None}
    plan = Forecast(
        stages=[stage for _, stage in stages if stage is not None],
        num_passages=num_passages,
        device=rates.retriever(config.model).device,
        missing=", ".join(sorted(missing)),
        scaled=config.plan.num_passages is not None,
    )
    show(plan, config)
    session.places.root.write_sealed(FORECAST_FILE, plan.model_dump())
    return plan


def _nodes_of_run(recipe: Recipe) -> Iterable[Node]:
    """Yield all ancestors of the evaluations of the test splits; with a ranker in the config also reranked runs."""
    config = recipe.config
    ranks = bool({"ranker", "rerank"} & config.model_fields_set)
    for split in config.data.test_splits:
        reranked = [f"{TRAINED}+{config.rerank.model}"] if ranks else []
        systems = list(dict.fromkeys([*recipe.systems(split), *reranked]))
        yield from recipe.evaluation(split, systems).ancestors().values()


def _nodes_of_refresh(recipe: Recipe) -> Iterable[Node]:
    """Yield all nodes of the refresh rounds."""
    return (node for arm in lay_out(recipe.context) for turn in arm.rounds for node in turn.nodes().values())


def show(plan: Forecast, config: RunConfig) -> None:
    """Print a line for each stage, the sums, and the nodes that are not planned; cut long names, never numbers."""
    prices = config.plan.prices
    columns: dict[str, list[str]] = {
        "stage": [stage.name for stage in plan.stages],
        "time": [duration(stage.seconds) for stage in plan.stages],
        "CPUs": [f"{stage.cpus:g}" for stage in plan.stages],
        "GPUs": [f"{stage.gpus:g}" if stage.gpus else "" for stage in plan.stages],
        "GiB each": [f"{stage.worker_bytes / GIB:.2f}" if stage.worker_bytes else "" for stage in plan.stages],
        "GiB disk": [f"{stage.disk_bytes / GIB:,.2f}" for stage in plan.stages],
        prices.currency: [f"{cost:,.2f}" if (cost := stage.cost(prices)) else "" for stage in plan.stages],
    }
    # Columns that would be empty are left out.
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in shown:
        numeric = name != "stage"
        table.add_column(name, justify="right" if numeric else "left", no_wrap=numeric, overflow="ellipsis")
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    prose(f"plan for {plan.num_passages:,} passages, by the rates of {plan.device}:")
    console.print(table)
    cost = plan.cost(prices)
    prose(f"sum: {plan.words()}; " + (f"{cost:,.2f} {prices.currency}" if cost else "no plan.prices"))
    for stage in plan.stages:
        if stage.note:
            prose(f"{stage.name}: {stage.note}")
    if plan.missing:
        prose(f"not planned: {plan.missing}")
    prose("`raydr report` compares it with the run")
