"""Which pool a piece of work is for."""

from __future__ import annotations

from raydr.runtime.cluster import RayConfig, local_session
from raydr.stages.pool import Pool, ThisProcess
from raydr.stages.resources import num_gpus_here

#: Rows that are read without a model in the time that one takes with it, roughly.
_LIGHT_ROWS = 20
#: Rows that a GPU reads with a model in the time that a processor takes for one, roughly.
_GPU_ROWS = 50


def choose_pool(num_rows: int, num_gpus: float = 0, asks_model: bool = False) -> Pool:
    """This process for little work where Ray would be a local one, else Ray.

    Args:
        num_rows: of the input that is worked on.
        num_gpus: that the workers need. Ray gives them out, but for the only one of this machine.
        asks_model: whether a model reads the rows.
    """
    local = local_session()
    weight = (1 if asks_model else 1 / _LIGHT_ROWS) / (_GPU_ROWS if num_gpus else 1)
    if local is not None and num_rows * weight <= local.in_process_rows and (not num_gpus or _has_one_gpu(local)):
        return ThisProcess()
    # Ray takes a second to import.
    from raydr.stages.ray_pool import RayPool

    return RayPool()


def _has_one_gpu(local: RayConfig) -> bool:
    """Whether no worker of Ray could be given another GPU than the one that this process would take."""
    return local.num_gpus in (None, 1) and num_gpus_here() == 1
