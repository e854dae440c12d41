"""Files are compared with their checksums when they are opened, once for each content."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raydr.errors import ArtifactError
from raydr.store.artifact import Artifact, Building, begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity
from raydr.store.verified import verified, verified_folder


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
    reads, file = count_reads(monkeypatch), Path(artifact.folder.path("a"))
    assert [verified(artifact, "a") for _ in range(3)] == [str(file)] * 3
    assert reads == ["a"]
    os.utime(file, ns=(1, 1))
    verified(artifact, "a")
    assert reads == ["a", "a"]


def test_a_changed_byte_is_found(artifact: Artifact) -> None:
    file = Path(artifact.folder.path("a"))
    verified(artifact, "a")
    file.write_bytes(b"First")
    os.utime(file, ns=(2, 2))
    for _ in range(2):
        with pytest.raises(ArtifactError, match=r"/a does not have the checksum in the manifest: .* --again"):
            verified(artifact, "a")
    with pytest.raises(ArtifactError, match=r"/a does not have the checksum"):
        verified_folder(artifact)
    assert verified(artifact, "b").endswith("/b")


def test_all_files_of_a_folder_are_looked_at(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    assert verified_folder(artifact) == str(artifact.folder)
    assert sorted(reads) == ["a", "b"]
    Path(artifact.folder.path("b")).unlink()
    with pytest.raises(ArtifactError, match=r"/b is gone"):
        verified_folder(artifact)


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
    assert Path(verified(artifact, "a")).read_bytes() == b"first"
    assert Path(verified_folder(artifact), "a").read_bytes() == b"first"
