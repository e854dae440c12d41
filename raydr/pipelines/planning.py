"""Plan a run, or its refresh rounds: what each stage will take, and afterwards what it took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from raydr.artifacts import Artifact
from raydr.console import say, show_summary, show_table
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.pipelines.job import Job
from raydr.pipelines.refresh_plan import RefreshPlan, plan_refresh
from raydr.pipelines.steps import Step
from raydr.planning.estimate import (
    RunSizes,
    StageEstimate,
    estimate_encoding,
    estimate_index,
    estimate_run,
    estimate_search,
    estimate_training,
)
from raydr.planning.plan import RunPlan, duration, plan_rows
from raydr.planning.rates import RunRates
from raydr.stages.plan import try_model
from raydr.stages.resources import ON_DEMAND, cluster_capacity


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
    capacity = {name: math.inf if has >= ON_DEMAND else has for name, has in cluster_capacity().items()}
    rates = try_model(config, job.corpus, job.dataset, sizes)
    missing = ["prepare", "BM25", "evaluation"]
    if refresh:
        rounds = plan_refresh(config, job.workspace.refresh, data.artifact, corpus)
        stages = tuple(
            found for step in rounds.steps if (found := _estimate(step, rounds, sizes, rates, capacity)) is not None
        )
        missing = sorted({step.label.partition("/")[2] for step in rounds.steps} - {_role(one.name) for one in stages})
    else:
        stages = estimate_run(config, sizes, rates, capacity)
    plan = RunPlan(stages, sizes.num_passages, rates.encoding.device, ", ".join(missing))
    _show(job, plan)
    job.workspace.root.write_json(job.workspace.plan, plan.as_json())
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
    facts["kept at"] = job.workspace.root.path(job.workspace.plan)
    show_summary("plan", facts)
    say("`raydr report` shows it beside what the run takes")


def _role(label: str) -> str:
    return label.partition("/")[2]


def _estimate(
    step: Step, plan: RefreshPlan, sizes: RunSizes, rates: RunRates, capacity: Mapping[str, float]
) -> StageEstimate | None:
    """What a step of a refresh takes; None for those that are not planned."""
    config = next(
        (one.config for arm in plan.arms for one in arm.rounds if one.number == step.group),
        plan.arms[0].rounds[0].config,
    )
    name, role, encoding = step.label, _role(step.label), rates.encoding
    if role == "train":
        return estimate_training(config, name, sizes, rates)
    if role == "passages":
        return estimate_encoding(config, name, sizes.num_passages, encoding, capacity, queries=False)
    if role == "index":
        return estimate_index(config, name, sizes, encoding.dim, rates.search, capacity["CPU"])
    kind, _, split = role.partition("-")
    if split not in sizes.num_queries:
        return None
    if kind == "queries":
        return estimate_encoding(config, name, sizes.num_queries[split], encoding, capacity, queries=True)
    if kind == "run" and "index" in step.needs:
        return estimate_search(config, name, sizes, split, encoding.dim, rates.search, capacity["CPU"])
    return None
