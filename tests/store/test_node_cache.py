"""The cache of what a node has fetched: bounded, least recently used out first, and never under a reader's hands."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raydr.errors import ArtifactError, ConfigError, DiskFullError
from raydr.store import node_cache
from raydr.store.folder import Folder
from raydr.store.node_cache import GRACE_S, cache_limit, empty_cache, fetched

#: When the entries of a test were used: hours ago.
LONG_AGO = time.time() - 10 * GRACE_S


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(root: Path, number: int, used: float, num_bytes: int = 100) -> Path:
    path = root / f"{number:032x}"
    path.mkdir(parents=True)
    (path / "part.arrow").write_bytes(bytes(num_bytes))
    os.utime(path, (used, used))
    return path


def names(root: Path) -> list[int]:
    return sorted(int(path.name, 16) for path in root.iterdir() if len(path.name) == 32)


def test_what_was_not_used_for_longest_goes_first_and_no_more_than_need_be(root: Path) -> None:
    for number, used in enumerate([3, 1, 2, 5, 4]):
        entry(root, number, LONG_AGO + used)
    empty_cache(root, 300, time.time())
    assert names(root) == [0, 3, 4]
    assert empty_cache(root, 300, time.time()) == []
    # Verified checksums and locks are no entries.
    (root / "verified").mkdir()
    empty_cache(root, 0, time.time())
    assert names(root) == []
    assert (root / "verified").is_dir()


def test_what_was_just_given_out_stays_whatever_the_limit(root: Path) -> None:
    """Its reader may not have opened it yet."""
    entry(root, 1, LONG_AGO)
    entry(root, 2, time.time() - GRACE_S / 2)
    empty_cache(root, 0, time.time())
    assert names(root) == [2]


def test_a_use_counts(root: Path) -> None:
    for number in (1, 2):
        entry(root, number, LONG_AGO + number)
    path = fetched(f"{1:032x}/part.arrow", lambda path: pytest.fail("it is there"))
    empty_cache(root, 100, time.time())
    assert names(root) == [1]
    assert Path(path).stat().st_size == 100


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_message_and_leaves_nothing(root: Path, number: int) -> None:
    def fill(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    message = rf"cannot fetch part\.arrow to {root}: {os.strerror(number)}\. Free space there, or set RAYDR_CACHE"
    with pytest.raises(DiskFullError, match=message):
        fetched(f"{1:032x}/part.arrow", fill)
    assert not list(root.rglob("part.arrow.tmp-*"))


def test_a_cache_of_another_user_is_named_with_the_remedy(root: Path) -> None:
    """The default folder belongs to the first user of a machine: the second one's command ended in a traceback."""
    root.write_text("no folder")
    with pytest.raises(ArtifactError, match=rf"cannot fetch to {root}: .*Set RAYDR_CACHE to a folder"):
        fetched(f"{1:032x}/part.arrow", lambda path: pytest.fail("there is no place for it"))


def test_another_fault_of_a_fetch_is_raised_as_it_is(root: Path) -> None:
    def deny(path: Path) -> None:
        raise PermissionError(errno.EACCES, "denied")

    with pytest.raises(PermissionError):
        fetched(f"{1:032x}/part.arrow", deny)


def test_fetching_keeps_the_cache_within_its_limit(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From an object store through :meth:`Folder.localize`, as workers do; an open file goes on being read."""
    monkeypatch.setenv("RAYDR_CACHE_GIB", str(2500 / 2**30))
    monkeypatch.setattr(node_cache, "GRACE_S", -1.0)
    monkeypatch.setattr(node_cache._Fetched, "since", float("inf"))
    away = Folder(f"memory://cached-{root.parent.name}")
    for number in range(6):
        with away.publish(f"{number}.bin") as path:
            Path(path).write_bytes(bytes([number]) * 1000)
    first = Path(away.localize("0.bin"))
    with open(first, "rb") as held:
        paths = [Path(away.localize(f"{number}.bin")) for number in range(1, 6)]
        assert not first.exists()
        assert held.read() == bytes(1000)
    kept = [path for path in paths if path.exists()]
    assert kept == paths[-2:]
    assert Path(away.localize("0.bin")).read_bytes() == bytes(1000)


def test_leftovers_of_killed_fetches_go(root: Path) -> None:
    old, new = root / "a.tmp-0", entry(root, 1, time.time()) / "part.arrow.tmp-1"
    for left in (old, new):
        left.write_text("half")
    os.utime(old, (LONG_AGO, LONG_AGO))
    empty_cache(root, 10**9, time.time())
    assert (old.exists(), new.exists()) == (False, True)


def test_what_another_process_has_fetched_or_removed_meanwhile_is_no_fault(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search on a cluster died of it: of a temporary file that was listed, and had its own name when looked at."""
    there = entry(root, 1, time.time())
    listed = {name: getattr(Path, name) for name in ("glob", "rglob")}

    def with_gone(name: str) -> Callable[[Path, str], list[Path]]:
        return lambda path, pattern: [*listed[name](path, pattern), path / "gone.tmp-1"]

    for name in listed:
        monkeypatch.setattr(Path, name, with_gone(name))
    assert empty_cache(root, 10, time.time()) == []
    assert there.exists()


@pytest.mark.parametrize("key", [f"{1:032x}", f"{1:032x}/part.arrow"])
def test_an_entry_that_goes_before_it_is_marked_is_fetched_again(
    key: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process empties the cache between the look at an entry and the mark of its use."""
    mark, fetches = node_cache._mark_used, []

    def fetch(path: Path) -> None:
        fetches.append(path)
        path.write_bytes(b"content")

    fetched(key, fetch)

    def goes(entry: Path) -> None:
        monkeypatch.setattr(node_cache, "_mark_used", mark)
        node_cache._remove(entry)
        mark(entry)

    monkeypatch.setattr(node_cache, "_mark_used", goes)
    assert Path(fetched(key, fetch)).read_bytes() == b"content"
    assert len(fetches) == 2


def test_a_folder_that_goes_while_a_file_is_fetched_into_it_is_made_again(root: Path) -> None:
    fetches: list[Path] = []

    def fetch(path: Path) -> None:
        fetches.append(path)
        if len(fetches) == 1:
            node_cache._remove(path.parent)
        path.write_bytes(b"content")

    assert Path(fetched(f"{1:032x}/part.arrow", fetch)).read_bytes() == b"content"
    assert len(fetches) == 2


def test_a_file_that_the_store_does_not_have_is_an_error(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fetched(f"{1:032x}/part.arrow", lambda path: path.with_name("absent").rename(path) and None)


def test_only_one_process_empties_it(root: Path) -> None:
    entry(root, 1, LONG_AGO)
    with open(root / "emptying.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert empty_cache(root, 0, time.time()) == []
    assert empty_cache(root, 0, time.time()) == [f"{1:032x}"]


@pytest.mark.parametrize("stated", ["much", "0", "-3", "inf"])
def test_a_limit_that_is_none_is_refused(stated: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDR_CACHE_GIB", stated)
    with pytest.raises(ConfigError, match="RAYDR_CACHE_GIB"):
        cache_limit(root.parent)


def test_an_empty_variable_is_not_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partial fetches are removed from the cache's folder: files of the user would be, too."""
    monkeypatch.delenv("RAYDR_CACHE", raising=False)
    default = node_cache.node_cache()
    monkeypatch.setenv("RAYDR_CACHE", "")
    assert node_cache.node_cache() == default
