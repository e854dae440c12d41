"""What no name reaches any more, what running sessions claim of it, and removing the rest."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from raydr.artefacts.places import STORE, Places
from raydr.component import Config
from raydr.store.folder import ASIDE, Folder
from raydr.store.lock import is_being_written, only_writer
from raydr.store.manifest import MANIFEST, Manifest

#: In a working folder: a file for each running session, with what it reads and makes.
SESSIONS = "sessions"
#: Held there while garbage is removed.
_COLLECTION = "gc"
#: Seconds between two looks at a collection that is waited for.
_LOOK_S = 0.1
#: Younger artefacts are not removed: their command may be about to name them.
MIN_AGE_MINUTES = 60.0

#: Kinds that are kept only while a name points to them: large, and soon made again.
_VECTORS = ("embeddings", "index")


@dataclass(frozen=True)
class Garbage:
    """A folder that can go.

    Args:
        kind: of the artefact.
        folder: where it is.
        num_bytes: what it takes.
        why: for people.
    """

    kind: str
    folder: Folder
    num_bytes: int
    why: str


class _Claimed(Config):
    """What a session's file holds."""

    folders: tuple[str, ...]
    """Below the store, as KIND/KEY."""


@dataclass
class Claims:
    """The artefacts that a running session reads and makes; garbage collection spares them until the session ends.

    Args:
        places: of the working folder.
        name: of the session, among those of the folder.
    """

    places: Places
    name: str
    _claimed: set[Folder] = field(default_factory=set)

    def add(self, folders: Iterable[Folder]) -> set[Folder]:
        """Claim artefacts, whether they are there or not; waits for a collection that has begun.

        A collection reads claims once it has begun, and this looks for one once the claim is written: whichever comes
        first, either the claim is seen or the collection is waited for.

        Returns:
            Those that were not claimed before: what was known of them may hold no more.
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
    """Claims that hold until the block ends, or the process dies."""
    sessions, name = _sessions(places), uuid.uuid4().hex[:16]
    try:
        with only_writer(sessions / name):
            yield Claims(places, name)
    finally:
        _forget_session(sessions, name)


def _sessions(places: Places) -> Folder:
    return places.root / SESSIONS


def _forget_session(sessions: Folder, name: str) -> None:
    sessions.remove(f"{name}.json")
    # Nobody else has a lock of that name.
    sessions.remove(f".{name}.lock")


def _claimed(places: Places) -> set[str]:
    """What running sessions claim; files of sessions that have died are removed."""
    sessions = _sessions(places)
    claimed: set[str] = set()
    for file in sessions.files():
        name = file.removesuffix(".json")
        if "/" in file or file == name:
            continue
        if not is_being_written(sessions / name):
            _forget_session(sessions, name)
            continue
        try:
            claimed.update(sessions.read_record(file, _Claimed).folders)
        except FileNotFoundError:
            # It has just ended.
            continue
    return claimed


def find_garbage(places: Places, min_age_minutes: float = MIN_AGE_MINUTES) -> list[Garbage]:
    """The artefacts that no name reaches, those that were set aside, and those that were begun and left.

    A named artefact also keeps what it was made from, but for vectors and indexes, which are kept only by names of
    their own. What a running session reads or makes is spared, and what was written a short time ago.

    Args:
        places: of the working folder.
        min_age_minutes: since the last of an artefact's files was written.
    """
    claimed = _claimed(places)
    keys = _reached(places)
    garbage = []
    for folder in _folders(places):
        kind, name = folder.root.rstrip("/").split("/")[-2:]
        if f"{kind}/{name}" in claimed or is_being_written(folder):
            continue
        try:
            age = time.time() - folder.last_written()
            num_bytes = sum(folder.size(file) for file in folder.files())
            manifest = _manifest(folder)
        except FileNotFoundError:
            # Another process is setting it aside, or removing it.
            continue
        if ASIDE in name:
            why = "was set aside when it was made anew"
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
    """Remove what :func:`find_garbage` lists; sessions that begin meanwhile wait.

    Raises:
        BusyError: another process removes garbage of the same working folder.
    """
    with only_writer(_sessions(places) / _COLLECTION):
        garbage = find_garbage(places, min_age_minutes)
        for entry in garbage:
            entry.folder.remove()
    return garbage


def _manifest(folder: Folder) -> Manifest | None:
    """The manifest of a finished artefact."""
    return Manifest.model_validate(folder.read_sealed(MANIFEST)) if folder.exists(MANIFEST) else None


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
