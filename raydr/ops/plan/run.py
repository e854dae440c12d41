"""Plan a run, or its refresh rounds: what each stage will take, and afterwards what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.graph.job import Job
from raydr.graph.refresh_plan import RefreshPlan, plan_refresh
from raydr.graph.steps import Step
from raydr.ops.plan.estimate import (
    RunSizes,
    StageEstimate,
    estimate_encoding,
    estimate_index,
    estimate_run,
    estimate_search,
    estimate_training,
)
from raydr.ops.plan.measure import try_model
from raydr.ops.plan.plan import PLAN_FILE, RunPlan, duration, plan_rows
from raydr.ops.plan.rates import RunRates
from raydr.runtime.capacity import is_on_demand
from raydr.runtime.console import say, show_summary, show_table
from raydr.stages.resources import cluster_capacity
from raydr.store.artifact import Artifact


def run_plan(job: Job, refresh: bool) -> RunPlan:
    """Try the model, estimate every stage, show the plan and keep it in the working folder.

    Args:
        job: the run, its data prepared.
        refresh: plan the refresh rounds of the config instead of one training and its evaluation.

    Raises:
        ArtifactError: the data are not prepared.
        ConfigError: the data have no training split, or the cluster has not the resources of one worker.
    """
    config = job.config
    corpus, data = Artifact.open(job.corpus, "corpus"), Dataset.open(job.dataset)
    num_queries = {split: data.artifact.rows(f"queries/{split}") for split in data.splits}
    if config.data.train_split not in num_queries:
        raise ConfigError(
            f"the data set at {job.dataset} has no split {config.data.train_split!r}; it has {', '.join(num_queries)}"
        )
    sizes = RunSizes(config.plan.num_passages or corpus.rows("passages"), num_queries)
    there = cluster_capacity()
    # GPUs that are not here are of a cluster that is not here.
    elsewhere = is_on_demand(there) or (config.plan.device is not None and config.encode.gpus_per_actor > 0)
    capacity = dict.fromkeys(there, math.inf) if elsewhere else there
    rates = try_model(config, job.corpus, job.dataset, sizes)
    if refresh:
        rounds = plan_refresh(config, job.workspace.refresh, data.artifact, corpus)
        stages, missing = _plan_refresh(rounds, sizes, rates, capacity)
    else:
        stages, missing = estimate_run(config, sizes, rates, capacity), "prepare, BM25, evaluation"
    plan = RunPlan(stages, sizes.num_passages, rates.encoding.device, missing)
    _show(job, plan)
    job.workspace.root.write_json(PLAN_FILE, plan.as_json())
    return plan


def _show(job: Job, plan: RunPlan) -> None:
    prices = job.config.plan.prices
    columns, rows = plan_rows(plan, prices)
    show_table(f"plan for {plan.num_passages:,} passages, rates of {plan.device}", columns, rows)
    facts: dict[str, Any] = {"all stages, one after the other": duration(plan.seconds)}
    if plan.gpu_hours():
        facts["GPU-hours"] = f"{plan.gpu_hours():.2f}"
    cost = plan.cost(prices)
    facts["cost"] = "no prices: set plan.prices" if cost is None else f"{cost:.2f} {prices.currency}"
    facts["disk"] = f"{sum(stage.disk_bytes for stage in plan.stages) / 2**30:.2f} GiB"
    facts["not planned"] = plan.missing
    facts["kept at"] = job.workspace.root.path(PLAN_FILE)
    show_summary("plan", facts)
    say("`raydr report` shows it beside what the run takes")


def _plan_refresh(
    rounds: RefreshPlan, sizes: RunSizes, rates: RunRates, capacity: Mapping[str, float]
) -> tuple[tuple[StageEstimate, ...], str]:
    """The estimates of all steps that can be planned, and the names of the others."""
    configs: dict[str, RunConfig] = {}
    for arm in rounds.arms:
        keys = arm.steps()
        for one in arm.rounds:
            configs |= {step.key: one.config for step in rounds.steps if step.group == one.number and step.key in keys}
    found = {
        # Round 0 is what the first round starts from.
        step.key: _estimate(step, configs.get(step.key, rounds.arms[0].rounds[0].config), sizes, rates, capacity)
        for step in rounds.steps
    }
    missing = {step.label.partition("/")[2] for step in rounds.steps if found[step.key] is None}
    planned = tuple(replace(one, key=key) for key, one in found.items() if one is not None)
    return planned, ", ".join(sorted(missing))


def _estimate(
    step: Step, config: RunConfig, sizes: RunSizes, rates: RunRates, capacity: Mapping[str, float]
) -> StageEstimate | None:
    """What a step of a refresh takes; None for those that are not planned."""
    name, encoding = step.label, rates.encoding
    if step.kind == "model" and name.endswith("/train"):
        return estimate_training(config, name, sizes, rates)
    if step.kind == "index":
        return estimate_index(config, name, sizes, encoding.dim, rates.search, capacity["CPU"])
    if step.kind == "run" and "index" in step.needs:
        split = step.settings["split"]
        return estimate_search(config, name, sizes, split, encoding.dim, rates.search, capacity["CPU"])
    if step.kind == "embeddings":
        split = step.settings.get("split")
        num_texts = sizes.num_passages if split is None else sizes.num_queries[split]
        return estimate_encoding(config, name, num_texts, encoding, capacity, queries=split is not None)
    return None
