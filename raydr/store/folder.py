"""Folders on any fsspec filesystem, with atomic publication of files.

Local paths, ``s3://`` and ``gs://`` URLs are handled alike. A file is written under a temporary name and renamed, so
that readers never see a partial file. Libraries that need a local path (memory mapping, FAISS, Hugging Face) get it
from :meth:`Folder.localize`.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem
from pydantic import BaseModel, ValidationError

from raydr.errors import DamagedError, first_line
from raydr.store.filesystems import FileDetails, resolve_url, writing
from raydr.store.node_cache import fetched, has_content, note_content

S = TypeVar("S")
T = TypeVar("T")
Record = TypeVar("Record", bound=BaseModel)

#: Key of a JSON file's own checksum.
_SEAL = "seal"
_REMEDY = "remove it, and make its artefact again"

_CHUNK = 1 << 20
#: Concurrent reads or requests.
_REQUESTS = 32
#: Separates a set-aside folder's name from its unique suffix.
ASIDE = ".aside-"


def short_digest(*texts: str) -> str:
    """Return BLAKE2b of texts, 32 hex digits."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


def _seal(value: Mapping[str, Any]) -> str:
    """Return the checksum of a value's JSON, independent of the order of keys."""
    return short_digest(json.dumps(value, sort_keys=True, ensure_ascii=True, default=str))


