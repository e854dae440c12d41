"""What the cluster has, or can grow to, so that a stage asks for no more."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from raydr.distributed.cluster import is_connected, local_session, start_ray, stated_capacity

#: What a message adds that says that the cluster has too little.
IF_IT_GROWS = "(if it grows on demand, ray.capacity says how far)"

#: Devices of NVIDIA's driver, on a Jetson and under Windows too, and of AMD's.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")


def cluster_capacity() -> dict[str, float]:
    """CPUs and GPUs that there are to be had, by Ray's names.

    Of a local Ray those that it has or, if it was not started yet, would have. Of a cluster ``ray.capacity`` where that
    is stated, since Ray does not tell how far a cluster may grow, else those of the nodes that are alive.
    """
    local = local_session()
    if local is not None and not is_connected():
        num_gpus = local.num_gpus if local.num_gpus is not None else num_gpus_here()
        return {"CPU": float(local.num_cpus or os.cpu_count() or 1), "GPU": float(num_gpus)}
    stated = stated_capacity()
    if stated is not None:
        capacity: Mapping[str, float] = {str(name): amount for name, amount in stated.items()}
    else:
        import ray

        start_ray()
        capacity = ray.cluster_resources()
    return {name: float(capacity.get(name, 0)) for name in ("CPU", "GPU")}


def num_gpus_here() -> int:
    """GPUs that PyTorch sees on this machine; without a driver's device it is not asked: its import takes a second."""
    if sys.platform == "linux" and "torch" not in sys.modules and not any(map(os.path.exists, _DRIVERS)):
        return 0
    import torch

    return torch.cuda.device_count()


def memory_to_ask(num_bytes: int) -> int:
    """Bytes that a task asks Ray for which needs so many.

    A cluster that grows starts a node that has them. Where nothing grows Ray would wait for ever, so that no more is
    asked for than the largest node has; the task then has that node to itself.
    """
    if stated_capacity() is not None:
        return num_bytes
    import ray

    there = [node["Resources"].get("memory", 0) for node in ray.nodes() if node["Alive"] and "CPU" in node["Resources"]]
    return min(num_bytes, int(max(there, default=0)))


def node_capacities() -> list[dict[str, float]]:
    """CPUs and GPUs of each alive node."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [{name: float(node.get(name, 0)) for name in ("CPU", "GPU")} for node in nodes]
