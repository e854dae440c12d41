"""Artefacts in the making: parts, each with a record for a resume, until the manifest is written last.

:func:`begin` compares the requested fingerprint with the artefact at the path. If it is complete and equal, it is
reused. If it is partial and equal, the missing parts are made. If it differs, an error names the differing fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from raydr.errors import ArtifactError, BusyError, DamagedError, FingerprintError
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder, side_by_side, write_part
from raydr.store.identity import MANIFEST, Identity, Manifest, Part, differences
from raydr.store.lock import only_writer
from raydr.store.node_cache import note_content
from raydr.version import __version__

PLAN = "plan.json"
DONE = ".done"


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
        for folder in self.scratch:
            folder.remove()
        # Last: while the plan exists, the next session removes remains of a killed process.
        self.folder.remove(PLAN)
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
    folder: Folder, name: str, rows: int, write: Callable[[str], object], counts: Mapping[str, int] | None = None
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
        overwrite: replace another artefact at the path.

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
                complete = Artifact.open(folder, identity.kind)
                _check_same(folder, identity, complete.manifest.identity)
                _remove_remains(complete)
                yield complete
                return
            # With a plan, the other files are remains of a process that was killed after it wrote the manifest.
            if not folder.exists(PLAN):
                _refuse_files_of_others(folder, identity.kind)
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
            _refuse_files_of_others(folder, identity.kind)
        folder.remove_leftovers()
        folder.write_json(PLAN, identity.model_dump(mode="json"))
        yield Building(folder, identity, finished_parts(folder))


def remove_remains(folder: Folder, kind: str) -> None:
    """Remove files of a process that was killed after it wrote the manifest, unless another process writes there.

    Args:
        folder: folder of an artefact, which may not exist.
        kind: kind of the artefact.
    """
    if folder.exists(PLAN) and folder.exists(MANIFEST):
        # A damaged artefact is set aside as a whole.
        with suppress(BusyError, DamagedError), only_writer(folder):
            _remove_remains(Artifact.open(folder, kind))


def _remove_remains(made: Artifact) -> None:
    folder, kept = made.folder, {MANIFEST, PLAN, *(name.split("/")[0] for name in made.manifest.parts)}
    if folder.exists(PLAN):
        folder.remove(DONE)
        folder.remove_leftovers()
        for name in {file.split("/")[0] for file in folder.files()} - kept:
            folder.remove(name)
        folder.remove(PLAN)


def _refuse_files_of_others(folder: Folder, kind: str) -> None:
    if folder.is_local and Path(folder.root).is_file():
        raise ArtifactError(f"{folder} is a file: choose an output folder")
    ours: set[str] = set()
    with suppress(FileNotFoundError, ValueError):
        manifest = Manifest.model_validate(folder.read_sealed(MANIFEST))
        if manifest.identity.kind != kind:
            raise ArtifactError(f"{folder} holds a {manifest.identity.kind} of raydr: choose another output folder")
        ours = {MANIFEST, *manifest.parts}
    if others := sorted(set(folder.files()) - ours):
        raise ArtifactError(
            f"{folder} holds files that raydr did not write ({others[0]}, ...): choose another output folder"
        )


def _check_same(folder: Folder, requested: Identity, existing: Identity) -> None:
    if existing.fingerprint != requested.fingerprint:
        raise FingerprintError(
            f"the {existing.kind} at {folder} has other settings than requested:\n  "
            + "\n  ".join(differences(existing.model_dump(), requested.model_dump()))
            + "\nuse another output folder, restore these settings, or pass --again to replace it"
        )
