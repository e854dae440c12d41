"""Folders: atomic publication on local and object-store-like filesystems."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from raydr.errors import ArtifactError
from raydr.storage import Folder


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    place = Folder(str(tmp_path / "place") if request.param == "local" else f"memory://place-{tmp_path.name}")
    yield place
    place.remove()


def test_what_is_published_can_be_read(folder):
    with folder.publish("deep/a.txt") as path:
        Path(path).write_text("hello")
    assert folder.open("deep/a.txt").read() == b"hello"
    assert folder.files() == ["deep/a.txt"]
    assert folder.size("deep/a.txt") == 5
    assert Path(folder.localize("deep/a.txt")).read_text() == "hello"


def test_a_failed_write_leaves_nothing(folder):
    with pytest.raises(RuntimeError), folder.publish("a.txt") as path:
        Path(path).write_text("half")
        raise RuntimeError
    assert folder.files() == []
    if folder.is_local:
        assert list(Path(folder.root).iterdir()) == []


def test_a_full_disk_is_explained_and_keeps_the_old_file(folder):
    folder.write_json("a.json", {"version": 1})
    message = r"cannot write .*a\.json: No space left on device\. Check free space"
    with pytest.raises(ArtifactError, match=message), folder.publish("a.json") as path:
        Path(path).write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert folder.read_json("a.json") == {"version": 1}


def test_json_refuses_values_that_json_has_not(folder):
    with pytest.raises(ValueError, match="Out of range float"):
        folder.write_json("a.json", {"loss": float("nan")})


def test_checksums_follow_content(folder):
    folder.write_json("a.json", {"x": 1})
    folder.write_json("b.json", {"x": 1})
    folder.write_json("c.json", {"x": 2})
    assert folder.checksum("a.json") == folder.checksum("b.json") != folder.checksum("c.json")


def test_a_folder_is_removed_in_one_move(tmp_path, monkeypatch):
    """A process that is killed in the middle leaves all of it or nothing at its place."""
    folder = Folder(str(tmp_path / "made"))
    folder.write_json("manifest.json", {})
    folder.write_json("parts/one.json", {})

    def killed(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(folder.filesystem), "rm", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.remove()
    assert not folder.exists()
    assert not Folder(str(tmp_path)).files()
