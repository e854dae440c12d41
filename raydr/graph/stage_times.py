"""How long stages took: one small file for each in the folder that holds their artefacts."""

from __future__ import annotations

from raydr.component import Config
from raydr.store.folder import Folder

#: Where the files are.
TIMES = "times"


class StageTime(Config):
    """What a stage took."""

    stage: str
    """Its name."""

    seconds: float
    """Of the attempt that finished it."""

    num_parts_before: int = 0
    """Parts that interrupted attempts had left, whose time is not known."""

    key: str = ""
    """Tells stages of the same name apart."""


def note_time(root: Folder, time: StageTime) -> None:
    """Keep the time of a stage."""
    root.write_sealed(_name(time.stage, time.key), time.model_dump())


def time_of(root: Folder, stage: str, key: str = "") -> StageTime | None:
    """The time of a stage, None if it was never finished."""
    name = _name(stage, key)
    return root.read_record(name, StageTime) if root.exists(name) else None


def read_times(root: Folder) -> list[StageTime]:
    """The times of all stages of a folder, by name."""
    return [root.read_record(name, StageTime) for name in root.files(TIMES)]


def _name(stage: str, key: str) -> str:
    return f"{TIMES}/{stage.replace('/', '-')}{'-' + key if key else ''}.json"
