"""File systems of paths and URLs, versions of files, and write errors."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from raydr.errors import ArtifactError, DiskFullError, first_line

#: Messages of safetensors, PyTorch and FAISS on disk errors that are no OSError.
_NOT_WRITTEN = re.compile(r"I/O error:|\(os error \d+\)|inline_container|PytorchStreamWriter|failed: write error")


def resolve_url(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return the file system of a path or URL, and the path in it.

    Raises:
        ArtifactError: the URL's protocol is unknown, or its package is not installed.
    """
    if "::" in url and ("://" not in url or url.startswith(("/", ".", "~"))):
        # In a local path, fsspec would read a double colon as a chain of file systems.
        return LocalFileSystem(), os.path.join(os.getcwd(), os.path.expanduser(url)).rstrip("/")
    try:
        # Cached listings would hide writes of other processes.
        filesystem, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise ArtifactError(f"{url}: {error}. pip install s3fs for s3://, pip install gcsfs for gs://") from error
    except ValueError as error:
        raise ArtifactError(f"{url}: {error}. Give a local path, or a URL such as s3://BUCKET/folder") from error
    return filesystem, str(path)


def open_file(url: str, compression: str | None = None) -> IO[bytes]:
    """Open a file by its path or URL for reading; ``compression`` as in fsspec, such as ``infer``."""
    filesystem, path = resolve_url(url)
    return cast(IO[bytes], filesystem.open(path, "rb", compression=compression))


def require_reachable(url: str) -> None:
    """Send a request to a remote store, so that a wrong key or address is reported before the work.

    Raises:
        ArtifactError: the store does not answer or denies access.
    """
    filesystem, path = resolve_url(url)
    if isinstance(filesystem, LocalFileSystem):
        return
    try:
        filesystem.exists(path)
    # The stores' clients have no common error class.
    except Exception as error:
        raise ArtifactError(
            f"cannot reach {url} ({type(error).__name__}: {error}). Check the name, and the keys and address in the "
            "environment: for s3:// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL"
        ) from error


@dataclass(frozen=True)
class FileDetails:
    """Size and version of a file.

    Args:
        size: in bytes.
        version: version that changes with the content.
    """

    size: int
    version: str

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> FileDetails:
        """Read fsspec's info."""
        version = info.get("ETag") or info.get("mtime") or info.get("updated") or info.get("created")
        if "islink" in info:
            with suppress(FileNotFoundError):
                # A local listing has times of links, not of the files behind them. Archives and copies with the former
                # time of a file change only the time of its status.
                status = os.stat(info["name"])
                version = f"{status.st_mtime}, {status.st_ctime}"
        # Listings and single requests may format a time differently.
        version = version.timestamp() if isinstance(version, datetime) else version
        return cls(int(info.get("size") or 0), f"{version}, {info.get('size')} bytes")


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a disk, or a quota on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Convert library errors of a full or read-only disk into one message.

    Args:
        what: path that is written.

    Raises:
        DiskFullError: the disk is full.
        ArtifactError: the write failed for another reason.
    """
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not _NOT_WRITTEN.search(str(error)):
            raise
        number = error.errno if isinstance(error, OSError) else None
        raise (DiskFullError if is_full(error) else ArtifactError)(
            f"cannot write {what}: {os.strerror(number) if number else first_line(error)}. "
            "Check free space and permissions, then run the same command again: finished parts are kept."
        ) from error
