"""Tasks of Ray that are no longer wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray


def interrupt(references: Sequence[Any], recursive: bool = True) -> None:
    """Interrupt the tasks that are not over, as by Ctrl-C.

    One whose result has just come must be left alone: Ray fails it while it is still being completed, and its core then
    ends this process without a word ("Tried to complete task that was not pending", Ray 2.60).

    Args:
        references: of the tasks; of generators what they say of their end (``completed()``).
        recursive: also what they have called.
    """
    if not references:
        return
    _, running = ray.wait(list(references), num_returns=len(references), timeout=0, fetch_local=False)
    for one in running:
        ray.cancel(one, recursive=recursive)
