"""One process makes an artefact at a time: a lock, or a lease, beside its folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydr.errors import ArtifactError, BusyError
from raydr.store.folder import Folder
from raydr.store.lease import hold_lease, is_leased


@contextmanager
def only_writer(folder: Folder) -> Iterator[None]:
    """Refuse a second process on the same output: by a lock of the file system, or a lease on an object store.

    Raises:
        BusyError: there is one.
        ArtifactError: the place cannot be written.
    """
    if not folder.is_local:
        with hold_lease(folder):
            yield
        return
    root = Path(folder.root)
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(f"cannot make the folder {root.parent}: {error.strerror}") from error
    with open(_lock_of(folder), "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BusyError(
                f"another raydr process ({file.read().strip() or 'unknown'}) "
                f"is writing {folder}: wait for it, or stop it"
            ) from None
        file.truncate(0)
        file.write(f"pid {os.getpid()}")
        file.flush()
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def is_being_written(folder: Folder) -> bool:
    """Whether another process holds the lock or the lease of a folder now."""
    if not folder.is_local:
        return is_leased(folder)
    lock = _lock_of(folder)
    if not lock.exists():
        return False
    with open(lock, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def _lock_of(folder: Folder) -> Path:
    root = Path(folder.root)
    return root.with_name(f".{root.name}.lock")
