"""Layout of the shards of an index over actors, all of which fit the cluster at the same time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raydr.console import counted, say
from raydr.distributed.pool import Needs, Pool
from raydr.distributed.resources import IF_IT_GROWS, cluster_capacity, node_capacities
from raydr.errors import ConfigError
from raydr.indexing.config import SearchConfig
from raydr.indexing.faiss_backend import EXACT, has_cuda
from raydr.indexing.shards import IndexShards

#: Share of a GPU's memory for vectors; CUDA and PyTorch need the rest.
_GPU_SHARE = 0.85
#: Bytes for the scores of a block and their sorting.
_SCORE_BYTES = 2 * 2**30
#: Assumed CPUs of the smallest node of a growing cluster without nodes.
_SMALLEST_NODE = 8


class GpuNode(NamedTuple):
    """Properties of a GPU, and of FAISS on its node."""

    faiss_has_cuda: bool
    memory_bytes: int


@dataclass(frozen=True)
class Layout:
    """Groups of shards; each actor holds a group."""

    groups: tuple[tuple[int, ...], ...]
    cpus: int
    gpus: int
    device: str


def plan_layout(settings: SearchConfig, shards: IndexShards, pool: Pool) -> Layout:
    """Group the shards so that all actors fit the cluster at once, and print the layout.

    Args:
        settings: settings of the search.
        shards: shards of the index.
        pool: pool on which a task inspects a GPU.

    Raises:
        ConfigError: the actors do not fit, or CUDA is asked for and missing.
    """
    capacity, num_shards = cluster_capacity(), shards.num_shards
    device, reason, gpu = _choose_device(settings, capacity["GPU"], shards, pool)
    # A node with a GPU may have started for the question.
    nodes = node_capacities()
    wanted, gpus = settings.cpus_per_actor or 1, 1 if gpu else 0
    nodes = [node for node in nodes if node["GPU"] or not gpus]
    present, grown = num_places(nodes, wanted, gpus), int(capacity["GPU"] if gpus else capacity["CPU"] / wanted)
    grows = grown > present and capacity["CPU"] > sum(node["CPU"] for node in nodes)
    fit = grown if grows else present
    if fit < 1:
        raise ConfigError(
            f"a search actor needs {wanted} CPUs{' and a GPU' if gpus else ''} of one node, the largest has "
            f"{max((node['CPU'] for node in nodes), default=0):g} CPUs: set search.cpus_per_actor lower {IF_IT_GROWS}"
        )
    fewest = _fewest_gpus(shards.shard_bytes, gpu.memory_bytes) if gpu else 1
    # More GPUs search faster, but a GPU that must start first costs more time.
    num_actors = min(num_shards, fit, settings.max_actors or (max(fewest, present) if gpu else num_shards))
    if num_actors < fewest:
        raise ConfigError(
            f"the shards of the index take {fewest} GPUs of {gpu.memory_bytes / 2**30 if gpu else 0:.0f} GiB, and "
            f"{num_actors} are to hold them: set search.max_actors higher or search.device=cpu {IF_IT_GROWS}"
        )
    bounds = [num_shards * actor // num_actors for actor in range(num_actors + 1)]
    groups = tuple(tuple(range(first, end)) for first, end in itertools.pairwise(bounds))
    cpus = settings.cpus_per_actor or largest_share(nodes, num_actors, gpus)
    if not settings.cpus_per_actor and grows:
        cpus = max(cpus, share_of_growing(capacity["CPU"], nodes, num_actors, gpus))
    counts, each = counted(num_shards, "shard"), f"{counted(cpus, 'CPU')}{' each' if num_actors > 1 else ''}"
    say(f"search: {counts} in {counted(num_actors, 'actor')} of {each}, on {device} ({reason})")
    return Layout(groups, cpus, gpus, device)


def _fewest_gpus(shard_bytes: Sequence[int], memory_bytes: int) -> int:
    """Return the smallest number of GPUs whose memory holds all shards."""
    largest = max(shard_bytes)
    held = int((memory_bytes * _GPU_SHARE - _SCORE_BYTES) / max(1, largest))
    if held < 1:
        raise ConfigError(
            f"a shard of {largest / 2**30:.1f} GiB does not fit a GPU of {memory_bytes / 2**30:.1f} GiB: set "
            "index.shard_rows lower, or search.device=cpu"
        )
    return math.ceil(len(shard_bytes) / held)


def num_places(nodes: Sequence[Mapping[str, float]], cpus: int, gpus: int) -> int:
    """Return how many actors the nodes hold at a time; an actor needs a single node.

    >>> num_places([{"CPU": 16, "GPU": 1}, {"CPU": 16, "GPU": 0}], cpus=5, gpus=0)
    6
    >>> num_places([{"CPU": 16, "GPU": 1}, {"CPU": 16, "GPU": 0}], cpus=5, gpus=1)
    1
    """
    return sum(min(int(node["CPU"] / cpus), int(node["GPU"] / gpus) if gpus else 10**9) for node in nodes)


def largest_share(nodes: Sequence[Mapping[str, float]], num_actors: int, gpus: int) -> int:
    """Return the largest number of CPUs per actor with which all actors fit at a time; at least 1.

    >>> largest_share([{"CPU": 16, "GPU": 0}, {"CPU": 16, "GPU": 0}], num_actors=3, gpus=0)
    8
    """
    most = int(max((node["CPU"] for node in nodes), default=1))
    return next((cpus for cpus in range(most, 1, -1) if num_places(nodes, cpus, gpus) >= num_actors), 1)


def share_of_growing(cpus: float, nodes: Sequence[Mapping[str, float]], num_actors: int, gpus: int) -> int:
    """Return the CPUs per actor on a growing cluster, whose future nodes are of unknown size.

    The share is a power of two, as the CPUs of machines are. A node that is no smaller than a share is then divided
    without a remainder. The smallest existing node (per GPU) bounds it, or :data:`_SMALLEST_NODE` without nodes.

    >>> share_of_growing(64, [{"CPU": 0, "GPU": 0}], num_actors=5, gpus=0)
    8
    >>> share_of_growing(64, [{"CPU": 4, "GPU": 0}], num_actors=5, gpus=0)
    4
    """
    sizes = [node["CPU"] / max(1.0, node["GPU"] if gpus else 1.0) for node in nodes if node["CPU"]]
    most = min(cpus / num_actors, min(sizes, default=_SMALLEST_NODE))
    return 1 << int(math.log2(max(1.0, most)))


def _choose_device(
    settings: SearchConfig, gpus: float, shards: IndexShards, pool: Pool
) -> tuple[str, str, GpuNode | None]:
    factory, exact = shards.factory, shards.factory in EXACT
    if settings.device == "cpu":
        return "cpu", "as configured", None
    missing, gpu_facts = "", None
    if gpus < 1:
        missing = f"the cluster has no GPU {IF_IT_GROWS}"
    else:
        say("search: asking a node with a GPU how much that holds, and what its FAISS can")
        gpu_facts = pool.run(look_at_gpu, needs=Needs(num_cpus=0, num_gpus=1))
        if not exact and not gpu_facts.faiss_has_cuda:
            missing = f"faiss-cpu is installed there, and PyTorch searches {' and '.join(EXACT)} only, not {factory}"
    if settings.device == "cuda" and missing:
        raise ConfigError(
            f"search.device is cuda, but {missing}: set search.device=cpu, or install faiss-gpu on nodes with a GPU"
        )
    if missing:
        return "cpu", missing, None
    return "cuda", "by FAISS if that has CUDA, else by PyTorch" if exact else "by FAISS", gpu_facts


def look_at_gpu() -> GpuNode:
    """Return the properties of the GPU of this process; the driver's node may have another FAISS."""
    import torch

    return GpuNode(has_cuda(), int(torch.cuda.get_device_properties(0).total_memory))
