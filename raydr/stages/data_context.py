"""How raydr runs Ray Data: for steps of minutes or hours, on nodes that come and go."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.data import DataContext

#: Actors that may die in a row while they start, before a stage gives up: one bad node must not end it.
_DEATHS_WHILE_STARTING = 2


def data_context() -> DataContext:
    """A copy of Ray Data's settings for one stage; use it as ``DataContext.current(...)``."""
    from ray.data import DataContext

    # Importing Ray Data sets the level of its log anew; failures are raised, so they need not be logged as well.
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        # The copy reads settings that Ray itself has deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        context = DataContext.get_current().copy()
    context.use_datasource_v2 = False
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.raise_original_map_exception = True
    # Waiting for a node is no fault, and a part may take longer than Ray Data's half an hour.
    context.execution_no_progress_timeout_s = -1
    context.max_consecutive_actor_init_deaths = _DEATHS_WHILE_STARTING
    return context
