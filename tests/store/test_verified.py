"""Files are compared with their checksums when they are opened, once for each content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydr.errors import ArtifactError
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    with begin(str(tmp_path / "made"), Identity(kind="run")) as making:
        assert isinstance(making, Building)
        (tmp_path / "made" / "a").write_bytes(b"first")
        (tmp_path / "made" / "b").write_bytes(b"second")
        making.record_files()
        return making.finish()


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    reads: list[str] = []
    checksum = Folder.checksum

    def counting(folder: Folder, name: str) -> str:
        reads.append(name)
        return checksum(folder, name)

    monkeypatch.setattr(Folder, "checksum", counting)
    return reads


def test_a_file_is_read_once_and_again_when_it_has_changed(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was just written was read for its checksum then."""
    reads, file = count_reads(monkeypatch), Path(artifact.folder.path("a"))
    assert [artifact.local("a") for _ in range(3)] == [str(file)] * 3
    assert reads == []
    os.utime(file, ns=(1, 1))
    assert [artifact.local("a") for _ in range(3)] == [str(file)] * 3
    assert reads == ["a"]
    # Another process remembers it too.
    monkeypatch.setattr("raydr.store.node_cache._seen", {})
    artifact.local("a")
    assert reads == ["a"]


def test_a_changed_byte_is_found(artifact: Artifact) -> None:
    file = Path(artifact.folder.path("a"))
    artifact.local("a")
    file.write_bytes(b"First")
    os.utime(file, ns=(2, 2))
    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"/a differs from the checksum in the manifest: .* --again"):
            artifact.local("a")
    with pytest.raises(ArtifactError, match=r"/a differs from the checksum"):
        artifact.local_folder()
    assert artifact.local("b").endswith("/b")


def test_all_files_of_a_folder_are_looked_at(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    for name in "ab":
        os.utime(artifact.folder.path(name), ns=(3, 3))
    assert artifact.local_folder() == str(artifact.folder)
    assert sorted(reads) == ["a", "b"]
    Path(artifact.folder.path("b")).unlink()
    with pytest.raises(ArtifactError, match=r"/b has gone"):
        artifact.local_folder()


def test_files_of_an_object_store_are_compared_where_they_were_fetched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    with begin("memory://verified/made", Identity(kind="run")) as making:
        assert isinstance(making, Building)
        with making.folder.publish("a") as path:
            Path(path).write_bytes(b"first")
        making.record_files()
        artifact = making.finish()
    assert Path(artifact.local("a")).read_bytes() == b"first"
    assert Path(artifact.local_folder(), "a").read_bytes() == b"first"
