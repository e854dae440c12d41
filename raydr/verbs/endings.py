"""How a command ends: raydr's own errors become one message and an exit status."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _ended_by_sigterm() -> Iterator[list[int]]:
    """SIGTERM ends the block as Ctrl-C does, where it would be over without a word; the list then holds its number."""
    told = list[int]()

    def end(number: int, frame: Any) -> None:
        # Ray raises an interrupt of its own in place of this one. A second signal does not wait.
        told.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield told
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def exit_status(what: str) -> Iterator[None]:
    """Run a block as a command.

    Args:
        what: is to be done again after Ctrl-C or SIGTERM, ``command`` or ``job``.
    """
    # Ray's own progress bars and the tokenizers' fork warnings would drown what the commands say.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from raydr.errors import RaydrError

    told = list[int]()
    try:
        with _ended_by_sigterm() as told:
            yield
    except RaydrError as error:
        from raydr.runtime.console import prose

        prose(f"error: {error}", "red")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        from raydr.runtime.cluster import step_threads
        from raydr.runtime.console import prose

        # That would remove what is finished.
        without = " without --again" if "--again" in sys.argv else ""
        how, status = ("ended by SIGTERM", 143) if told else ("interrupted", 130)
        prose(f"{how}: what is finished is kept; the same {what}{without} goes on from there", "yellow")
        if step_threads():
            # They cannot be ended otherwise, and to leave would be to wait for them; Ray's processes go with this one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.exit(status)
