"""Artefacts: folders of parts with a manifest that records their identity and inputs.

:func:`begin` compares the requested fingerprint with the artefact at the path. If it is complete and equal, it is
reused. If it is partial and equal, the missing parts are made. If it differs, an error names the differing fields. Each
finished part is recorded beside the data; :meth:`Building.finish` writes the manifest last, so that a folder without a
manifest is never taken for complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from raydr.errors import ArtifactError, DamagedError, FingerprintError
from raydr.store.contents import note_content
from raydr.store.filesystems import FileDetails
from raydr.store.folder import Folder, side_by_side, write_part
from raydr.store.identity import COMMANDS, FORMAT_VERSION, Identity, differences
from raydr.store.lock import only_writer
from raydr.store.manifest import MANIFEST, Manifest, Part
from raydr.version import __version__

PLAN = "plan.json"
DONE = ".done"


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
            what = f"{COMMANDS.get(kind, 'the command that it came from')} makes it"
            raise ArtifactError(f"the {kind} at {folder} {state}: {what}") from None
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
            f"{self.folder.path(name)} has {actual}, but its manifest has {self.manifest.parts[name].bytes} bytes: the "
            "artefact is damaged; make it again with --again"
        )

    def _may_differ(self, name: str, details: FileDetails) -> bool:
        return not self.folder.is_local and self.manifest.versions.get(name) != details.version

    def _check_bytes(self, name: str, checksum: str) -> None:
        if checksum != self.manifest.parts[name].checksum:
            raise self._differs(name)

    def _differs(self, name: str) -> ArtifactError:
        return DamagedError(
            f"{self.folder.path(name)} differs from the checksum in the manifest: it was changed or damaged after it "
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


class Building:
    """An artefact being made, with its finished parts."""

    def __init__(self, folder: Folder, identity: Identity, done: dict[str, Part]) -> None:
        self.folder = folder
        self.identity = identity
        self.done = done
        #: Folders needed only for a resume; removed when the manifest is written.
        self.scratch: list[Folder] = []

    def record(self, name: str, part: Mapping[str, Any] | Part) -> None:
        """Record a finished part on disk, so that a resume does not repeat it."""
        record_part(self.folder, name, part)
        self.done[name] = Part.model_validate(dict(part))

    def record_files(self) -> None:
        """Record every other file of the folder as a part: for artefacts of few files, such as models."""
        for name in self.folder.files():
            if name != PLAN and not name.startswith(f"{DONE}/") and name not in self.done:
                part = Part(rows=0, bytes=self.folder.size(name), checksum=self.folder.checksum(name))
                self.record(name, part)
                if self.folder.is_local:
                    note_content(self.folder.path(name), part.checksum)

    def finish(
        self,
        info: dict[str, Any] | None = None,
        run_config: dict[str, Any] | None = None,
        made_from: dict[str, str] | None = None,
    ) -> Artifact:
        """Write the manifest and remove the records of a resume."""
        manifest = Manifest(
            identity=self.identity,
            fingerprint=self.identity.fingerprint,
            raydr_version=__version__,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            parts=dict(sorted(self.done.items())),
            made_from=made_from or {},
            versions=self._versions(),
            info=info or {},
            run_config=run_config or {},
        )
        self.folder.write_sealed(MANIFEST, manifest.model_dump(mode="json"))
        self.folder.remove(DONE)
        self.folder.remove(PLAN)
        for folder in self.scratch:
            folder.remove()
        return Artifact(self.folder, manifest)

    def _versions(self) -> dict[str, str]:
        """Return the versions of the parts on the object store; a part just written has its file's version."""
        if self.folder.is_local:
            return {}
        return {name: details.version for name, details in self.folder.listing().items() if name in self.done}


def record_part(folder: Folder, name: str, part: Mapping[str, Any] | Part) -> None:
    """Write the record of a finished part, in the worker that made it."""
    record = part.model_dump() if isinstance(part, Part) else dict(part)
    folder.write_json(_record_of(name), record)


