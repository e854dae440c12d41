"""Memory of this process that nothing uses any more, and that libraries would keep."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any


def bound_memory() -> None:
    """Keep libraries from filling memory with what they have compiled; workers of the local Ray inherit it.

    Before PyTorch's first product. On a cluster it belongs to the nodes' environment.
    """
    # oneDNN keeps what it compiled for every shape of a matrix product. Batches of changing lengths fill its 1,024
    # places with hundreds of MiB, and are not slower with few (docs/performance.md).
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")


def give_back_memory() -> bool:
    """Return what was freed to the system: glibc keeps it, for every thread apart, so that each stage of a process
    would add its own peak. So does PyTorch on a GPU, where a worker of Ray may be next.

    Returns:
        Whether the C library can do so (glibc).
    """
    # Another thread may be in the middle of importing it.
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if getattr(cuda, "is_initialized", bool)():
        cuda.empty_cache()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True
