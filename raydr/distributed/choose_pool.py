"""Choice of the pool: this process for little work, else Ray."""

from __future__ import annotations

from raydr.distributed.cluster import RayConfig, local_session, works_for_ray
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.resources import num_gpus_here

#: Rows read without a model in the time of a row read with a model, roughly.
_LIGHT_ROWS = 5
#: Rows that a GPU reads, with and without a model, in the time of a row on a processor, roughly.
_GPU_ROWS, _GPU_LIGHT_ROWS = 10, 4


def choose_pool(num_rows: int, num_gpus: float = 0, asks_model: bool = False) -> Pool:
    """Return this process for little work where Ray would be local, else Ray.

    Args:
        num_rows: rows of the input.
        num_gpus: GPUs that the workers need. Ray assigns GPUs, except on a machine with a single GPU.
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
    # The import of Ray takes a second, and Ray is not installed everywhere.
    from raydr.distributed.ray_pool import RayPool

    return RayPool()


def _owns_gpu(local: RayConfig, num_gpus: float) -> bool:
    """Return whether this machine's only GPU is enough; a worker of Ray uses only GPUs that Ray has assigned."""
    enough = num_gpus <= 1 and local.num_gpus in (None, 1) and local.in_process_rows > 0
    return enough and not works_for_ray() and num_gpus_here() == 1
