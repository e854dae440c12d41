"""The nodes of a trial: those of its config, over the data and in the working folder that all trials share.

A trial that agrees with another one, a verb, or a round of a refresh in what a node depends on finds it there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import lru_cache

from raydr.config.run import RunConfig
from raydr.graph.declaring import Declaring
from raydr.graph.facts import Facts
from raydr.graph.node import Node, Resources
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

#: Kinds that are large, and made again from a model.
VECTORS = ("quantized", "embeddings", "index")


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
    """All nodes of a trial, by key.

    Raises:
        RaydrError: its config has none.
    """
    if not refreshes:
        model = trained(config)
        return {**model.ancestors(), model.key: model}
    [arm] = lay_out(declare(config))
    return {key: node for one in arm.rounds for key, node in one.nodes().items()}


def missing(config: RunConfig, targets: Iterable[Node]) -> list[Node]:
    """What has to be made of a trial's nodes."""
    return required(Inventory(Places.of(config.workdir)), targets)


def make(
    config: RunConfig, targets: Iterable[Node], pool: Pool | None = None, capacity: Resources | None = None
) -> Inventory:
    """Make nodes of a trial in this process, or by what it asks Ray for; in a task outside the trial's own process.

    Args:
        config: of the trial.
        targets: what is asked for; what they need is made as well.
        pool: where all of them are made; chosen for each if None.
        capacity: what they share; all that there is if None.
    """
    inventory = Inventory(Places.of(config.workdir))
    with ray_session(config.ray):
        run_config = config.model_dump(mode="json")
        runner = Runner(inventory, NullTracker(), run_config, capacity or cluster_capacity(), {}, pool=pool)
        runner.make(required(inventory, targets))
    return inventory


def remove_nodes(places: Places, ended: Iterable[Node], kept: Iterable[Node], kinds: Container[str]) -> None:
    """Remove nodes of some kinds, with the states of trainings that were stopped, unless a name leads to them.

    Args:
        places: of the working folder.
        ended: the nodes of a trial that is over.
        kept: nodes that other trials need.
        kinds: of what is removed.
    """
    needed = places.named_keys() | {node.key for node in kept}
    for node in ended:
        if node.kind in kinds and node.key not in needed:
            folder = places.folder(node.kind, node.key)
            folder.remove()
            checkpoint_folder(folder).remove()
