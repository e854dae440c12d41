"""Whether an interrupted training has something to go on from."""

from __future__ import annotations

from pathlib import Path

from raydr.stages.worker_group import CHECKPOINT_LIST


def has_kept_state(state: Path) -> bool:
    """Whether Ray Train has listed a checkpoint: one that only has files may not be whole, and is not used."""
    return any('"checkpoint_dir_name"' in place.read_text() for place in state.rglob(CHECKPOINT_LIST))
