"""How long tests wait for what must happen: a guard against waiting for ever, whatever else the machine does."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds after which it will not happen any more. The limit of a test (pyproject.toml) is longer.
PATIENCE_S = 300.0


def wait_until(ready: Callable[[], object], what: str, look_s: float = 0.05) -> None:
    """Look again and again until it is true.

    Args:
        ready: whether it has happened; may raise, to give up.
        what: must happen, for the message.
        look_s: seconds between two looks.

    Raises:
        AssertionError: it has not happened in :data:`PATIENCE_S`.
    """
    end = time.monotonic() + PATIENCE_S
    while not ready():
        assert time.monotonic() < end, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(look_s)
