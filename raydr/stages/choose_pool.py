"""Which pool a piece of work is for."""

from __future__ import annotations

from raydr.runtime.cluster import local_session
from raydr.stages.pool import Pool, ThisProcess

#: Rows that are read without a model in the time that one takes with it, roughly.
_LIGHT_ROWS = 20


def choose_pool(num_rows: int, num_gpus: float = 0, asks_model: bool = False) -> Pool:
    """This process for little work where Ray would be a local one, else Ray.

    Args:
        num_rows: of the input that is worked on.
        num_gpus: that a worker needs; Ray gives them out.
        asks_model: whether a model reads the rows.
    """
    local = local_session()
    weight = 1 if asks_model else 1 / _LIGHT_ROWS
    if local is not None and not num_gpus and num_rows * weight <= local.in_process_rows:
        return ThisProcess()
    # Ray takes a second to import.
    from raydr.stages.ray_pool import RayPool

    return RayPool()
