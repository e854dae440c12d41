"""The nodes of a trial: those of its config, over the data and in the working folder that all trials share.

A trial that agrees with another one, a verb, or a round of a refresh in what a node depends on finds it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from raydr.config.run import RunConfig
from raydr.errors import RaydrError
from raydr.graph.declaring import Declaring
from raydr.graph.facts import Facts
from raydr.graph.node import Node
from raydr.graph.places import Places
from raydr.graph.planning import Inventory, required
from raydr.graph.recipe import Recipe
from raydr.graph.rounds import lay_out
from raydr.graph.running import Runner
from raydr.runtime.cluster import ray_session
from raydr.runtime.tracking import NullTracker
from raydr.stages.member import checkpoint_folder
from raydr.stages.pool import Pool
from raydr.stages.resources import cluster_capacity
from raydr.stages.train_progress import Watcher
from raydr.store.folder import Folder

#: Kinds that a trial that is over leaves behind only if it is the best.
_LARGE = ("model", "embeddings", "index")


def declare(config: RunConfig) -> Declaring:
    """What the nodes of a trial's config are declared with."""
    return Declaring(config, _facts(config.workdir), config)


@lru_cache(maxsize=4)
def _facts(workdir: str) -> Facts:
    # Once a process: checkpoints are hashed for each.
    return Facts(Places.of(workdir))


def trained(config: RunConfig, watcher: Watcher | None = None) -> Node:
    """The model that a trial of trainings makes; the watcher is told how far it is."""
    return Recipe(declare(config)).trained(watcher=watcher)


def nodes_of(config: RunConfig, refreshes: bool) -> dict[str, Node]:
    """All nodes of a trial, by key; none if its config has none, as a trial that fails."""
    try:
        if not refreshes:
            model = trained(config)
            return {**model.ancestors(), model.key: model}
        [arm] = lay_out(declare(config))
        return {key: node for one in arm.rounds for key, node in one.nodes().items()}
    except RaydrError:
        # Such a trial fails, and says why; it has made nothing.
        return {}


def make(
    config: RunConfig, targets: Sequence[Node], pool: Pool | None = None, capacity: dict[str, float] | None = None
) -> Inventory:
    """Make nodes of a trial in this process, or by what it asks Ray for; in a task outside the trial's own process.

    Args:
        config: of the trial.
        targets: what is asked for; what they need is made as well.
        pool: where all of them are made; chosen for each if None.
        capacity: what they share; all that there is if None.
    """
    inventory = Inventory(Places.of(config.workdir))
    run_config: dict[str, Any] = config.model_dump(mode="json")
    with ray_session(config.ray):
        runner = Runner(inventory, NullTracker(), run_config, capacity or cluster_capacity(), {}, pool=pool)
        runner.make(required(inventory, targets))
    return inventory


def forget(places: Places, ended: Iterable[Node], kept: Iterable[Node]) -> None:
    """Remove models, vectors and indexes of trials that are over, with the states of trainings that were stopped.

    Args:
        places: of the working folder.
        ended: the nodes of the trials that are over.
        kept: nodes that other trials need.
    """
    needed = {node.key for node in kept}
    needed |= {pointer.key for name in places.names() if (pointer := places.pointer(name)) is not None}
    for node in ended:
        if node.kind in _LARGE and node.key not in needed:
            folder: Folder = places.folder(node.kind, node.key)
            folder.remove()
            checkpoint_folder(folder).remove()
