"""Evaluations of runs."""

from __future__ import annotations

from collections.abc import Mapping

from raydr.graph.declaring import Declaring
from raydr.graph.node import Node
from raydr.graph.nodes import data


def evaluation(run: Declaring, split: str, runs: Mapping[str, Node], label: str = "") -> Node:
    """Measures of runs, by the name of the system; each is compared with the first."""
    from raydr.stages.evaluate import evaluate

    settings, seed = run.config.evaluate, run.config.seed
    return Node(
        "evaluation",
        f"{run.place}{label or f'evaluate-{split}'}",
        lambda work: evaluate(
            work.making,
            work.pool,
            work["dataset"],
            work["corpus"],
            work.group("run"),
            settings=settings,
            split=split,
            seed=seed,
        ),
        {"split": split, "seed": seed, "systems": list(runs), **settings.model_dump(mode="json")},
        {
            "dataset": data.dataset(run),
            "corpus": data.corpus(run),
            **{f"run/{system}": node for system, node in runs.items()},
        },
        num_rows=lambda inputs: inputs["dataset"].rows(f"queries/{split}") * len(runs),
        unit="queries",
        moves=True,
    )
