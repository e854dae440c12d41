"""Garbage collection: artefacts without a name, and claims of running sessions on them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from raydr.artefacts.places import STORE, Places
from raydr.component import Config
from raydr.errors import BusyError
from raydr.store import Folder, Manifest
from raydr.store.folder import ASIDE
from raydr.store.identity import MANIFEST
from raydr.store.lock import is_being_written, only_writer
from raydr.training.checkpoint import STATES

#: Folder of a working folder with a file for each running session: the artefacts that it reads and makes.
SESSIONS = "sessions"
#: Lock of a running collection.
_COLLECTION = "gc"
#: Seconds between two checks of a running collection.
_LOOK_S = 0.1
#: Minimum age of garbage: a command may be about to name younger artefacts.
MIN_AGE_MINUTES = 60.0

#: Names of this process's running sessions.
_own: set[str] = set()

#: Kinds that are kept only by their own name: large, and quickly made again.
_VECTORS = ("embeddings", "index")


@dataclass(frozen=True)
class Garbage:
    """A folder that can be removed.

    Args:
        kind: kind of the artefact.
        folder: folder of the artefact.
        num_bytes: size of the folder.
        why: reason for removal.
    """

    kind: str
    folder: Folder
    num_bytes: int
    why: str


class _Claimed(Config):
    """The content of a session's file."""

    folders: tuple[str, ...]
    """Folders below the store, as KIND/KEY."""


@dataclass
class Claims:
    """Artefacts that a running session reads and makes; garbage collection spares them.

    Args:
        places: places of the working folder.
        name: unique name of the session.
    """

    places: Places
    name: str
    _claimed: set[Folder] = field(default_factory=set)

    def add(self, folders: Iterable[Folder]) -> set[Folder]:
        """Claim artefacts, whether they exist or not; wait for a running collection.

        A collection reads claims after its start, and this looks for collections after writing the claim. Whichever is
        first, the collection sees the claim or this waits for it.

        Returns:
            Newly claimed folders: a collection may have removed them, so cached knowledge of them is invalid.
        """
        store = f"{(self.places.root / STORE).root}/"
        new = {folder for folder in folders if folder.root.startswith(store)} - self._claimed
        if new:
            self._claimed |= new
            claimed = _Claimed(folders=tuple(sorted(folder.root.removeprefix(store) for folder in self._claimed)))
            _sessions(self.places).write_sealed(f"{self.name}.json", claimed.model_dump())
            while is_being_written(_sessions(self.places) / _COLLECTION):
                time.sleep(_LOOK_S)
        return new


@contextmanager
def open_claims(places: Places) -> Iterator[Claims]:
    """Open claims that hold until the block ends or the process dies."""
    sessions, name = _sessions(places), uuid.uuid4().hex[:16]
    _own.add(name)
    try:
        with only_writer(sessions / name):
            yield Claims(places, name)
    finally:
        _own.discard(name)
        _forget_session(sessions, name)


def _sessions(places: Places) -> Folder:
    return places.root / SESSIONS


def _forget_session(sessions: Folder, name: str) -> None:
    sessions.remove(f"{name}.json")
    # The lock's name is unique to this session.
    sessions.remove(f".{name}.lock")


def _claimed(places: Places, own: Collection[str] = ()) -> set[str]:
    """Return the claims of running sessions, except ``own``; remove files of dead sessions."""
    sessions = _sessions(places)
    claimed: set[str] = set()
    for file in sessions.files():
        name = file.removesuffix(".json")
        if "/" in file or file == name or name in own:
            continue
        if not is_being_written(sessions / name):
            _forget_session(sessions, name)
            continue
        try:
            claimed.update(sessions.read_record(file, _Claimed).folders)
        except FileNotFoundError:
            # The session has just ended.
            continue
    return claimed


def find_garbage(places: Places, min_age_minutes: float = MIN_AGE_MINUTES) -> list[Garbage]:
    """Return artefacts that no name reaches, that were set aside, or that were never finished.

    A named artefact keeps its inputs, except vectors and indexes, which need their own name. Claimed and recently
    written artefacts are spared.

    Args:
        places: places of the working folder.
        min_age_minutes: minutes since the artefact's last write.
    """
    claimed = _claimed(places)
    keys = _reached(places)
    garbage = []
    for folder in _folders(places):
        kind, name = folder.root.rstrip("/").split("/")[-2:]
        owner = _owner(folder)
        if owner in claimed or is_being_written(places.root / STORE / owner):
            continue
        try:
            age = time.time() - folder.last_written()
            num_bytes = sum(folder.size(file) for file in folder.files())
            manifest = _manifest(folder)
        except FileNotFoundError:
            # Another process is setting it aside or removing it.
            continue
        if ASIDE in name:
            why = "was set aside when it was made again"
        elif manifest is None:
            why = "was begun and not finished"
        elif manifest.fingerprint in keys:
            continue
        else:
            why = "no name reaches it"
        if age >= 60 * min_age_minutes:
            garbage.append(Garbage(kind, folder, num_bytes, why))
    return garbage


def remove_garbage(places: Places, min_age_minutes: float = MIN_AGE_MINUTES) -> list[Garbage]:
    """Remove what :func:`find_garbage` returns; new sessions wait meanwhile.

    Raises:
        BusyError: another process collects garbage of the same working folder.
    """
    with only_writer(_sessions(places) / _COLLECTION):
        garbage = find_garbage(places, min_age_minutes)
        for entry in garbage:
            entry.folder.remove()
    return garbage


def remove_unclaimed(places: Places, folders: Iterable[Folder]) -> list[Folder]:
    """Remove folders of the store, except those that sessions of other processes claim; new sessions wait meanwhile.

    Returns:
        The removed folders.
    """
    while True:
        try:
            with only_writer(_sessions(places) / _COLLECTION):
                claimed = _claimed(places, _own)
                removed = [folder for folder in folders if _owner(folder) not in claimed]
                for folder in removed:
                    folder.remove()
                return removed
        except BusyError:
            time.sleep(_LOOK_S)


def _owner(folder: Folder) -> str:
    """Return the artefact to which a folder belongs, as KIND/KEY: states of a training lie beside their model."""
    return "/".join(folder.root.rstrip("/").removesuffix(STATES).split("/")[-2:])


def _manifest(folder: Folder) -> Manifest | None:
    """Return the manifest of a finished artefact."""
    return folder.read_record(MANIFEST, Manifest) if folder.exists(MANIFEST) else None


def _folders(places: Places) -> list[Folder]:
    root = places.root / STORE
    below = {"/".join(file.split("/")[:2]) for file in root.files() if file.count("/") >= 2}
    # Leases of object stores begin with a dot.
    return [root / name for name in sorted(below) if "/." not in name]


def _reached(places: Places) -> set[str]:
    manifests = {}
    for folder in _folders(places):
        manifest = None if ASIDE in folder.root else _manifest(folder)
        if manifest is not None:
            manifests[manifest.fingerprint] = manifest
    reached = places.named_keys()
    pending = list(reached)
    while pending:
        reached_from = manifests.get(pending.pop())
        for key in reached_from.identity.inputs.values() if reached_from is not None else ():
            needed = manifests.get(key)
            if needed is not None and key not in reached and needed.identity.kind not in _VECTORS:
                reached.add(key)
                pending.append(key)
    return reached
