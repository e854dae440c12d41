"""How many CPUs and GPUs a cluster has, by Ray's names, or that it grows on demand."""

from __future__ import annotations

from collections.abc import Mapping

#: CPUs, or GPUs, of a cluster that grows on demand: how far it may grow is in its own files, and Ray does not tell.
ON_DEMAND = 1e6


def is_on_demand(capacity: Mapping[str, float]) -> bool:
    """
    >>> is_on_demand({"CPU": 16.0, "GPU": 2.0}), is_on_demand({"CPU": ON_DEMAND, "GPU": ON_DEMAND})
    (False, True)
    """
    return max(capacity.values(), default=0.0) >= ON_DEMAND


def describe_capacity(capacity: Mapping[str, float]) -> str:
    """
    >>> describe_capacity({"CPU": 16.0, "GPU": 2.0}), describe_capacity({"CPU": ON_DEMAND, "GPU": ON_DEMAND})
    ('a cluster of 16 CPUs and 2 GPUs', 'a cluster that grows on demand')
    """
    if is_on_demand(capacity):
        return "a cluster that grows on demand"
    return f"a cluster of {capacity['CPU']:g} CPUs and {capacity['GPU']:g} GPUs"
