"""Capacity of the cluster: its resources now, or at its largest size."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from raydr.distributed.cluster import is_connected, local_session, stage_labels, start_ray, stated_capacity

#: Hint in messages about lacking resources of the cluster.
IF_IT_GROWS = "(if it grows on demand, ray.capacity says how far)"

#: Devices of NVIDIA's driver, on a Jetson and under Windows too, and of AMD's.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")


def cluster_capacity() -> dict[str, float]:
    """Return the usable CPUs and GPUs, by Ray's names.

    A local Ray before its start counts with its future resources. A cluster counts with ``ray.capacity`` if that is
    set, since Ray does not know its largest size; else with its live nodes.
    """
    local = local_session()
    if local is not None and not is_connected():
        num_gpus = local.num_gpus if local.num_gpus is not None else num_gpus_here()
        return {"CPU": float(local.num_cpus or os.cpu_count() or 1), "GPU": float(num_gpus)}
    largest = stated_capacity()
    if largest is not None:
        capacity: Mapping[str, float] = {str(name): amount for name, amount in largest.items()}
    else:
        import ray

        start_ray()
        capacity = ray.cluster_resources()
    return {name: float(capacity.get(name, 0)) for name in ("CPU", "GPU")}


def num_gpus_here() -> int:
    """Return the number of GPUs of this machine. PyTorch, whose import takes a second, is used only with a driver."""
    if sys.platform == "linux" and "torch" not in sys.modules and not any(map(os.path.exists, _DRIVERS)):
        return 0
    import torch

    return torch.cuda.device_count()


def memory_to_ask(num_bytes: int) -> int:
    """Return the memory that a task requests of Ray.

    A cluster that grows starts a large enough node. Elsewhere Ray would wait for ever for more than a node has, so that
    the request is limited to the largest node; the task then has that node to itself.
    """
    if stated_capacity() is not None:
        return num_bytes
    sizes = [node["Resources"].get("memory", 0) for node in nodes_with(stage_labels()) if "CPU" in node["Resources"]]
    return min(num_bytes, int(max(sizes, default=0)))


def node_capacities() -> list[dict[str, float]]:
    """Return the CPUs and GPUs of each live node that ``ray.node_labels`` admits."""
    return [
        {name: float(node["Resources"].get(name, 0)) for name in ("CPU", "GPU")} for node in nodes_with(stage_labels())
    ]


def nodes_with(labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return Ray's records of the live nodes that labels, in Ray's notation, admit."""
    import ray

    return [
        node
        for node in ray.nodes()
        if node["Alive"] and all(_admits(rule, node.get("Labels", {}).get(key)) for key, rule in labels.items())
    ]


def _admits(rule: str, label: str | None) -> bool:
    """Return whether a rule of a label, in Ray's notation, admits a node.

    >>> _admits("!train", None), _admits("in(a,b)", "b"), _admits("!in(a,b)", "b"), _admits("a", None)
    (True, True, False, False)
    """
    values = [value.strip() for value in rule.removeprefix("!").removeprefix("in(").removesuffix(")").split(",")]
    return (label in values) != rule.startswith("!")
