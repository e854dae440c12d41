"""Whether an interrupted training has something to go on from."""

from __future__ import annotations

from pathlib import Path

from raydr.training.checkpoint import PROGRESS


def has_kept_state(state: Path, since: float = 0.0) -> bool:
    """Whether a whole state lies below a folder, of a group or of a training in one process.

    Args:
        state: the folder.
        since: kept after this time.
    """
    return any(_kept_after(file, since) for file in state.rglob(PROGRESS))


def _kept_after(file: Path, since: float) -> bool:
    try:
        return file.stat().st_mtime > since
    except FileNotFoundError:
        # Removed, for a later one is there.
        return False
