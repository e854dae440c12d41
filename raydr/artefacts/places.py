"""Folders of artefacts by their keys, and names that point to them.

::

    WORKDIR/store/KIND/KEY     artefacts, shared by verbs, rounds and trials
    WORKDIR/names/NAME.json    pointer to an artefact; replaced when the new artefact is complete
    WORKDIR/NAME               symbolic link to the artefact, on a local file system
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raydr.component import Config
from raydr.errors import ArtifactError, FingerprintError
from raydr.evaluation.config import FUSED
from raydr.store import Artifact, Folder
from raydr.store.filesystems import require_reachable
from raydr.store.identity import COMMANDS, MANIFEST

#: Names of systems, beside those that users choose.
TRAINED, UNTRAINED, BM25 = "trained", "untrained", "bm25"
STORE, NAMES = "store", "names"
#: Name of the data set with injected noise.
NOISY = "dataset-noisy"
#: Digits of a key in the name of a folder.
_KEY_DIGITS = 16


def vectors_name(system: str, split: str = "") -> str:
    """Return the name of a system's vectors, of passages or of the queries of a split."""
    return f"embeddings/{system}/{f'queries-{split}' if split else 'passages'}"


class Pointer(Config):
    """Target of a name."""

    kind: str
    key: str


@dataclass(frozen=True)
class Places:
    """Artefacts and names of a working folder."""

    root: Folder

    @classmethod
    def of(cls, workdir: str) -> Places:
        """Open a working folder.

        Raises:
            ArtifactError: the folder cannot be reached, or an earlier raydr made it.
        """
        require_reachable(workdir)
        places = cls(Folder(workdir).absolute())
        plain = [name for name in ("corpus", "dataset") if (places.root / name).exists(MANIFEST)]
        if old := next((name for name in plain if places.pointer(name) is None), ""):
            raise ArtifactError(
                f"{places.root} was made by an earlier raydr: {old} is a folder there and not the name of an artefact. "
                "Its artefacts cannot be used; set another workdir, or move this folder away"
            )
        return places

    def folder(self, kind: str, key: str) -> Folder:
        """Return the folder of an artefact."""
        return self.root / STORE / kind / key[:_KEY_DIGITS]

    # -- names

    def pointer(self, name: str) -> Pointer | None:
        """Return the target of a name; None if the name does not exist."""
        file = f"{NAMES}/{name}.json"
        return self.root.read_record(file, Pointer) if self.root.exists(file) else None

    def resolve(self, name: str) -> Folder | None:
        """Return the folder of a name; None if the name does not exist."""
        pointer = self.pointer(name)
        return None if pointer is None else self.folder(pointer.kind, pointer.key)

    def open(self, name: str, kind: str) -> Artifact:
        """Open the artefact of a name.

        Raises:
            ArtifactError: the name does not exist, or the artefact is of another kind or was removed.
        """
        folder = self.resolve(name)
        if folder is None:
            names = [other.removeprefix(f"{name.rpartition('/')[0]}/") for other in self.names(name.rpartition("/")[0])]
            if "/" not in name:
                names = [
                    other for other in names if (pointer := self.pointer(other)) is not None and pointer.kind == kind
                ]
            command = "raydr fuse CONFIG" if name.endswith(f"/{FUSED}") else COMMANDS.get(kind)
            if kind == "model":
                command = f"{command} --name {name.rpartition('/')[2]}"
            raise ArtifactError(
                f"there is no {kind} called {name} in {self.root}"
                + (f"; there is {', '.join(names)}" if names else "")
                + (f": {command} makes it" if command else "")
            )
        return Artifact.open(folder, kind)

    def names(self, under: str = "") -> list[str]:
        """Return the names below a prefix, sorted."""
        prefix = f"{NAMES}/{under}".rstrip("/")
        names = (file.removeprefix(f"{NAMES}/").removesuffix(".json") for file in self.root.files(prefix))
        return sorted(names)

    def named_keys(self) -> set[str]:
        """Return the keys of all named artefacts."""
        return {pointer.key for name in self.names() if (pointer := self.pointer(name)) is not None}

    def point(self, name: str, kind: str, key: str, planned: Mapping[str, Pointer | None] | None = None) -> None:
        """Let a name point to a complete artefact.

        Args:
            name: the name.
            kind, key: kind and key of the artefact.
            planned: targets of names when the artefact was planned; a name that is not in it may have moved since.

        Raises:
            FingerprintError: another process has moved the name since.
        """
        target, current = Pointer(kind=kind, key=key), self.pointer(name)
        if current != target:
            if current != (planned or {}).get(name, current):
                raise FingerprintError(
                    f"another raydr process has meanwhile let {name} in {self.root} point to an artefact with other "
                    f"settings. Yours is complete at {self.folder(kind, key)}: use another name or workdir, or pass "
                    "--again to move the name"
                )
            self.root.write_sealed(f"{NAMES}/{name}.json", target.model_dump())
        if self.root.is_local:
            self._link(name, self.folder(kind, key))

    def _link(self, name: str, target: Folder) -> None:
        link = Path(self.root.path(name))
        relative = os.path.relpath(target.root, link.parent)
        if link.is_symlink() and os.readlink(link) == relative:
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        # Another process may point the same name.
        temporary = link.with_name(f".{link.name}.{uuid.uuid4().hex[:8]}.link")
        temporary.symlink_to(relative)
        os.replace(temporary, link)

    def forget(self, name: str) -> None:
        """Remove a name; its artefact stays until :mod:`raydr.pipeline.garbage` removes it."""
        self.root.remove(f"{NAMES}/{name}.json")
        if self.root.is_local:
            Path(self.root.path(name)).unlink(missing_ok=True)
