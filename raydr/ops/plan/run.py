"""Plan a run, or its refresh rounds: what each stage will take, and afterwards what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.graph.forecast import FORECAST_FILE, Forecast, StageEstimate
from raydr.graph.node import Node
from raydr.graph.nodes.cross_fitting import MARGINS
from raydr.graph.places import TRAINED
from raydr.graph.recipe import Recipe
from raydr.graph.rounds import lay_out
from raydr.graph.session import Session
from raydr.ops.plan.estimate import (
    RunSizes,
    estimate_encoding,
    estimate_index,
    estimate_search,
    estimate_training,
    network_warning,
)
from raydr.ops.plan.estimate_ranker import estimate_ranker_training, estimate_reading
from raydr.ops.plan.measure import try_model
from raydr.ops.plan.rates import RankerRates, RunRates
from raydr.ops.plan.tables import plan_rows
from raydr.runtime.console import duration, say, show_summary, show_table, warn
from raydr.stages.ranker_scores import KIND as RANKER_SCORES
from raydr.stages.resources import cluster_capacity
from raydr.store.folder import Folder
from raydr.training.config import TrainConfig


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
    sizes = RunSizes(config.plan.num_passages or corpus.rows("passages"), num_queries)
    capacity = _capacity(config)
    nodes = _nodes_of_refresh(recipe) if refresh else _nodes_of_run(recipe)
    asks_ranker = any(_is_ranker(one) for node, _ in nodes.values() for one in (node, *node.inputs.values()))
    rates = try_model(config, Corpus(corpus), data, asks_ranker)
    folds = _rates_of_folds(config, [node for node, _ in nodes.values()], Corpus(corpus), data)
    found = {key: _estimate(node, own, sizes, rates, folds or rates, capacity) for key, (node, own) in nodes.items()}
    if warning := network_warning(config, rates.encoding.num_learning, rates.training.step_seconds):
        warn(warning)
    planned = tuple(replace(one, key=key) for key, one in found.items() if one is not None)
    missing = {nodes[key][0].label.rpartition("/")[2] for key, one in found.items() if one is None}
    scaled = config.plan.num_passages is not None
    plan = Forecast(planned, sizes.num_passages, rates.encoding.device, ", ".join(sorted(missing)), scaled)
    _show(config, session.places.root, plan)
    session.places.root.write_sealed(FORECAST_FILE, plan.as_json())
    return plan


def _capacity(config: RunConfig) -> dict[str, float]:
    """What the run would have: on this machine ``ray.capacity`` is that of a cluster elsewhere."""
    if config.ray.capacity is not None:
        return {name: config.ray.capacity.get(name, 0.0) for name in ("CPU", "GPU")}
    there = cluster_capacity()
    # GPUs that are not here are of a cluster that is not here.
    elsewhere = config.plan.device is not None and config.encode.gpus_per_actor > 0
    return dict.fromkeys(there, math.inf) if elsewhere else there


#: Nodes by key, each with the config that it belongs to.
_Planned = dict[str, tuple[Node, RunConfig]]


def _nodes_of_run(recipe: Recipe) -> _Planned:
    """All that leads to the evaluations of the test splits; to reranked runs too, where the config has a ranker."""
    config, found = recipe.config, _Planned()
    ranks = bool({"ranker", "rerank"} & config.model_fields_set)
    for split in config.data.test_splits:
        systems = recipe.systems(split)
        asked = [] if not ranks else [f"{TRAINED}+{config.rerank.model}"]
        target = recipe.evaluation(split, list(dict.fromkeys([*systems, *asked])))
        found |= {key: (node, config) for key, node in target.ancestors().items()}
    variants = {recipe.model(name).key: config.variant(name) for name in config.variants}
    return {key: (node, variants.get(key, own)) for key, (node, own) in found.items()}


def _nodes_of_refresh(recipe: Recipe) -> _Planned:
    """All that leads to the rounds."""
    found = _Planned()
    for arm in lay_out(recipe.run):
        for one in arm.rounds:
            found |= {key: (node, one.config) for key, node in one.nodes().items() if key not in found}
    return found


def _show(config: RunConfig, root: Folder, plan: Forecast) -> None:
    prices = config.plan.prices
    columns, rows = plan_rows(plan, prices)
    show_table(f"plan for {plan.num_passages:,} passages, rates of {plan.device}", columns, rows)
    facts: dict[str, Any] = {"all stages, one after the other": duration(plan.seconds)}
    if plan.gpu_hours():
        facts["GPU-hours"] = f"{plan.gpu_hours():.2f}"
    cost = plan.cost(prices)
    facts["cost"] = "no prices: set plan.prices" if cost is None else f"{cost:.2f} {prices.currency}"
    facts["disk"] = f"{plan.disk_bytes / 2**30:.2f} GiB"
    facts["not planned"] = plan.missing
    facts["kept at"] = root.path(FORECAST_FILE)
    show_summary("plan", facts)
    say("`raydr report` shows it beside what the run takes")


def _rates_of_folds(config: RunConfig, nodes: Sequence[Node], corpus: Corpus, data: Dataset) -> RunRates | None:
    """Of the short trainings that measure pairs, and of what they encode; None where there are none, or where they are
    like the run's own."""
    trained = [node for node in nodes if _is_fold(node)]
    if not trained:
        return None
    model, folds = config.cross_fit.model or config.model, _of_fold(config, trained[0])
    like_it = all(
        getattr(folds.train, name) == getattr(config.train, name)
        for name in ("batch_size", "num_hard_negatives", "optimizer")
    )
    if model == config.model and like_it:
        return None
    say("plan: the same with the models of the folds (cross_fit)")
    return try_model(folds.model_copy(update={"model": model}), corpus, data, ranker=False)


