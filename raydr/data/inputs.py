"""Paths and checksums of input files, with or without ``.gz``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from raydr.errors import DataError
from raydr.store import Folder
from raydr.store.filesystems import open_file, require_reachable, resolve_url

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Input:
    """File that a reader needs."""

    what: str
    path: str
    exists: bool


_looked_for: ContextVar[list[Input] | None] = ContextVar("looked_for", default=None)


@contextmanager
def looking_for_inputs() -> Iterator[list[Input]]:
    """Collect the files that readers look for inside the block; a missing file is recorded without an error."""
    inputs: list[Input] = []
    token = _looked_for.set(inputs)
    try:
        yield inputs
    finally:
        _looked_for.reset(token)


def absolute(path: str) -> str:
    """Return the path itself if it is a URL, else an absolute local path, which is the same in every worker.

    >>> absolute("s3://bucket/nq"), absolute("/data/nq")
    ('s3://bucket/nq', '/data/nq')
    """
    return path if "://" in path else os.path.abspath(os.path.expanduser(path))


def join(folder: str, name: str) -> str:
    """Return ``name`` below ``folder``; an absolute name (or a URL) stays as it is.

    >>> join("s3://bucket/nq/", "a.tsv"), join("/data", "/other/a.tsv"), join("/data", "")
    ('s3://bucket/nq/a.tsv', '/other/a.tsv', '/data')
    """
    if "://" in name or name.startswith("/"):
        return name
    return f"{absolute(folder).rstrip('/')}/{name}" if name else absolute(folder)


def place_of(path: str) -> tuple[Folder, str]:
    """Return the folder of a file, local or an fsspec URL, and the name in it.

    >>> str(place_of("/pairs.csv")[0]), str(place_of("s3://bucket/pairs.csv")[0])
    ('/', 's3://bucket')
    """
    parent, _, name = path.rpartition("/")
    return Folder(parent or ("/" if path.startswith("/") else ".")), name


def exists(path: str) -> bool:
    filesystem, inner = resolve_url(path)
    return bool(filesystem.isfile(inner))


def shown_files(folder: Folder) -> list[str]:
    """Return the files below a folder without hidden files, such as files of systems and editors."""
    return [name for name in folder.files() if not any(step.startswith((".", "__MACOSX")) for step in name.split("/"))]


def find_input(folder: str, name: str, what: str) -> str:
    """Return the path of ``name`` or ``name.gz`` below ``folder``.

    Raises:
        DataError: neither file exists; the message has the expected content and the files of the folder.
        ArtifactError: the store of the folder cannot be reached.
    """
    path = join(folder, name)
    existing = next(
        (candidate for candidate in (path, f"{path}.gz", path.removesuffix(".gz")) if exists(candidate)), None
    )
    inputs = _looked_for.get()
    if inputs is not None:
        inputs.append(Input(what, existing or path, existing is not None))
        return existing or path
    if existing is not None:
        return existing
    require_reachable(path)
    listed = Folder(absolute(folder)).files()[:10] if folder else []
    raise DataError(
        f"there is no file {path} (or {path}.gz) with the {what}. "
        + (f"{absolute(folder)} holds: {', '.join(listed)}" if listed else f"{absolute(folder)} has no files")
        + ". Check the paths of data.reader."
    )


def checksum(path: str) -> str:
    """Return BLAKE2b of a file's bytes, 32 hex digits.

    Raises:
        DataError: the file does not exist or cannot be read.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        with open_file(path) as file:
            for chunk in iter(lambda: file.read(_CHUNK), b""):
                digest.update(chunk)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}. Check the paths of data.reader.") from error
    return digest.hexdigest()


def short_names(paths: list[str]) -> list[str]:
    """Return the paths without their common folders, at least their file names.

    >>> short_names(["/data/nq/train/a.json", "/data/nq/dev/a.json"]), short_names(["/data/psgs.tsv"])
    (['train/a.json', 'dev/a.json'], ['psgs.tsv'])
    """
    split = [path.split("/") for path in paths]
    common = 0
    while all(len(steps) > common + 1 for steps in split) and len({steps[common] for steps in split}) == 1:
        common += 1
    return ["/".join(steps[common:]) for steps in split]
