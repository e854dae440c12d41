"""What no name reaches any more, and removing it."""

from __future__ import annotations

from dataclasses import dataclass

from raydr.artefacts.places import STORE, Places
from raydr.store.folder import ASIDE, Folder
from raydr.store.lock import is_being_written
from raydr.store.manifest import MANIFEST, Manifest

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


def find_garbage(places: Places) -> list[Garbage]:
    """The artefacts that no name reaches, those that were set aside, and those that were begun and left.

    A named artefact also keeps what it was made from, but for vectors and indexes, which are kept only by names of
    their own. What another process is making now is spared.
    """
    keys = _reached(places)
    found = []
    for folder in _folders(places):
        kind = folder.root.rstrip("/").split("/")[-2]
        name = folder.root.rstrip("/").rsplit("/", 1)[-1]
        if is_being_written(folder):
            continue
        if ASIDE in name:
            why = "was set aside when it was made anew"
        elif not folder.exists(MANIFEST):
            why = "was begun and not finished"
        elif Manifest.model_validate(folder.read_sealed(MANIFEST)).fingerprint in keys:
            continue
        else:
            why = "no name reaches it"
        found.append(Garbage(kind, folder, sum(folder.size(file) for file in folder.files()), why))
    return found


def _folders(places: Places) -> list[Folder]:
    root = places.root / STORE
    below = {"/".join(file.split("/")[:2]) for file in root.files() if file.count("/") >= 2}
    # Leases of object stores begin with a dot.
    return [root / name for name in sorted(below) if "/." not in name]


def _reached(places: Places) -> set[str]:
    manifests = {}
    for folder in _folders(places):
        if folder.exists(MANIFEST) and ASIDE not in folder.root:
            manifest = Manifest.model_validate(folder.read_sealed(MANIFEST))
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
