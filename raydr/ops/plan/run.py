"""``raydr plan``: the nodes of a run or of its refresh rounds, each with what it will take, shown and kept."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable

from raydr.artefacts.declaration import Node
from raydr.artefacts.places import TRAINED
from raydr.config.run import RunConfig
from raydr.console import duration, say
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.distributed.resources import cluster_capacity
from raydr.errors import ConfigError
from raydr.ops.plan.estimate import Estimator
from raydr.ops.plan.measure import Trials
from raydr.pipeline.forecast import FORECAST_FILE, GIB, Forecast
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.rounds import lay_out
from raydr.pipeline.session import Session

#: Columns of the table and of all that is said beside it.
_WIDTH = 80


def run_plan(session: Session, refresh: bool) -> Forecast:
    """Try the model, estimate every node, show the plan and keep it in the working folder.

    Args:
        session: the run; its data are prepared if they are not.
        refresh: plan the refresh rounds of the config instead of the run and its evaluation.

    Raises:
        ConfigError: the data have no training split, or the cluster has not the resources of one worker.
    """
    config, recipe = session.config, session.recipe
    corpus, dataset = session.make(recipe.corpus(), recipe.dataset())
    data = Dataset(dataset)
    num_queries = {split: dataset.rows(f"queries/{split}") for split in data.splits}
    if config.data.train_split not in num_queries:
        raise ConfigError(
            f"the data set at {dataset.folder} has no split {config.data.train_split!r}; it has "
            f"{', '.join(num_queries)}"
        )
    num_passages = config.plan.num_passages or corpus.rows("passages")
    rates = Trials(config, Corpus(corpus), data)
    estimate = Estimator(config, num_passages, num_queries, _capacity(config), rates)
    nodes = {node.key: node for node in (_nodes_of_refresh(recipe) if refresh else _nodes_of_run(recipe))}
    estimates = {key: estimate(node) for key, node in nodes.items()}
    plan = Forecast(
        tuple(stage for stage in estimates.values() if stage is not None),
        num_passages,
        rates.retriever(config.model).device,
        ", ".join(sorted({nodes[key].label.rpartition("/")[2] for key, stage in estimates.items() if stage is None})),
        scaled=config.plan.num_passages is not None,
    )
    show(plan, config)
    session.places.root.write_sealed(FORECAST_FILE, plan.as_json())
    return plan


def _capacity(config: RunConfig) -> dict[str, float]:
    """What the run would have: on this machine ``ray.capacity`` is that of a cluster elsewhere."""
    if config.ray.capacity is not None:
        return {name: config.ray.capacity.get(name, 0.0) for name in ("CPU", "GPU")}
    capacity = cluster_capacity()
    # GPUs that are not here are of a cluster that is not here.
    elsewhere = config.plan.device is not None and config.encode.gpus_per_actor > 0
    return dict.fromkeys(capacity, math.inf) if elsewhere else capacity


def _nodes_of_run(recipe: Recipe) -> Iterable[Node]:
    """All that leads to the evaluations of the test splits; to reranked runs too, where the config has a ranker."""
    config = recipe.config
    ranks = bool({"ranker", "rerank"} & config.model_fields_set)
    for split in config.data.test_splits:
        reranked = [f"{TRAINED}+{config.rerank.model}"] if ranks else []
        systems = list(dict.fromkeys([*recipe.systems(split), *reranked]))
        yield from recipe.evaluation(split, systems).ancestors().values()


def _nodes_of_refresh(recipe: Recipe) -> Iterable[Node]:
    """All that leads to the rounds."""
    return (node for arm in lay_out(recipe.context) for each in arm.rounds for node in each.nodes().values())


def show(plan: Forecast, config: RunConfig) -> None:
    """Print a line a stage, the sums, and what is not planned; no line has more than 80 columns."""
    prices = config.plan.prices
    rows: dict[str, list[str]] = {name: [] for name in ("stage", "time", "CPUs", "GPUs", "GiB each", "GiB disk")}
    rows[prices.currency] = []
    for stage in plan.stages:
        cost, memory = stage.cost(prices), stage.worker_bytes
        cells = [stage.name, duration(stage.seconds), f"{stage.cpus:g}", f"{stage.gpus:g}" if stage.gpus else ""]
        cells += ["" if memory is None else f"{memory / GIB:.2f}", f"{stage.disk_bytes / GIB:,.2f}"]
        for column, cell in zip(rows.values(), [*cells, "" if cost is None else f"{cost:,.2f}"], strict=True):
            column.append(cell)
    # Columns that would be empty are left out; a long name is cut, a number is not.
    columns = {name: [name, *cells] for name, cells in rows.items() if any(cells)}
    names = columns.pop("stage", [])
    widths = [max(map(len, cells)) for cells in columns.values()]
    room = min(_WIDTH - sum(widths) - 2 * len(widths), max(map(len, names), default=0))
    _say(f"plan for {plan.num_passages:,} passages, by the rates of {plan.device}:")
    for name, *cells in zip(names, *columns.values(), strict=True):
        shown = name if len(name) <= room else f"{name[: room - 1]}…"
        numbers = (f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        say(f"{shown:<{room}}{''.join(numbers)}")
    cost = plan.cost(prices)
    _say(f"sum: {plan.words()}; " + (f"{cost:,.2f} {prices.currency}" if cost is not None else "no plan.prices"))
    for note, names in plan.notes().items():
        _say(f"{', '.join(names)}: {note}")
    if plan.missing:
        _say(f"not planned: {plan.missing}")
    _say("`raydr report` sets it beside what the run takes")


def _say(message: str) -> None:
    say(textwrap.fill(message, _WIDTH, subsequent_indent="  ", break_on_hyphens=False))
