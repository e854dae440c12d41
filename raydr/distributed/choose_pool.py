"""The choice of the pool: this process for little work, else Ray."""

from __future__ import annotations

from raydr.distributed.cluster import RayConfig, local_session, works_for_ray
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.resources import num_gpus_here

#: Rows that are read without a model in the time that one takes with it, roughly.
_LIGHT_ROWS = 5
#: Rows that a GPU reads with a model in the time that a processor takes for one, roughly; and rows of what it searches.
_GPU_ROWS, _GPU_LIGHT_ROWS = 10, 4


def choose_pool(num_rows: int, num_gpus: float = 0, asks_model: bool = False) -> Pool:
    """Return this process for little work where Ray would be local, else Ray.

    Args:
        num_rows: of the input that is worked on.
        num_gpus: that the workers need. Ray assigns them, except where this machine has only one.
        asks_model: whether a model reads the rows.
    """
    local = local_session()
    weight = 1 if asks_model else 1 / _LIGHT_ROWS
    if num_gpus:
        weight /= _GPU_ROWS if asks_model else _GPU_LIGHT_ROWS
    if (
        local is not None
        and num_rows * weight <= local.in_process_rows
        and (not num_gpus or _owns_gpu(local, num_gpus))
    ):
        return ThisProcess()
    # Ray takes a second to import, and is not everywhere.
    from raydr.distributed.ray_pool import RayPool

    return RayPool()


def _owns_gpu(local: RayConfig, num_gpus: float) -> bool:
    """Return whether this machine's only GPU is enough. A worker of Ray uses only GPUs that Ray has assigned."""
    enough = num_gpus <= 1 and local.num_gpus in (None, 1) and local.in_process_rows > 0
    return enough and not works_for_ray() and num_gpus_here() == 1
