"""Leases: one process at a time on an object store, which has no locks.

The leases of a folder are numbered files beside it. Whoever writes the next number holds the folder: the store refuses
to write a file that is already there (a conditional put), so that of several processes one wins. The holder says in its
file until when, writes it again before then, and removes it at the end; a file whose time is over may be followed by
the next number. Clocks of machines that share a store may differ by less than ``_LEASE_S - _RENEW_S`` seconds.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raydr.component import Config
from raydr.errors import ArtifactError, BusyError
from raydr.store.folder import Folder

#: Seconds that a lease holds, and after which its holder renews it.
_LEASE_S, _RENEW_S = 120.0, 20.0


class Lease(Config):
    """Who may write a folder, and until when."""

    holder: str
    """Machine and process."""

    expires: float
    """Seconds since 1970."""


@contextmanager
def hold_lease(folder: Folder) -> Iterator[None]:
    """Be the only writer of a folder until the block ends.

    Raises:
        BusyError: another process holds it; or the lease was lost while the block ran, for example because this
            process was asleep.
        ArtifactError: the place cannot be written.
    """
    leases = _leases_of(folder)
    number, last = _newest(leases)
    if last is not None and last.expires > time.time():
        raise BusyError(f"another raydr process ({last.holder}) is writing {folder}: wait for it, or stop it")
    own = _name(number + 1)
    try:
        leases.create_json(own, _lease().model_dump())
    except FileExistsError:
        raise BusyError(f"another raydr process has just begun to write {folder}: wait for it") from None
    except OSError as error:
        raise ArtifactError(f"cannot write {leases.path(own)}: {error}") from error
    for name in leases.files():
        if name < own:
            leases.remove(name)
    ended, lost = threading.Event(), threading.Event()
    renewing = threading.Thread(target=_renew, args=(leases, own, ended, lost), daemon=True, name="raydr-lease")
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        # Whoever slept past the end of its lease may have been followed: the other's file stays.
        if _newest(leases)[0] != number + 1:
            lost.set()
        leases.remove(own)
    if lost.is_set():
        raise BusyError(
            f"the lease of {folder} could not be renewed in time, and another process may be writing there: "
            "the same command again goes on with what is there"
        )


def is_leased(folder: Folder) -> bool:
    """Whether another process holds the folder now."""
    lease = _newest(_leases_of(folder))[1]
    return lease is not None and lease.expires > time.time()


def _renew(leases: Folder, own: str, ended: threading.Event, lost: threading.Event) -> None:
    expires = time.time() + _LEASE_S
    while not ended.wait(_RENEW_S):
        if _newest(leases)[0] != int(own.removesuffix(".json")):
            lost.set()
            return
        lease = _lease()
        try:
            leases.write_json(own, lease.model_dump())
            expires = lease.expires
        except (OSError, ArtifactError):
            # The store may be back before the lease is over.
            if time.time() > expires:
                lost.set()
                return


def _newest(leases: Folder) -> tuple[int, Lease | None]:
    """The highest number, and its lease; 0 and None where there was none."""
    while names := leases.files():
        try:
            return int(names[-1].removesuffix(".json")), Lease.model_validate(leases.read_json(names[-1]))
        except FileNotFoundError:
            # A newer holder has just removed it.
            continue
    return 0, None


def _lease() -> Lease:
    return Lease(holder=f"{socket.gethostname()}, pid {os.getpid()}", expires=time.time() + _LEASE_S)


def _leases_of(folder: Folder) -> Folder:
    parent, _, name = folder.url.rstrip("/").rpartition("/")
    return Folder(f"{parent}/.{name}.lease")


def _name(number: int) -> str:
    return f"{number:09}.json"


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
