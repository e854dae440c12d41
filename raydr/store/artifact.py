"""Artefacts: folders of parts with a manifest that records their identity and inputs.

A folder without a manifest is never taken for complete, see :mod:`raydr.store.building`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from raydr.errors import ArtifactError, DamagedError
from raydr.store.filesystems import FileDetails
from raydr.store.folder import Folder, side_by_side
from raydr.store.identity import COMMANDS, FORMAT_VERSION, MANIFEST, Manifest
from raydr.version import __version__


class Artifact:
    """A complete artefact, open for reading; another process opens it once for all tasks that receive it."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.folder, self.kind, self.manifest.digest, self.manifest.created)

    @classmethod
    def open(cls, path: str | Folder, kind: str) -> Artifact:
        """Open the artefact at ``path``.

        Raises:
            ArtifactError: it is missing, incomplete, of another kind or of a newer format.
        """
        folder = path if isinstance(path, Folder) else Folder(path)
        try:
            manifest = Manifest.model_validate(folder.read_sealed(MANIFEST))
        except (FileNotFoundError, NotADirectoryError):
            state = "is not complete (no manifest)" if folder.exists() else "does not exist"
            raise ArtifactError(
                f"the {kind} at {folder} {state}: {COMMANDS.get(kind, 'the command that it came from')} makes it"
            ) from None
        except DamagedError:
            raise
        except ValueError as error:
            raise ArtifactError(
                f"{folder}/{MANIFEST} is not a manifest that raydr {__version__} can read "
                f"(format version {FORMAT_VERSION}): {error}. Make the artefact again with --again."
            ) from error
        if manifest.identity.kind != kind:
            raise ArtifactError(f"expected a {kind} at {folder}, found a {manifest.identity.kind}")
        if manifest.fingerprint != manifest.identity.fingerprint:
            raise ArtifactError(f"{folder}/{MANIFEST} was changed by hand: its fingerprint does not fit its content")
        return cls(folder, manifest)

    def __repr__(self) -> str:
        return f"<{self.manifest.identity.kind} {self.fingerprint[:16]} at {self.folder}>"

    @property
    def fingerprint(self) -> str:
        return self.manifest.fingerprint

    @property
    def kind(self) -> str:
        return self.manifest.identity.kind

    @property
    def info(self) -> dict[str, Any]:
        return self.manifest.info

    def parts(self, under: str = "") -> list[str]:
        """Return the sorted names of the parts below ``under``."""
        prefix = f"{under.rstrip('/')}/" if under else ""
        return sorted(name for name in self.manifest.parts if name.startswith(prefix))

    def sizes(self, under: str = "") -> dict[str, int]:
        """Return the rows of each part below ``under``, by name."""
        return {name: self.manifest.parts[name].rows for name in self.parts(under)}

    def rows(self, under: str = "") -> int:
        return sum(self.sizes(under).values())

    def local(self, name: str) -> str:
        """Return a local path of a part, after a check of its checksum.

        Each content is read once for the check; for an object store, as the copy in the node's cache.

        Raises:
            ArtifactError: the part is missing or differs.
        """
        if self.folder.is_local:
            self._check_local(name, self.folder.path(name), self._check_size(name, self.folder.details(name)))
        try:
            return self.folder.localize(name, self.manifest.parts[name].checksum)
        except FileNotFoundError:
            raise self._damaged(name, "gone") from None
        except DamagedError:
            raise self._differs(name) from None

    def local_folder(self) -> str:
        """Return a local path of all parts, each checked as in :meth:`local`.

        Raises:
            ArtifactError: a part is missing or differs.
        """
        path, listing = self.folder.localize_all(), self.folder.listing()
        for name in self.manifest.parts:
            self._check_local(name, f"{path}/{name}", self._check_size(name, listing.get(name)))
        return path

    def read_json(self, name: str) -> Any:
        """Read a JSON part.

        Raises:
            ArtifactError: the part is missing or differs.
        """
        return json.loads(Path(self.local(name)).read_bytes())

    def _check_local(self, name: str, path: str, details: FileDetails) -> None:
        folder, file = os.path.split(path)
        whole = self.manifest.parts[name].checksum
        if (self.folder.is_local or self._may_differ(name, details)) and not Folder(folder).has_content(file, whole):
            raise self._differs(name)

    def _check_size(self, name: str, details: FileDetails | None) -> FileDetails:
        if details is None or details.size != self.manifest.parts[name].bytes:
            raise self._damaged(name, "gone" if details is None else f"{details.size} bytes")
        return details

    def _damaged(self, name: str, actual: str) -> ArtifactError:
        return ArtifactError(
            f"{self.folder / name} has {actual}, but its manifest has {self.manifest.parts[name].bytes} bytes: the "
            "artefact is damaged; make it again with --again"
        )

    def _may_differ(self, name: str, details: FileDetails) -> bool:
        return not self.folder.is_local and self.manifest.versions.get(name) != details.version

    def _check_bytes(self, name: str, checksum: str) -> None:
        if checksum != self.manifest.parts[name].checksum:
            raise self._differs(name)

    def _differs(self, name: str) -> ArtifactError:
        return DamagedError(
            f"{self.folder / name} differs from the checksum in the manifest: it was changed or damaged after it "
            f"was written; make it again: {COMMANDS.get(self.kind, 'the verb that made it')} with --again"
        )

    def doubtful(self, checksums: bool = True) -> list[str]:
        """Return the parts whose bytes must be read for a check, after a check of all sizes by one listing.

        Without ``checksums`` these are parts on file systems, and parts whose version on the object store changed, as
        by a copy.

        Raises:
            ArtifactError: a part is missing or has another size; the message names it.
        """
        listing, everything = self.folder.listing(), checksums or self.folder.is_local
        checked = {name: self._check_size(name, listing.get(name)) for name in self.parts()}
        return [name for name, details in checked.items() if everything or self._may_differ(name, details)]

    def verify(self, names: Sequence[str] | None = None) -> None:
        """Read parts (None: all) and compare their checksums; results of an object store are not cached.

        Raises:
            ArtifactError: a part differs; the message names it.
        """
        wanted = self.doubtful() if names is None else names
        side_by_side(lambda name: self._check_bytes(name, self.folder.checksum(name)), wanted)


@lru_cache(maxsize=64)
def _arrived(folder: Folder, kind: str, digest: str, created: str) -> Artifact:
    """Open an artefact of another process; reopen it only if it was made again."""
    return Artifact.open(folder, kind)
