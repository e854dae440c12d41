"""What the cluster has, or can grow to, so that a stage asks for no more."""

from __future__ import annotations


def cluster_capacity() -> dict[str, float]:
    """CPUs and GPUs (keys ``CPU``, ``GPU``) of the alive nodes, or of all that the autoscaler may start."""
    import ray
    from ray._private.state import state

    now = ray.cluster_resources()
    later = state.get_max_resources_from_cluster_config() or {}
    return {name: float(max(now.get(name, 0), later.get(name, 0))) for name in ("CPU", "GPU")}


def smallest_node_cpus() -> float:
    """CPUs of the smallest alive node that has any."""
    import ray

    cpus = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    return float(min((count for count in cpus if count), default=0.0))
