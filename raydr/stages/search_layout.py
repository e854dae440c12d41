"""How the shards of an index are spread over actors: all of them fit the cluster at a time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raydr.errors import ConfigError
from raydr.indexing.backend import has_cuda
from raydr.indexing.config import SearchConfig
from raydr.indexing.factory import EXACT
from raydr.runtime.capacity import ON_DEMAND
from raydr.runtime.console import counted, say
from raydr.stages.pool import Pool
from raydr.stages.resources import cluster_capacity, node_capacities


@dataclass(frozen=True)
class Layout:
    """How the shards are spread: each actor holds the shards of one group."""

    groups: tuple[tuple[int, ...], ...]
    cpus: int
    gpus: int
    device: str


def plan_layout(settings: SearchConfig, num_shards: int, factory: str, pool: Pool) -> Layout:
    """Group the shards so that all actors fit the cluster at once, and say how.

    Raises:
        ConfigError: one actor does not fit, or CUDA is asked for and missing.
    """
    capacity = cluster_capacity()
    nodes = node_capacities()
    # Nobody waits for a GPU that was not asked for.
    gpus_there = capacity["GPU"] if settings.device == "cuda" else sum(node["GPU"] for node in nodes)
    device, reason = _choose_device(settings, gpus_there, factory, pool)
    gpus = 1 if device == "cuda" else 0
    wanted = settings.cpus_per_actor or 1
    nodes = [node for node in nodes if node["GPU"] or not gpus]
    grows = capacity["CPU"] == ON_DEMAND
    # A cluster that grows finds a place for each.
    fit = num_shards if grows else num_places(nodes, wanted, gpus)
    if fit < 1:
        raise ConfigError(
            f"a search actor needs {wanted} CPUs{' and a GPU' if gpus else ''} of one node, the largest has "
            f"{max((node['CPU'] for node in nodes), default=0):g} CPUs: set search.cpus_per_actor lower"
        )
    num_actors = min(num_shards, fit, settings.max_actors or num_shards)
    bounds = [num_shards * actor // num_actors for actor in range(num_actors + 1)]
    groups = tuple(tuple(range(first, end)) for first, end in itertools.pairwise(bounds))
    cpus = settings.cpus_per_actor or 0
    if not cpus and grows and num_places(nodes, 1, gpus) < num_actors:
        # How far the cluster may grow is not known: so few that even one node like the smallest holds all actors.
        cpus = max(1, int(min((node["CPU"] for node in nodes if node["CPU"]), default=1) / num_actors))
    elif not cpus:
        cpus = largest_share(nodes, num_actors, gpus)
    shards, each = counted(num_shards, "shard"), f"{counted(cpus, 'CPU')}{' each' if num_actors > 1 else ''}"
    say(f"search: {shards} in {counted(num_actors, 'actor')} of {each}, on {device} ({reason})")
    return Layout(groups, cpus, gpus, device)


def num_places(nodes: Sequence[Mapping[str, float]], cpus: int, gpus: int) -> int:
    """How many actors the nodes hold at a time; one is never spread over two nodes.

    >>> num_places([{"CPU": 16, "GPU": 1}, {"CPU": 16, "GPU": 0}], cpus=5, gpus=0)
    6
    >>> num_places([{"CPU": 16, "GPU": 1}, {"CPU": 16, "GPU": 0}], cpus=5, gpus=1)
    1
    """
    return sum(min(int(node["CPU"] / cpus), int(node["GPU"] / gpus) if gpus else 10**9) for node in nodes)


def largest_share(nodes: Sequence[Mapping[str, float]], num_actors: int, gpus: int) -> int:
    """The most CPUs that each of some actors can have, if all of them are to be held at a time; at least 1.

    >>> largest_share([{"CPU": 16, "GPU": 0}, {"CPU": 16, "GPU": 0}], num_actors=3, gpus=0)
    8
    """
    most = int(max((node["CPU"] for node in nodes), default=1))
    return next((cpus for cpus in range(most, 1, -1) if num_places(nodes, cpus, gpus) >= num_actors), 1)


def _choose_device(settings: SearchConfig, gpus: float, factory: str, pool: Pool) -> tuple[str, str]:
    missing = ""
    if gpus < 1:
        missing = "the cluster has no GPU now"
    elif settings.device != "cpu" and factory not in EXACT and not _faiss_on_gpu_nodes(pool):
        missing = f"faiss-cpu is installed there, and PyTorch searches {' and '.join(EXACT)} only, not {factory}"
    if settings.device == "cuda" and missing:
        raise ConfigError(
            f"search.device is cuda, but {missing}: set search.device=cpu, or install faiss-gpu on nodes with a GPU"
        )
    if settings.device == "cpu":
        return "cpu", "as configured"
    if missing:
        return "cpu", missing
    return "cuda", "by FAISS if that has CUDA, else by PyTorch" if factory in EXACT else "by FAISS"


def _faiss_on_gpu_nodes(pool: Pool) -> bool:
    """Whether FAISS searches with CUDA where the GPUs are: the driver's node may have another one."""
    say("search: asking a node with a GPU what its FAISS can")
    return bool(pool.run(has_cuda, num_cpus=0, num_gpus=1))