@dataclass(frozen=True)
class Folder:
    """A folder; picklable for Ray workers.

    >>> folder = Folder(tempfile.mkdtemp()) / "runs"
    >>> folder.write_json("a.json", {"x": 1})
    >>> folder.read_json("a.json"), folder.exists("b.json"), folder.files()
    ({'x': 1}, False, ['a.json'])
    """

    url: str

    @property
    def filesystem(self) -> fsspec.AbstractFileSystem:
        return resolve_url(self.url)[0]

    @property
    def root(self) -> str:
        """Path without its protocol; absolute for local folders."""
        return resolve_url(self.url)[1]

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    def absolute(self) -> Folder:
        """Return the folder by an absolute path: workers have another working directory."""
        return Folder(self.root) if self.is_local else self

    def __truediv__(self, name: str) -> Folder:
        return Folder(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.root if self.is_local else self.url

    def path(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"

    def exists(self, name: str = "") -> bool:
        return bool(self.filesystem.exists(self.path(name) if name else self.root))

    def details(self, name: str) -> FileDetails | None:
        """Return size and version of a file in one request; None if it is missing."""
        try:
            return FileDetails.of(self.filesystem.info(self.path(name)))
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int:
        return int(self.filesystem.size(self.path(name)))

    def last_written(self) -> float:
        """Return the time of the last write below, in seconds since 1970; 0 without files."""
        return max((self.filesystem.modified(self.path(name)).timestamp() for name in self.files()), default=0.0)

    def listing(self) -> dict[str, FileDetails]:
        """Return size and version of all files, by one listing instead of a request a file."""
        prefix = self.root.rstrip("/") + "/"
        infos = self.filesystem.find(self.root, detail=True)
        return {str(name).removeprefix(prefix): FileDetails.of(info) for name, info in infos.items()}

    def open(self, name: str, mode: str = "rb") -> IO[Any]:
        return cast(IO[Any], self.filesystem.open(self.path(name), mode))

    def files(self, under: str = "") -> list[str]:
        """Return the sorted names of all files below, relative to this folder, without temporary files."""
        base = self.path(under) if under else self.root
        if not self.filesystem.exists(base):
            return []
        prefix = self.root.rstrip("/") + "/"
        names = (str(file).removeprefix(prefix) for file in self.filesystem.find(base))
        return sorted(name for name in names if ".tmp-" not in name)

    def remove(self, name: str = "") -> None:
        """Remove a file or folder; a local folder is moved first, so that a killed process leaves no partial folder."""
        target = self.path(name) if name else self.root
        if not self.filesystem.exists(target):
            return
        if self.is_local and Path(target).is_dir():
            aside = Path(target).with_name(f"{Path(target).name}.tmp-{uuid.uuid4().hex[:8]}")
            os.replace(target, aside)
            target = str(aside)
        if not self.is_local and glob.has_magic(target):
            # fsspec would take the name for a pattern, and remove every match.
            side_by_side(self.filesystem.rm_file, self.filesystem.find(target))
        else:
            self.filesystem.rm(target, recursive=True)

    def set_aside(self) -> None:
        """Make room for a new version: move a local folder aside, remove an object store's."""
        if not self.is_local:
            self.remove()
        elif Path(self.root).exists():
            os.replace(self.root, f"{self.root}{ASIDE}{uuid.uuid4().hex[:8]}")

    def remove_leftovers(self) -> None:
        """Remove temporary files of killed processes; call only as the sole writer.

        Object stores have none: incomplete uploads are invisible.
        """
        if not self.is_local:
            return
        root = Path(self.root)
        for left in [*root.rglob("*.tmp-*"), *root.parent.glob(f"{glob.escape(root.name)}.tmp-*")]:
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)

    def read_json(self, name: str) -> Any:
        """
        Raises:
            DamagedError: the file holds no valid JSON.
        """
        # One request: between open and read the file may be replaced.
        try:
            return json.loads(self.filesystem.cat_file(self.path(name)))
        except (ValueError, RecursionError, IsADirectoryError) as error:
            raise DamagedError(f"{self / name} is damaged ({first_line(error)}): {_REMEDY}") from None

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        with self.publish(name) as path:
            Path(path).write_text(text + "\n", encoding="utf-8")

    def write_sealed(self, name: str, value: Mapping[str, Any]) -> None:
        """Write JSON as :meth:`write_json`, with a checksum of the value."""
        self.write_json(name, {**value, _SEAL: _seal(value)})

    def read_sealed(self, name: str) -> dict[str, Any]:
        """Read JSON of :meth:`write_sealed`, or an object without a checksum, written by hand.

        Raises:
            DamagedError: the content is invalid.
        """
        value = self.read_json(name)
        seal = value.pop(_SEAL, None) if isinstance(value, dict) else ""
        if seal not in (None, _seal(value)):
            raise DamagedError(f"{self / name} was changed or damaged after it was written: {_REMEDY}")
        return dict(value)

    def read_record(self, name: str, kind: type[Record]) -> Record:
        """Read JSON as :meth:`read_sealed`, as a pydantic model.

        Raises:
            DamagedError: the content is invalid.
        """
        value = self.read_sealed(name)
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            raise DamagedError(f"{self / name} is no valid {kind.__name__} ({first_line(error)}): {_REMEDY}") from None

    def read_bytes(self, name: str, start: int, end: int) -> bytes:
        """Return a range of a file's bytes, in one request."""
        return bytes(self.filesystem.cat_file(self.path(name), start=start, end=end))

    def create_json(self, name: str, value: Any) -> None:
        """Create a small JSON file atomically; of concurrent processes only one succeeds.

        Raises:
            FileExistsError: the file exists.
        """
        self.filesystem.pipe_file(self.path(name), json.dumps(value).encode(), mode="create")

    @contextmanager
    def publish(self, name: str) -> Iterator[str]:
        """Yield a local path to write to; its content is published atomically as ``name`` when the block ends.

        Raises:
            ArtifactError: the disk is full or the place is not writable.
        """
        with writing(self.path(name)):
            if self.is_local:
                target = Path(self.path(name))
                target.parent.mkdir(parents=True, exist_ok=True)
                temporary = target.with_name(f"{target.name}.tmp-{uuid.uuid4().hex[:8]}")
                try:
                    yield str(temporary)
                    with open(temporary, "rb") as written:
                        os.fsync(written.fileno())
                    os.replace(temporary, target)
                finally:
                    temporary.unlink(missing_ok=True)
            else:
                with tempfile.TemporaryDirectory(prefix="raydr-") as scratch:
                    temporary = Path(scratch) / Path(name).name
                    yield str(temporary)
                    # An object store shows only complete uploads.
                    self.filesystem.put_file(str(temporary), self.path(name))

    def localize(self, name: str, checksum: str = "") -> str:
        """Return a local path of a file's content: the file itself, or a copy in the node's cache.

        Args:
            name: name of the file.
            checksum: checksum of its bytes, if known: an existing copy then needs no request, and a new copy is read
                once to compare it.

        Raises:
            FileNotFoundError: the file is missing.
            DamagedError: the file on the object store has another checksum.
        """
        if self.is_local:
            return self.path(name)
        path = self.path(name)
        key = checksum or short_digest(self.url, name, FileDetails.of(self.filesystem.info(path)).version)

        def fetch(copy: Path) -> None:
            self.filesystem.get_file(path, str(copy))
            if checksum and Folder(str(copy.parent)).checksum(copy.name) != checksum:
                raise DamagedError(f"{self / name} differs from the checksum {checksum}: {_REMEDY}")

        return fetched(f"{key}/{Path(name).name}", fetch)

    def localize_all(self) -> str:
        """Return a local path of the folder: the folder itself, or a copy in the node's cache."""
        if self.is_local:
            return self.root
        infos = self.filesystem.find(self.root, detail=True)
        if not infos:
            raise FileNotFoundError(f"there is nothing at {self}")
        # The key includes versions: an artefact made again may differ at the same place.
        key = short_digest(self.url, *(f"{name}@{FileDetails.of(infos[name]).version}" for name in sorted(infos)))

        def fetch(copy: Path) -> None:
            # File by file: fsspec would take the name of a folder for a pattern.
            def fetch_file(name: str) -> None:
                path = copy / name.removeprefix(f"{self.root.rstrip('/')}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                self.filesystem.get_file(name, str(path))

            side_by_side(fetch_file, list(infos))

        return fetched(key, fetch)

    def has_content(self, name: str, checksum: str) -> bool:
        """Return whether a local file has a checksum; each content is read once."""
        path = self.path(name)
        if not has_content(path, checksum):
            if self.checksum(name) != checksum:
                return False
            note_content(path, checksum)
        return True

    def checksum(self, name: str) -> str:
        """Return BLAKE2b of the file's bytes, 32 hex digits."""
        with self.open(name) as file:
            return _checksum(file)


def _checksum(file: IO[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        digest.update(chunk)
    return digest.hexdigest()


def side_by_side(do: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Apply a function to many items concurrently: an object store takes about 30 ms a request."""
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="raydr-store") as threads:
        return list(threads.map(do, items))


def write_part(folder: Folder, name: str, rows: int, write: Callable[[str], object]) -> dict[str, Any]:
    """Write a file atomically and return its manifest record: rows, bytes, checksum."""
    with folder.publish(name) as path:
        write(path)
        # Checksum of the local file, to avoid a download from an object store.
        with open(path, "rb") as file:
            checksum, size = _checksum(file), os.path.getsize(path)
    if folder.is_local:
        note_content(folder.path(name), checksum)
    return {"rows": rows, "bytes": size, "checksum": checksum}


def publish_files(folder: Folder, save: Callable[[Path], None], last: str = "") -> None:
    """Write files locally with ``save``, and publish each.

    Args:
        folder: folder on any file system.
        save: writes files into a local folder.
        last: file to publish last, so that its presence implies the others.
    """
    with ExitStack() as stack:
        with writing(f"temporary files (TMPDIR, {os.environ.get('TMPDIR', '/tmp')})"):
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="raydr-files-"))
            save(Path(scratch))
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        for file in sorted(files, key=lambda path: path.name == last):
            with folder.publish(file.relative_to(scratch).as_posix()) as path:
                shutil.copyfile(file, path)
