"""How a command ends: raydr's own errors become one message and an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def exit_status(what: str) -> Iterator[None]:
    """Run a block as a command.

    Args:
        what: is to be done again after Ctrl-C, ``command`` or ``job``.
    """
    # Ray's own progress bars and the tokenizers' fork warnings would drown what the commands say.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from raydr.errors import RaydrError

    try:
        yield
    except RaydrError as error:
        from raydr.runtime.console import console

        console.print(f"error: {error}", style="red", markup=False)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        from raydr.runtime.cluster import step_threads
        from raydr.runtime.console import console

        # That would remove what is finished.
        without = " without --again" if "--again" in sys.argv else ""
        console.print(
            f"interrupted: what is finished is kept; the same {what}{without} goes on from there", style="yellow"
        )
        if step_threads():
            # They cannot be ended otherwise, and to leave would be to wait for them; Ray's processes go with this one.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(130)
        sys.exit(130)
