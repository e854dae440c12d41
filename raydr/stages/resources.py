"""What the cluster has, or can grow to, so that a stage asks for no more."""

from __future__ import annotations

import os

from raydr.runtime.capacity import ON_DEMAND
from raydr.runtime.cluster import is_connected, local_session, start_ray


def cluster_capacity() -> dict[str, float]:
    """CPUs and GPUs of the alive nodes; ``ON_DEMAND`` of each where an autoscaler adds some.

    Of a local Ray that was not started yet: what it would have.
    """
    local = local_session()
    if local is not None and not is_connected():
        num_gpus = local.num_gpus if local.num_gpus is not None else _num_gpus_here()
        return {"CPU": float(local.num_cpus or os.cpu_count() or 1), "GPU": float(num_gpus)}
    import ray

    start_ray()
    now = ray.cluster_resources()
    grows = grows_on_demand()
    return {name: ON_DEMAND if grows else float(now.get(name, 0)) for name in ("CPU", "GPU")}


def _num_gpus_here() -> int:
    import torch

    return torch.cuda.device_count()


def grows_on_demand() -> bool:
    """Whether an autoscaler looks after the cluster, which may then have no node but its head until it is asked."""
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply

    status = GetClusterStatusReply()
    status.ParseFromString(GcsClient(address=ray.get_runtime_context().gcs_address).get_cluster_status())
    return bool(status.autoscaling_state.autoscaler_state_version)


def node_capacities() -> list[dict[str, float]]:
    """CPUs and GPUs of each alive node."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [{name: float(node.get(name, 0)) for name in ("CPU", "GPU")} for node in nodes]
