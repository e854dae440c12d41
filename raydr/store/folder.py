"""Folders on any fsspec filesystem, with atomic publication of files.

Local paths, ``s3://`` and ``gs://`` URLs are handled alike. A file is written under a temporary name and
renamed, so that a reader sees either nothing or the whole of it. Libraries that need a real local path (memory
mapping, FAISS, Hugging Face) get one from :meth:`Folder.localize`.
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
from raydr.store.contents import has_content, note_content
from raydr.store.filesystems import FileDetails, resolve_url, writing
from raydr.store.node_cache import fetched

S = TypeVar("S")
T = TypeVar("T")
Record = TypeVar("Record", bound=BaseModel)

#: Key of a small file's own checksum.
_SEAL = "seal"
_REMEDY = "remove it, and make what it belongs to again"

_CHUNK = 1 << 20
#: Files that are read, or asked for, at a time.
_REQUESTS = 32
#: Between the name of a folder that was set aside and what tells it from others.
ASIDE = ".aside-"


def short_digest(*texts: str) -> str:
    """A name for some texts: BLAKE2b, 32 hex digits."""
    return hashlib.blake2b("\n".join(texts).encode(), digest_size=16).hexdigest()


def _seal(value: Mapping[str, Any]) -> str:
    """Checksum of a value as its JSON says it, whatever the order of its keys."""
    return short_digest(json.dumps(value, sort_keys=True, ensure_ascii=True, default=str))


@dataclass(frozen=True)
class Folder:
    """One folder; picklable, so that it can be handed to Ray workers.

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
        """The path without its protocol; absolute for local folders."""
        return resolve_url(self.url)[1]

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    def absolute(self) -> Folder:
        """The same folder by a path that holds in every process: workers have another working folder."""
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
        """Size and version of a file in one request; None if it is not there."""
        try:
            return FileDetails.of(self.filesystem.info(self.path(name)))
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int:
        return int(self.filesystem.size(self.path(name)))

    def last_written(self) -> float:
        """When the newest file below was written, in seconds since 1970; 0 where there is none."""
        return max((self.filesystem.modified(self.path(name)).timestamp() for name in self.files()), default=0.0)

    def listing(self) -> dict[str, FileDetails]:
        """Size and version of all files by name: one listing, where asking for each would take a request a file."""
        prefix = self.root.rstrip("/") + "/"
        infos = self.filesystem.find(self.root, detail=True)
        return {str(name).removeprefix(prefix): FileDetails.of(info) for name, info in infos.items()}

    def open(self, name: str, mode: str = "rb") -> IO[Any]:
        return cast(IO[Any], self.filesystem.open(self.path(name), mode))

    def files(self, under: str = "") -> list[str]:
        """Names of all files below, relative to this folder, sorted; temporary files are left out."""
        base = self.path(under) if under else self.root
        if not self.filesystem.exists(base):
            return []
        prefix = self.root.rstrip("/") + "/"
        names = (str(file).removeprefix(prefix) for file in self.filesystem.find(base))
        return sorted(name for name in names if ".tmp-" not in name)

    def remove(self, name: str = "") -> None:
        """Remove a file or a folder; a local folder goes in one move, so that a process killed here leaves no half."""
        target = self.path(name) if name else self.root
        if not self.filesystem.exists(target):
            return
        if self.is_local and Path(target).is_dir():
            aside = Path(target).with_name(f"{Path(target).name}.tmp-{uuid.uuid4().hex[:8]}")
            os.replace(target, aside)
            target = str(aside)
        self.filesystem.rm(target, recursive=True)

    def set_aside(self) -> None:
        """Make room for the same thing made anew; a local folder is kept beside, an object store's is removed."""
        if not self.is_local:
            self.remove()
        elif Path(self.root).exists():
            os.replace(self.root, f"{self.root}{ASIDE}{uuid.uuid4().hex[:8]}")

    def remove_leftovers(self) -> None:
        """Remove what processes that were killed have left of files and of this folder; for its only writer.

        Object stores are left alone: what was not uploaded whole is not there.
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
            DamagedError: the file holds no JSON.
        """
        # In one request: a file that is opened first may be another one when it is read.
        content = self.filesystem.cat_file(self.path(name))
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"{self.path(name)} is damaged ({first_line(error)}): {_REMEDY}") from None

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
        with self.publish(name) as path:
            Path(path).write_text(text + "\n", encoding="utf-8")

    def write_sealed(self, name: str, value: Mapping[str, Any]) -> None:
        """As :meth:`write_json`, with a checksum of the value in it."""
        self.write_json(name, {**value, _SEAL: _seal(value)})

    def read_sealed(self, name: str) -> dict[str, Any]:
        """What :meth:`write_sealed` wrote, or an object without a checksum, which people have written.

        Raises:
            DamagedError: the file holds something else.
        """
        value = self.read_json(name)
        seal = value.pop(_SEAL, None) if isinstance(value, dict) else ""
        if seal not in (None, _seal(value)):
            raise DamagedError(f"{self.path(name)} was changed or damaged after it was written: {_REMEDY}")
        return dict(value)

    def read_record(self, name: str, kind: type[Record]) -> Record:
        """As :meth:`read_sealed`, as a model of pydantic.

        Raises:
            DamagedError: the file holds something else.
        """
        value = self.read_sealed(name)
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            raise DamagedError(f"{self.path(name)} holds no {kind.__name__} ({first_line(error)}): {_REMEDY}") from None

    def read_bytes(self, name: str, start: int, end: int) -> bytes:
        """Return a range of a file's bytes, in one request."""
        return bytes(self.filesystem.cat_file(self.path(name), start=start, end=end))

    def create_json(self, name: str, value: Any) -> None:
        """Write a small file that must not be there yet; of several processes that try, one can.

        Raises:
            FileExistsError: it is there.
        """
        self.filesystem.pipe_file(self.path(name), json.dumps(value).encode(), mode="create")

    @contextmanager
    def publish(self, name: str) -> Iterator[str]:
        """A local path to write to; what was written there appears as ``name``, whole, when the block ends.

        Raises:
            ArtifactError: the disk is full or the place cannot be written.
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
                    # An object store shows an upload only once it is complete.
                    self.filesystem.put_file(str(temporary), self.path(name))

    def localize(self, name: str, checksum: str = "") -> str:
        """Return a local path with the content of a file: itself if local, else a copy in the node's cache.

        Args:
            name: of the file.
            checksum: of its bytes, where that is known: the store is then asked nothing for a copy that is there, and
                a new copy is read once to compare it.

        Raises:
            FileNotFoundError: the file is not there.
            DamagedError: the file of an object store has another checksum.
        """
        if self.is_local:
            return self.path(name)
        path = self.path(name)
        key = checksum or short_digest(self.url, name, FileDetails.of(self.filesystem.info(path)).version)

        def fetch(copy: Path) -> None:
            self.filesystem.get_file(path, str(copy))
            if checksum and Folder(str(copy.parent)).checksum(copy.name) != checksum:
                copy.unlink()
                raise DamagedError(f"{path} does not have the checksum {checksum}: {_REMEDY}")

        return fetched(f"{key}/{Path(name).name}", fetch)

    def localize_all(self) -> str:
        """A local path of the whole folder: itself if local, else a copy in the node's cache."""
        if self.is_local:
            return self.root
        infos = self.filesystem.find(self.root, detail=True)
        if not infos:
            raise FileNotFoundError(f"there is nothing at {self}")
        # By content: what was made again with the same settings may differ, and is at the same place.
        versions = (f"{name}@{FileDetails.of(info).version}" for name, info in sorted(infos.items()))
        key = short_digest(self.url, *versions)
        return fetched(key, lambda copy: self.filesystem.get(self.root, str(copy), recursive=True))

    def has_content(self, name: str, checksum: str) -> bool:
        """Whether a local file has a checksum; read once for each content of it."""
        path = self.path(name)
        if not has_content(path, checksum):
            if self.checksum(name) != checksum:
                return False
            note_content(path, checksum)
        return True

    def checksum(self, name: str) -> str:
        """BLAKE2b of the file's bytes, 32 hex digits."""
        with self.open(name) as file:
            return _checksum(file)


