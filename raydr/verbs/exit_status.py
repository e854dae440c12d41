"""End of a command: its exit status, and its message after an error, Ctrl-C or SIGTERM."""

from __future__ import annotations

import _thread
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raydr.console import prose
from raydr.distributed.cluster import step_threads
from raydr.errors import RaydrError

#: Packages of clients of object stores, whose errors are no :class:`ConnectionError`.
_STORE_CLIENTS = ("botocore", "aiohttp", "gcsfs")


@contextmanager
def _handle_sigterm() -> Iterator[list[int]]:
    """Handle SIGTERM like Ctrl-C within the block; the list then holds the signal's number."""
    signals = list[int]()

    def end(number: int, frame: Any) -> None:
        # Ray may replace the interrupt by its own. A second signal does not wait.
        signals.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _repeat_ignored_interrupts() -> Iterator[None]:
    """Repeat an interrupt that Python ignores, as in a destructor during garbage collection."""
    before = sys.unraisablehook

    def again(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            before(ignored)
            return
        # An interrupt raised here would be ignored too.
        timer = threading.Timer(0.01, _thread.interrupt_main)
        timer.daemon = True
        timer.start()

    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _is_out_of_memory(error: BaseException) -> bool:
    """Return whether Python, the system, PyTorch or Ray reports exhausted memory."""
    # Compare Ray's error class by name, without importing Ray.
    named = isinstance(error, MemoryError) or "OutOfMemoryError" in {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    return named or any(words in text for words in ("allocate memory", "out of memory", "bad_alloc"))


def _is_of_store(error: BaseException) -> bool:
    """Return whether the network, or the client of an object store, reports an error."""
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    # A broken pipe is that of the output, for example to head.
    connection = isinstance(error, ConnectionError | TimeoutError) and not isinstance(error, BrokenPipeError)
    return connection or not packages.isdisjoint(_STORE_CLIENTS)


@contextmanager
def exit_status(what: str) -> Iterator[None]:
    """Run a block as a command, with its exit status.

    Args:
        what: noun of the block in messages, ``command`` or ``job``.
    """
    # Ray's progress bars and the tokenizers' fork warnings would hide the command's output.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As on standard error: a character that the encoding lacks must not end a command.
        sys.stdout.reconfigure(errors="backslashreplace")
    signals = list[int]()
    try:
        with _repeat_ignored_interrupts(), _handle_sigterm() as signals:
            yield
    except RaydrError as error:
        prose(f"error: {error}", "red")
        sys.exit(error.exit_code)
    except Exception as error:
        reason = " ".join(str(error).split())[-300:] or type(error).__name__
        if _is_out_of_memory(error):
            message = (
                f"out of memory ({reason}). Finished parts are kept. Use smaller batches (train.batch_size, "
                "encode.token_budget) or fewer workers (encode.max_actors, ray.num_cpus)"
            )
        elif _is_of_store(error):
            message = f"a store or server failed ({reason}). Finished parts are kept; run the same {what} again"
        else:
            raise
        prose(f"error: {message}", "red")
        sys.exit(1)
    except KeyboardInterrupt:
        # --again makes finished artefacts again, but names move to other settings only with it.
        without = ", without --again if no setting has changed" if "--again" in sys.argv else ""
        how, status = ("ended by SIGTERM", 143) if signals else ("interrupted", 130)
        prose(f"{how}: finished parts are kept; run the same {what} to resume{without}", "yellow")
        if step_threads():
            # Threads cannot be stopped, and exit would wait for them; Ray's processes end with this process.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        sys.exit(status)
