"""Locks of folders; on object stores, which have no locks, leases.

Leases of a folder are numbered files beside it. The process that writes the next number holds the folder: a conditional
put rejects existing files, so that a single process wins. The holder writes the expiry time into its file, renews it in
time, and removes the file at the end. After an expired lease the next number may follow. Clocks of machines that share
a store may differ by less than ``_LEASE_S - _RENEW_S`` seconds.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from raydr.component import Config
from raydr.errors import ArtifactError, BusyError
from raydr.store.filesystems import writing
from raydr.store.folder import Folder

#: Duration of a lease, and its renewal interval, in seconds.
_LEASE_S, _RENEW_S = 120.0, 20.0


class Lease(Config):
    """Holder of a folder, and expiry of the lease."""

    holder: str
    """Machine and process."""

    expires: float
    """Expiry, in seconds since 1970."""

    token: str = ""
    """Mark of the holder: numbers begin again at 1 when all leases have ended."""


@contextmanager
def hold_lease(folder: Folder) -> Iterator[None]:
    """Hold the lease of a folder until the block ends.

    Raises:
        BusyError: another process holds the lease; or the lease was lost within the block, for example because this
            process was suspended.
        ArtifactError: the place is not writable.
    """
    leases = _leases_of(folder)
    number, last = _newest(leases)
    if last is not None and last.expires > time.time():
        raise BusyError(f"another raydr process ({last.holder}) is writing {folder}: wait for it, or stop it")
    own, token = _name(number + 1), uuid.uuid4().hex
    try:
        leases.create_json(own, _lease(token).model_dump())
    except FileExistsError:
        raise BusyError(f"another raydr process just started to write {folder}: wait for it") from None
    except OSError as error:
        raise ArtifactError(f"cannot write {leases / own}: {error}") from error
    for name in leases.files():
        if name < own:
            leases.remove(name)
    ended, lost = threading.Event(), threading.Event()
    renewing = threading.Thread(target=_renew, args=(leases, own, token, ended, lost), daemon=True, name="raydr-lease")
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        # After an expired lease another process may hold the next one, or one of this number, whose file stays.
        newest, lease = _newest(leases)
        if is_lost := _is_other(newest, lease, own, token):
            lost.set()
        if not is_lost or newest > number + 1:
            leases.remove(own)
    if lost.is_set():
        raise BusyError(
            f"the lease of {folder} could not be renewed in time, and another process may be writing there: run the "
            "same command again to resume"
        )


def is_leased(folder: Folder) -> bool:
    """Return whether another process holds the lease."""
    lease = _newest(_leases_of(folder))[1]
    return lease is not None and lease.expires > time.time()


def _is_other(newest: int, lease: Lease | None, own: str, token: str) -> bool:
    return lease is None or (_name(newest), lease.token) != (own, token)


def _renew(leases: Folder, own: str, token: str, ended: threading.Event, lost: threading.Event) -> None:
    expires = time.time() + _LEASE_S
    while not ended.wait(_RENEW_S):
        lease = _lease(token)
        try:
            if _is_other(*_newest(leases), own, token):
                lost.set()
                return
            leases.write_json(own, lease.model_dump())
            expires = lease.expires
        except Exception:
            # The store may recover before the lease expires. Its clients' errors have no common class.
            if time.time() > expires:
                lost.set()
                return


def _newest(leases: Folder) -> tuple[int, Lease | None]:
    """Return the highest number and its lease; 0 and None without leases."""
    while names := leases.files():
        try:
            return int(names[-1].removesuffix(".json")), Lease.model_validate(leases.read_json(names[-1]))
        except FileNotFoundError:
            # A newer holder just removed the file.
            continue
    return 0, None


def _lease(token: str) -> Lease:
    holder = f"{socket.gethostname()}, pid {os.getpid()}"
    return Lease(holder=holder, expires=time.time() + _LEASE_S, token=token)


def _leases_of(folder: Folder) -> Folder:
    parent, _, name = folder.url.rstrip("/").rpartition("/")
    return Folder(f"{parent}/.{name}.lease")


def _name(number: int) -> str:
    return f"{number:09}.json"


@contextmanager
def only_writer(folder: Folder) -> Iterator[None]:
    """Exclude other writers of a folder: by a file lock, or a lease on an object store.

    Raises:
        BusyError: another process writes the folder.
        ArtifactError: the place is not writable.
    """
    if not folder.is_local:
        with hold_lease(folder):
            yield
        return
    lock = _lock_of(folder)
    with ExitStack() as stack:
        with writing(str(lock)):
            lock.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(lock, "a+"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise BusyError(
                f"another raydr process ({file.read().strip() or 'unknown'}) "
                f"is writing {folder}: wait for it, or stop it"
            ) from None
        with writing(str(lock)):
            file.truncate(0)
            file.write(f"pid {os.getpid()}")
            file.flush()
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


def is_being_written(folder: Folder) -> bool:
    """Return whether another process holds the lock or lease of a folder."""
    if not folder.is_local:
        return is_leased(folder)
    try:
        # A shared lock needs no right to write: anyone may look.
        with open(_lock_of(folder), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _lock_of(folder: Folder) -> Path:
    root = Path(folder.root)
    return root.with_name(f".{root.name}.lock")
