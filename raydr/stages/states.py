"""Training states in folders of any file system: a state is whole when its progress is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raydr.store.folder import Folder, publish_files
from raydr.training.checkpoint import PROGRESS


def keep_state(place: Folder, save: Callable[[Path], None]) -> None:
    """Write the state that ``save`` puts into a local folder; the progress comes last."""
    publish_files(place, save, last=PROGRESS)


def has_state(place: Folder) -> bool:
    """Whether there is a whole state."""
    return place.exists(PROGRESS)


def local_state(place: Folder) -> Path:
    """A local folder with the state."""
    return Path(place.localize_all())
