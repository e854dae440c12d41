"""Training states in folders of any file system: a state is whole when its progress is there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from raydr.storage import Folder
from raydr.training.checkpoint import PROGRESS


def keep_state(place: Folder, save: Callable[[Path], None]) -> None:
    """Write the state that ``save`` puts into a local folder; the progress comes last."""
    with tempfile.TemporaryDirectory(prefix="raydr-state-") as scratch:
        save(Path(scratch))
        files = [path for path in Path(scratch).rglob("*") if path.is_file()]
        for file in sorted(files, key=lambda path: path.name == PROGRESS):
            with place.publish(file.relative_to(scratch).as_posix()) as path:
                shutil.copyfile(file, path)


def has_state(place: Folder) -> bool:
    """Whether there is a whole state."""
    return place.exists(PROGRESS)


def local_state(place: Folder) -> Path:
    """A local folder with the state."""
    return Path(place.localize_all())
