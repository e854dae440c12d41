"""File systems behind paths and URLs: how they are found, what they tell of a file, what they raise when full."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import IO, Any, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from raydr.errors import ArtifactError, first_line

#: What safetensors, PyTorch and FAISS say of a disk, in errors that are no OSError.
_NOT_WRITTEN = re.compile(r"I/O error:|\(os error \d+\)|inline_container|PytorchStreamWriter|failed: write error")


def resolve_url(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a path or URL, and the path in it.

    Raises:
        ArtifactError: the package for this kind of URL is not installed, or there is no such kind.
    """
    if "::" in url and ("://" not in url or url.startswith(("/", ".", "~"))):
        # A path, where for fsspec a double colon chains two file systems.
        return LocalFileSystem(), os.path.join(os.getcwd(), os.path.expanduser(url)).rstrip("/")
    try:
        # Listings that are kept would hide what other processes have written since.
        filesystem, path = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        raise ArtifactError(f"{url}: {error}. pip install s3fs for s3://, pip install gcsfs for gs://") from error
    except ValueError as error:
        raise ArtifactError(f"{url}: {error}. Give a local path, or a URL such as s3://BUCKET/folder") from error
    return filesystem, str(path)


def open_file(url: str, compression: str | None = None) -> IO[bytes]:
    """A file by its path or URL, for reading; ``compression`` as fsspec has it, such as ``infer`` from its name."""
    filesystem, path = resolve_url(url)
    return cast(IO[bytes], filesystem.open(path, "rb", compression=compression))


def require_reachable(url: str) -> None:
    """Ask a remote store one question, so that a wrong key or address is told with a word, and before the work.

    Raises:
        ArtifactError: it does not answer, or not to us.
    """
    filesystem, path = resolve_url(url)
    if isinstance(filesystem, LocalFileSystem):
        return
    try:
        filesystem.exists(path)
    # Each store's client has errors of its own, that have nothing in common.
    except Exception as error:
        raise ArtifactError(
            f"cannot reach {url} ({type(error).__name__}: {error}). Check the name, and what the environment says of "
            "keys and address: for s3:// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL"
        ) from error


@dataclass(frozen=True)
class FileDetails:
    """What a file system tells of a file.

    Args:
        size: in bytes.
        version: changes with the content.
    """

    size: int
    version: str

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> FileDetails:
        """From what fsspec tells."""
        version = info.get("ETag") or info.get("mtime") or info.get("updated") or info.get("created")
        # A time may come in another form with a listing than with a question about one file.
        version = version.timestamp() if isinstance(version, datetime) else version
        return cls(int(info.get("size") or 0), f"{version}, {info.get('size')} bytes")


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn what libraries raise of a disk that is full, or may not be written, into one message.

    Args:
        what: is written, a path.

    Raises:
        ArtifactError: it could not be written.
    """
    try:
        yield
    except ArtifactError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not _NOT_WRITTEN.search(str(error)):
            raise
        number = error.errno if isinstance(error, OSError) else None
        raise ArtifactError(
            f"cannot write {what}: {os.strerror(number) if number else first_line(error)}. "
            "Check free space and permissions, then run the same command again: finished parts are kept."
        ) from error