def forget_part(folder: Folder, name: str) -> None:
    """Remove a finished part and its record; the record first, so that no kill leaves it alone."""
    folder.remove(_record_of(name))
    folder.remove(name)


def _record_of(name: str) -> str:
    return f"{DONE}/{name.replace('/', '%')}.json"


def write_and_record(
    folder: Folder, name: str, rows: int, write: Callable[[str], None], counts: Mapping[str, int] | None = None
) -> Part:
    """Write a part atomically with its record for a resume, in a worker."""
    part = Part.model_validate({**write_part(folder, name, rows, write), "counts": dict(counts or {})})
    record_part(folder, name, part)
    return part


def finished_parts(folder: Folder) -> dict[str, Part]:
    """Return the recorded parts whose files have the recorded checksum; remove the others.

    On object stores only the size is checked: an upload is visible only when complete.
    """
    listing = folder.listing()

    def finished(record: str) -> tuple[str, Part | None]:
        name = record.removeprefix(f"{DONE}/").removesuffix(".json").replace("%", "/")
        try:
            part = Part.model_validate(folder.read_json(record))
        except ValueError:
            folder.remove(record)
            return name, None
        whole = name in listing and listing[name].size == part.bytes
        if whole and (not folder.is_local or folder.checksum(name) == part.checksum):
            return name, part
        forget_part(folder, name)
        return name, None

    records = [name for name in listing if name.startswith(f"{DONE}/") and ".tmp-" not in name]
    return {name: part for name, part in side_by_side(finished, sorted(records)) if part is not None}


@contextmanager
def begin(path: str | Folder, identity: Identity, overwrite: bool = False) -> Iterator[Artifact | Building]:
    """Start or resume an artefact, or return it if it is complete.

    Args:
        path: folder of the artefact.
        identity: requested identity.
        overwrite: replace another artefact there.

    Yields:
        An :class:`Artifact` if it exists complete with the same fingerprint, else a :class:`Building` whose ``done``
        lists the parts of an interrupted run.

    Raises:
        FingerprintError: another artefact is at the path and ``overwrite`` is False.
        BusyError: another process is making the same artefact.
    """
    folder = path if isinstance(path, Folder) else Folder(path)
    begun: Identity | None = None
    with only_writer(folder):
        if folder.exists(MANIFEST):
            if not overwrite:
                there = Artifact.open(folder, identity.kind)
                _check_same(folder, identity, there.manifest.identity)
                yield there
                return
            _refuse_files_of_others(folder)
            folder.remove()
        elif folder.exists(PLAN):
            with suppress(DamagedError):
                begun = folder.read_record(PLAN, Identity)
            if begun is None:
                folder.remove()
            elif begun.fingerprint != identity.fingerprint:
                # Without finished parts, starting over loses nothing.
                if folder.files(DONE) and not overwrite:
                    _check_same(folder, identity, begun)
                folder.remove()
        else:
            _refuse_files_of_others(folder)
        folder.remove_leftovers()
        folder.write_json(PLAN, identity.model_dump(mode="json"))
        yield Building(folder, identity, finished_parts(folder))


def _refuse_files_of_others(folder: Folder) -> None:
    try:
        ours = {MANIFEST, *Manifest.model_validate(folder.read_sealed(MANIFEST)).parts}
    except (FileNotFoundError, ValueError):
        ours = set()
    if others := sorted(set(folder.files()) - ours):
        raise ArtifactError(
            f"{folder} holds files that raydr did not write ({others[0]}, ...): choose another output folder"
        )


def _check_same(folder: Folder, asked: Identity, there: Identity) -> None:
    if there.fingerprint != asked.fingerprint:
        raise FingerprintError(
            f"the {there.kind} at {folder} has other settings than requested:\n  "
            + "\n  ".join(differences(there.model_dump(), asked.model_dump()))
            + "\nuse another output folder, restore these settings, or pass --again to replace it"
        )
