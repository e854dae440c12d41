"""Evaluations of runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from raydr.graph.nodes import data
from raydr.stages.context import Declaring
from raydr.stages.declaration import Node, stage
from raydr.stages.evaluate import VERSION, evaluate


def evaluation(run: Declaring, split: str, runs: Mapping[str, Node], label: str = "") -> Node:
    """Measures of runs, by the name of the system, and the paired tests of every two."""
    settings, seed = run.config.evaluate, run.config.seed
    return Node(
        "evaluation",
        f"{run.place}{label or f'evaluate-{split}'}",
        stage(partial(evaluate, settings=settings, split=split, seed=seed), "dataset", "corpus", "run/"),
        {"split": split, "seed": seed, "systems": list(runs), **settings.model_dump(mode="json")},
        {
            "dataset": data.dataset(run),
            "corpus": data.corpus(run),
            **{f"run/{system}": node for system, node in runs.items()},
        },
        VERSION,
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}") * len(runs),
        moves=True,
    )