def _checksum(file: IO[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for chunk in iter(lambda: file.read(_CHUNK), b""):
        digest.update(chunk)
    return digest.hexdigest()


def side_by_side(do: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Return the results for many files: an object store takes 30 ms for each, whether others are asked or not."""
    with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="raydr-store") as threads:
        return list(threads.map(do, items))


def write_part(folder: Folder, name: str, rows: int, write: Callable[[str], None]) -> dict[str, Any]:
    """Write one file atomically and return its record for the manifest: rows, bytes, checksum."""
    with folder.publish(name) as path:
        write(path)
        # Of the local file: an object store would have to send it back.
        with open(path, "rb") as file:
            checksum, size = _checksum(file), os.path.getsize(path)
    if folder.is_local:
        note_content(folder.path(name), checksum)
    return {"rows": rows, "bytes": size, "checksum": checksum}


def publish_files(folder: Folder, save: Callable[[Path], None], last: str = "") -> None:
    """Write files locally with ``save``, and publish each of them.

    Args:
        folder: on any file system.
        save: writes into a local folder.
        last: the file that comes last, so that the others are there when it is.
    """
    with ExitStack() as stack:
        with writing(f"temporary files (TMPDIR, {os.environ.get('TMPDIR', '/tmp')})"):
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="raydr-files-"))
            save(Path(scratch))
        files = sorted(path for path in Path(scratch).rglob("*") if path.is_file())
        for file in sorted(files, key=lambda path: path.name == last):
            with folder.publish(file.relative_to(scratch).as_posix()) as path:
                shutil.copyfile(file, path)
