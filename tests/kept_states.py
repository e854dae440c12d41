"""Whether an interrupted training has something to go on from."""

from __future__ import annotations

from pathlib import Path

from raydr.stages.worker_group import CHECKPOINT_LIST
from raydr.training.checkpoint import PROGRESS


def has_kept_state(state: Path, since: float = 0.0) -> bool:
    """Whether a whole state lies below a folder, of a group or of a training in one process.

    Ray Train's are whole when they are in its list; one that only has files may not be, and is not used.

    Args:
        state: the folder.
        since: kept after this time.
    """
    places = [*state.rglob(CHECKPOINT_LIST), *state.rglob(PROGRESS)]
    return any(_is_whole(place, since) for place in places)


def _is_whole(place: Path, since: float) -> bool:
    try:
        kept = place.stat().st_mtime > since
        listed = place.name == CHECKPOINT_LIST and '"checkpoint_dir_name"' in place.read_text()
    except FileNotFoundError:
        # It is being written anew.
        return False
    return kept and (listed or place.parent.name.startswith("step-"))
