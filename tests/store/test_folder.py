"""Folders: atomic publication on local and object-store-like filesystems."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from copied import copy_artifact
from latency import counted_rounds
from made_artefacts import make_corpus

from raydr.errors import ArtifactError
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder, publish_files, write_part


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


def test_a_listing_has_the_version_of_the_file_behind_a_link(tmp_path):
    folder, file = Folder(str(tmp_path / "place")), tmp_path / "file"
    folder.write_json("a.json", 1)
    (tmp_path / "place" / "link").symlink_to(file)
    assert sorted(folder.listing()) == ["a.json", "link"]
    file.write_text("2")
    os.utime(file, (99, 99))
    assert folder.listing()["link"] == folder.details("link")


def test_a_version_changes_with_content_of_the_same_size_and_time(tmp_path):
    """Archives with fixed dates, and copies that keep them, bring such files."""
    folder, file = Folder(str(tmp_path)), tmp_path / "labels.tsv"
    file.write_text("q\tp\t0")
    os.utime(file, (99, 99))
    before = folder.details("labels.tsv")
    # Clocks of file systems are coarse.
    time.sleep(0.05)
    file.write_text("q\tp\t1")
    os.utime(file, (99, 99))
    assert folder.details("labels.tsv") != before
    assert folder.listing()["labels.tsv"] == folder.details("labels.tsv")


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


def test_a_node_takes_what_was_made_again_at_the_same_place(folder, tmp_path, monkeypatch):
    """A model that is trained again has the same fingerprint and may have other weights."""
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    for value in (1, 2, 3):
        folder.write_json("parts/weights.json", {"w": value})
        assert json.loads((Path(folder.localize_all()) / "parts/weights.json").read_text()) == {"w": value}
        assert json.loads(Path(folder.localize("parts/weights.json")).read_text()) == {"w": value}


def test_processes_of_a_node_fetch_a_file_once(tmp_path, monkeypatch):
    folder = Folder(f"memory://once-{tmp_path.name}")
    folder.write_json("a.json", {"x": 1})
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    fetched: list[str] = []
    get = type(folder.filesystem).get_file

    def slow(self: Any, source: str, *arguments: Any, **options: Any) -> None:
        fetched.append(source)
        get(self, source, *arguments, **options)

    monkeypatch.setattr(type(folder.filesystem), "get_file", slow)
    barrier = threading.Barrier(4)

    def take(_: int) -> str:
        barrier.wait()
        return folder.localize("a.json")

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(take, range(4)))) == 1
    assert len(fetched) == 1


def test_a_part_of_an_object_store_is_asked_for_once(tmp_path, monkeypatch):
    """The manifest says what it holds: thousands of parts are read by every task."""
    made = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "t"}]).artifact
    away = Folder(f"memory://asked-{tmp_path.name}")
    copy_artifact(made, away)
    artifact = Artifact.open(away, "corpus")
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    [name] = artifact.parts("passages")
    with counted_rounds(monkeypatch) as store:
        assert artifact.local(name) == artifact.local(name)
    assert (store.rounds, store.files) == (1, {away.path(name)})


def test_listings_are_never_kept(folder):
    """Another process may have written since."""
    assert not folder.filesystem.dircache.use_listings_cache


def test_the_last_of_several_files_comes_when_the_others_are_there(folder):
    def save(place: Path) -> None:
        for name in ("a.txt", "m.txt", "z.txt"):
            (place / name).write_text(name)

    with pytest.MonkeyPatch.context() as patched:
        published: list[str] = []
        publish = Folder.publish
        patched.setattr(Folder, "publish", lambda self, name: published.append(name) or publish(self, name))
        publish_files(folder, save, last="m.txt")
    assert published == ["a.txt", "z.txt", "m.txt"]
    assert folder.files() == ["a.txt", "m.txt", "z.txt"]


def _write_too_much(library: str, folder: str) -> str:
    """Write more than a process may; returns what raydr says."""
    import resource
    import signal

    import faiss
    import numpy as np
    import torch
    from safetensors.torch import save_file

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
    zeros, index = torch.zeros(100_000), faiss.IndexFlatIP(1000)
    index.add(np.zeros((100, 1000), dtype=np.float32))
    save = {
        "safetensors": lambda path: save_file({"a": zeros}, path),
        "torch": lambda path: torch.save({"a": zeros}, path),
        "faiss": lambda path: faiss.write_index(index, path),
        "bytes": lambda path: Path(path).write_bytes(bytes(100_000)),
    }[library]
    messages = []
    for write in (
        lambda: write_part(Folder(folder), "part", 1, save),
        lambda: publish_files(Folder(folder), lambda scratch: save(str(scratch / "part"))),
    ):
        try:
            write()
        except ArtifactError as error:
            messages.append(str(error))
    return "\n".join(messages)


@pytest.mark.parametrize("library", ["safetensors", "torch", "faiss", "bytes"])
def test_a_full_disk_is_said_in_the_same_words_by_every_library(library: str, tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        lines = pool.submit(_write_too_much, library, str(tmp_path)).result().splitlines()
    assert [line.partition(": ")[0] for line in lines[:1]] == [f"cannot write {tmp_path}/part"]
    assert lines[1].startswith("cannot write temporary files (TMPDIR, ")
    assert all("Check free space and permissions" in line for line in lines)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_work_itself_stays_what_it_is(tmp_path: Path) -> None:
    def broken(path: str) -> None:
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes do not fit"):
        write_part(Folder(str(tmp_path)), "part", 1, broken)