def _is_fold(node: Node) -> bool:
    return node.kind == "model" and node.label.rpartition("/")[2].startswith("cross-fit-train")


def _of_fold(config: RunConfig, node: Node) -> RunConfig:
    """The config with the training of a fold's node in place of its own, which measures nothing on dev."""
    train = TrainConfig.model_validate({**config.train.model_dump(), **node.settings["train"]})
    data = config.data.model_copy(update={"train_split": node.settings["train_split"], "dev_split": ""})
    return config.model_copy(update={"train": train, "data": data})


def _estimate(
    node: Node, config: RunConfig, sizes: RunSizes, rates: RunRates, folds: RunRates, capacity: Mapping[str, float]
) -> StageEstimate | None:
    """What a node takes, by the rates of the run or of its folds; None for those that are not planned."""
    name, encoding, cpus = node.label, rates.encoding, capacity["CPU"]
    split = node.settings.get("split")
    if node.kind == "model" and name.rpartition("/")[2].startswith("train"):
        return estimate_training(config, name, sizes, rates)
    if _is_fold(node):
        num_folds = config.cross_fit.num_folds
        left = {one: num * (num_folds - 1) // num_folds for one, num in sizes.num_queries.items()}
        return estimate_training(_of_fold(config, node), name, RunSizes(sizes.num_passages, left), folds)
    if node.kind == MARGINS:
        # Each pair's passage, and those that random ones are drawn from.
        num_pairs = sizes.num_queries[node.settings["split"]]
        num_texts = num_pairs + min(num_pairs, config.cross_fit.num_folds * node.settings["pool"])
        return estimate_encoding(config, name, num_texts, folds.encoding, capacity, queries=False)
    if rates.ranker is not None and (_is_ranker(node) or _is_ranker(node.inputs.get("model", node))):
        return _estimate_ranker(node, config, sizes, rates.ranker, capacity)
    if node.kind == "index":
        return estimate_index(config, name, sizes, encoding, rates.search, cpus)
    if node.kind == "run" and "index" in node.inputs:
        return estimate_search(config, name, sizes, str(split), encoding, rates.search, cpus)
    if node.kind == "embeddings":
        num_texts = sizes.num_passages if split is None else sizes.num_queries[split]
        if split is None and encoding.int8_tokens_per_second is not None:
            encoding = replace(encoding, tokens_per_second=encoding.int8_tokens_per_second)
        return estimate_encoding(config, name, num_texts, encoding, capacity, queries=split is not None)
    return None


def _is_ranker(node: Node) -> bool:
    """Whether a node is the config's cross-encoder; judges have others."""
    return node.kind == "cross_encoder" and node.settings.get("predicts", "log_odds") == "log_odds"


def _estimate_ranker(
    node: Node, config: RunConfig, sizes: RunSizes, rates: RankerRates, capacity: Mapping[str, float]
) -> StageEstimate | None:
    """The ranker's training, and what it reads; None for other nodes."""
    if _is_ranker(node):
        if "num_epochs" not in node.settings:
            return None
        return estimate_ranker_training(config, node.label, node.settings, sizes, rates)
    num_queries = sizes.num_queries[node.settings["split"]]
    if node.kind == RANKER_SCORES:
        a_query = 1 + (config.negatives.depth if config.negatives is not None else config.train.num_hard_negatives)
    else:
        a_query = min(node.settings["depth"], config.search.top_k)
    return estimate_reading(config, node.label, num_queries * a_query, rates.reading, capacity)
