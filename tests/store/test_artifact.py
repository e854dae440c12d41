"""Manifests, fingerprints, resumption, locks."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from raydr.errors import ArtifactError, FingerprintError
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin, finished_parts, record_part, remove_remains
from raydr.store.folder import Folder, write_part
from raydr.store.identity import MANIFEST, Identity
from raydr.store.lock import is_being_written

IDENTITY = Identity(kind="run", config={"top_k": 10, "model": {"scale": 20}}, inputs={"index": "abc"})


def write(folder: Folder, name: str, text: str) -> None:
    record_part(folder, name, write_part(folder, name, 1, lambda path: Path(path).write_text(text)))


def make(folder: Folder, identity: Identity = IDENTITY, overwrite: bool = False) -> Artifact:
    with begin(folder, identity, overwrite) as making:
        if isinstance(making, Artifact):
            return making
        for name in ("a.txt", "b.txt"):
            if name not in making.done:
                write(making.folder, name, name)
        making.done.update(finished_parts(making.folder))
        return making.finish({"num": 2})


@pytest.fixture
def folder(tmp_path):
    return Folder(str(tmp_path / "run"))


def test_a_complete_artefact_is_reused(folder):
    made = make(folder)
    before = (Path(folder.root) / "a.txt").stat().st_mtime_ns
    again = make(folder)
    assert again.fingerprint == made.fingerprint
    assert (Path(folder.root) / "a.txt").stat().st_mtime_ns == before
    assert again.info == {"num": 2}
    assert sorted(folder.files()) == ["a.txt", "b.txt", MANIFEST]


def test_a_different_config_is_refused_with_the_fields_that_differ(folder):
    make(folder)
    other = Identity(kind="run", config={"top_k": 20, "model": {"scale": 20}}, inputs={"index": "xyz"})
    with pytest.raises(FingerprintError) as raised:
        make(folder, other)
    assert "config.top_k was 10, is 20" in str(raised.value)
    assert "inputs.index was 'abc', is 'xyz'" in str(raised.value)
    assert "scale" not in str(raised.value)
    assert make(folder, other, overwrite=True).fingerprint == other.fingerprint


@pytest.mark.invariant
def test_an_interrupted_artefact_keeps_its_finished_parts(folder):
    with pytest.raises(RuntimeError, match="power cut"), begin(folder, IDENTITY) as making:
        write(making.folder, "a.txt", "a.txt")
        raise RuntimeError("power cut")
    with pytest.raises(ArtifactError, match="not complete"):
        Artifact.open(folder, "run")
    with begin(folder, IDENTITY) as making:
        assert isinstance(making, Building)
        assert list(making.done) == ["a.txt"]
    resumed = make(folder)
    whole = make(Folder(f"{folder.root}-whole"))
    assert resumed.manifest.parts == whole.manifest.parts


def test_what_killed_processes_have_left_is_removed(folder):
    with pytest.raises(RuntimeError, match="power cut"), begin(folder, IDENTITY) as making:
        write(making.folder, "a.txt", "a.txt")
        raise RuntimeError("power cut")
    left = [Path(folder.root, "parts", "b.txt.tmp-01234567"), Path(f"{folder.root}.tmp-89abcdef", "a.txt")]
    other = Path(f"{folder.root}-other.tmp-89abcdef", "a.txt")
    for file in [*left, other]:
        file.parent.mkdir()
        file.write_text("half")
    make(folder)
    assert not any(file.exists() for file in left)
    assert not left[1].parent.exists()
    assert other.exists()


def test_a_damaged_part_is_made_again(folder):
    with begin(folder, IDENTITY) as making:
        write(making.folder, "a.txt", "a.txt")
    (Path(folder.root) / "a.txt").write_text("a.tXt")
    with begin(folder, IDENTITY) as making:
        assert isinstance(making, Building)
        assert making.done == {}


def test_an_unfinished_artefact_of_another_config_is_refused_once_it_has_parts(folder):
    other = Identity(kind="run", config={"top_k": 99})
    with begin(folder, IDENTITY):
        pass
    with begin(folder, other) as making:
        write(making.folder, "a.txt", "a.txt")
    with pytest.raises(FingerprintError, match="top_k was 99, is 10"):
        make(folder)


def test_checking_an_artefact_of_an_object_store_copies_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    made = make(Folder(f"memory://verified-{tmp_path.name}"))
    made.verify()
    assert not (tmp_path / "cache").exists()
    made.local("a.txt")
    assert (tmp_path / "cache").exists()


def test_changes_behind_the_manifest_are_found(folder):
    artifact = make(folder)
    artifact.verify()
    path = Path(folder.root) / "b.txt"
    path.write_text("B.txt")
    with pytest.raises(ArtifactError, match=r"b\.txt differs from the checksum"):
        artifact.verify()
    path.write_text("longer than before")
    with pytest.raises(ArtifactError, match="but its manifest has 5 bytes"):
        artifact.local("b.txt")
    path.unlink()
    with pytest.raises(ArtifactError, match="has gone"):
        artifact.local("b.txt")


def test_another_kind_or_a_newer_format_is_named(folder):
    make(folder)
    with pytest.raises(ArtifactError, match=r"expected a index .* found a run"):
        Artifact.open(folder, "index")
    folder.write_json(MANIFEST, {"identity": {"kind": "run", "shape": "round"}})
    with pytest.raises(ArtifactError, match="not a manifest that raydr .* can read"):
        Artifact.open(folder, "run")


def hold(path: str, ready: multiprocessing.synchronize.Event, done: multiprocessing.synchronize.Event) -> None:
    with begin(Folder(path), IDENTITY):
        ready.set()
        done.wait(PATIENCE_S)


def test_a_second_writer_is_refused(folder):
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=hold, args=(folder.url, ready, done))
    process.start()
    assert ready.wait(PATIENCE_S)
    with pytest.raises(ArtifactError, match=rf"pid {process.pid}.* is writing"):
        make(folder)
    done.set()
    process.join()
    make(folder)


def test_unwritable_places_are_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ArtifactError, match=r"cannot write .*file/\.run\.lock: .*Check free space and permissions"):
        make(Folder(str(tmp_path / "file" / "run")))


def test_a_place_without_the_right_to_write_is_named_and_may_be_looked_at(folder, monkeypatch):
    """A finished working folder on a read-only mount ended seven verbs in a traceback, and a mere list of gc."""
    make(folder)
    open_ = open

    def read_only(path: str | Path, mode: str = "r", **options: Any) -> Any:
        if set(mode) & set("wax+"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return open_(path, mode, **options)

    monkeypatch.setattr("builtins.open", read_only)
    assert not is_being_written(folder)
    with pytest.raises(ArtifactError, match=r"cannot write .*run\.lock: Read-only file system\. Check free space"):
        make(folder)


@pytest.mark.parametrize(("kind", "command"), [("model", "raydr train"), ("dataset", "raydr inject-noise")])
def test_what_is_missing_is_said_with_the_command_that_makes_it(kind: str, command: str, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=f"the {kind} at .*here does not exist: .*{command}"):
        Artifact.open(str(tmp_path / "here"), kind)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_with_files_of_others_is_left_alone(folder, overwrite):
    root = Path(folder.root)
    root.mkdir()
    for name, text in (("thesis.tex", "years"), (MANIFEST, '{"name": "an extension of a browser"}')):
        (root / name).write_text(text)
        with pytest.raises(ArtifactError, match=rf"did not write \({name}|is not a manifest that raydr .* can read"):
            make(folder, overwrite=overwrite)
        assert (root / name).read_text() == text
        (root / name).unlink()
    make(folder)
    (root / "notes.txt").write_text("mine")
    other = Identity(kind="run", config={"top_k": 20})
    with pytest.raises(ArtifactError, match=r"\(notes\.txt, \.\.\.\): choose another output"):
        make(folder, other, overwrite=True)
    assert sorted(folder.files()) == ["a.txt", "b.txt", MANIFEST, "notes.txt"]


def test_a_part_that_was_cut_off_on_an_object_store_is_made_again(tmp_path):
    """Its bytes are not read again there, but its size is looked at."""
    folder = Folder(f"memory://cut-{tmp_path.name}")
    with begin(folder, IDENTITY) as making:
        write(making.folder, "a.txt", "a.txt")
        write(making.folder, "b.txt", "b.txt")
    with folder.publish("a.txt") as path:
        Path(path).write_text("a.t")
    with begin(folder, IDENTITY) as making:
        assert isinstance(making, Building)
        assert list(making.done) == ["b.txt"]


def test_a_kill_before_the_manifest_costs_no_part(folder, monkeypatch):
    """What a resume needs goes only when the manifest is there."""

    def killed(self, name, value):
        raise RuntimeError("power cut")

    with begin(folder, IDENTITY) as making:
        for name in ("a.txt", "b.txt"):
            write(making.folder, name, name)
        making.done.update(finished_parts(making.folder))
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="power cut"):
            patched.setattr(Folder, "write_json", killed)
            making.finish()
    with begin(folder, IDENTITY) as making:
        assert isinstance(making, Building)
        assert sorted(making.done) == ["a.txt", "b.txt"]


@pytest.mark.parametrize("opens", ["begin", "session", "again"])
def test_a_kill_behind_the_manifest_leaves_nothing_in_the_artefact(folder, opens, monkeypatch):
    """Whoever begins the artefact next, or reads it in a session, removes what only a resume needs."""
    killed = iter([False, True, True])
    whole = Folder.remove

    def remove(self, name=""):
        # The first removal is half done; those behind it never come.
        if next(killed):
            raise RuntimeError("power cut")
        whole(self, name)
        write(self, ".done.tmp-01234567/a.txt.json", "{}")

    with begin(folder, IDENTITY) as making:
        write(making.folder, "a.txt", "a.txt")
        making.done.update(finished_parts(making.folder))
        write(making.folder / "scratch", "b.txt", "b.txt")
        making.scratch.append(making.folder / "scratch")
        with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="power cut"):
            patched.setattr(Folder, "remove", remove)
            making.finish()
    assert len(folder.files()) > 2
    if opens == "begin":
        with begin(folder, IDENTITY) as made:
            assert isinstance(made, Artifact)
    elif opens == "session":
        remove_remains(folder, IDENTITY.kind)
    else:
        with begin(folder, IDENTITY, overwrite=True) as making:
            assert isinstance(making, Building)
            assert folder.files() == ["plan.json"]
            write(making.folder, "a.txt", "a.txt")
            making.done.update(finished_parts(making.folder))
            making.finish()
    assert sorted(folder.files()) == ["a.txt", "manifest.json"]
    assert not folder.is_local or sorted(os.listdir(folder.root)) == ["a.txt", "manifest.json"]


def test_an_object_stores_parts_are_listed_once_and_read_side_by_side(monkeypatch, tmp_path):
    """100,000 parts, each asked for by itself and one after the other, took an hour."""
    folder = Folder(f"memory://many-{tmp_path.name}")
    names = [f"part-{at:03d}.txt" for at in range(40)]
    with begin(folder, IDENTITY) as making:
        for name in names:
            write(making.folder, name, name)
    filesystem, asked, together = type(folder.filesystem), [], threading.Barrier(4, timeout=PATIENCE_S)
    whole, read_one = filesystem.find, filesystem.cat_file

    def find(self, *arguments, **options):
        asked.append("list")
        return whole(self, *arguments, **options)

    def cat_file(self, path, *arguments, **options):
        # Four at a time, or none ever comes back.
        if "part-" in path:
            together.wait()
        return read_one(self, path, *arguments, **options)

    monkeypatch.setattr(filesystem, "find", find)
    monkeypatch.setattr(filesystem, "cat_file", cat_file)
    monkeypatch.setattr(filesystem, "info", lambda *ignored, **options: pytest.fail("a request for each part"))
    parts = finished_parts(folder)
    assert sorted(parts) == names
    assert asked == ["list"]


def test_sizes_of_an_object_store_are_compared_without_reading_it(monkeypatch, tmp_path):
    made = make(Folder(f"memory://sizes-{tmp_path.name}"))
    monkeypatch.setattr(Folder, "checksum", lambda *ignored: pytest.fail("read"))
    made.doubtful(checksums=False)
    with made.folder.publish("a.txt") as path:
        Path(path).write_text("cut")
    with pytest.raises(ArtifactError, match="has 3 bytes, but its manifest has 5 bytes"):
        made.doubtful(checksums=False)
    made.folder.remove("a.txt")
    with pytest.raises(ArtifactError, match="has gone"):
        made.doubtful(checksums=False)
