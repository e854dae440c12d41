"""Object stores say which file they hold: one that was written again is read, the others are not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import served_bucket

from raydr.errors import ArtifactError
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin, write_and_record
from raydr.store.folder import Folder
from raydr.store.identity import Identity


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with served_bucket() as served:
        yield served.url


@pytest.fixture(params=["s3", "memory"])
def artifact(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    store = request.getfixturevalue("bucket") if request.param == "s3" else "memory:/"
    with begin(f"{store}/{tmp_path.name}/made", Identity(kind="run")) as making:
        assert isinstance(making, Building)
        for name in ("a", "b"):
            part = write_and_record(making.folder, name, 1, lambda path: _write(path, "first"))
            making.done[name] = part
        return making.finish()


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)


def put(artifact: Artifact, name: str, text: str) -> None:
    with artifact.folder.publish(name) as path:
        _write(path, text)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read: list[str] = []
    checksum = Folder.checksum

    def counting(folder: Folder, name: str) -> str:
        read.append(name.partition(".tmp-")[0])
        return checksum(folder, name)

    monkeypatch.setattr(Folder, "checksum", counting)
    return read


def test_what_was_not_written_again_is_not_read(artifact: Artifact, reads: list[str]) -> None:
    assert artifact.doubtful(checksums=False) == []
    assert reads == []
    assert [Path(artifact.local("a")).read_text() for _ in range(2)] == ["first"] * 2
    assert reads == ["a"], "the copy, once"
    reads.clear()
    assert artifact.doubtful() == ["a", "b"]


def test_other_bytes_of_the_same_size_are_found(artifact: Artifact, reads: list[str]) -> None:
    put(artifact, "b", "First")
    assert artifact.doubtful(checksums=False) == ["b"]
    with pytest.raises(ArtifactError, match=r"/made/b differs from the checksum in the manifest: .* --again"):
        artifact.verify(["b"])
    with pytest.raises(ArtifactError, match=r"/made/b differs from the checksum"):
        artifact.local("b")
    artifact.local("a")
    assert reads == ["b", "b", "a"]


def test_a_file_that_was_copied_is_read_and_found_whole(artifact: Artifact, tmp_path: Path, reads: list[str]) -> None:
    """Neither a version that is not known nor another one says that the bytes differ."""
    there = Folder(f"memory://copies/{tmp_path.name}")
    for name in artifact.folder.files():
        with artifact.folder.open(name) as file, there.publish(name) as path:
            Path(path).write_bytes(file.read())
    copied = Artifact.open(there, "run")
    assert copied.doubtful(checksums=False) == ["a", "b"]
    copied.verify(["a", "b"])
    assert Path(copied.local("a")).read_text() == "first"
    assert sorted(reads) == ["a", "a", "b"]


def test_a_file_system_is_asked_for_no_versions(tmp_path: Path) -> None:
    with begin(str(tmp_path / "made"), Identity(kind="run")) as making:
        assert isinstance(making, Building)
        _write(making.folder.path("a"), "first")
        making.record_files()
        made = making.finish()
    assert made.manifest.versions == {}
    assert made.doubtful(checksums=False) == ["a"]
