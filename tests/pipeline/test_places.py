"""Places under keys, and names that point to them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.things import make_all, thing
from raydr.artefacts.places import Places, Pointer
from raydr.errors import ArtifactError, FingerprintError
from raydr.store.folder import Folder


def test_a_name_points_to_the_newest_and_the_old_artefact_stays(tmp_path: Path) -> None:
    old, new = thing("a", text="old"), thing("a", x=1, text="new")
    for node in (old, new):
        inventory = make_all(tmp_path, node, names={"models/a": node})
    places = inventory.places
    assert places.names() == ["models/a"]
    assert places.open("models/a", "thing").fingerprint == new.key
    assert places.open("models/a", "thing").folder.root != inventory.folder(old).root
    assert inventory.open(old).fingerprint == old.key
    # What other programs open.
    assert (tmp_path / "models" / "a" / "part").read_text() == "new"
    assert os.path.islink(tmp_path / "models" / "a")


def test_a_working_folder_can_be_moved(tmp_path: Path) -> None:
    node = thing("a", text="x")
    make_all(tmp_path / "one", node, names={"a": node})
    os.rename(tmp_path / "one", tmp_path / "two")
    places = Places.of(str(tmp_path / "two"))
    assert places.open("a", "thing").fingerprint == node.key
    assert (tmp_path / "two" / "a" / "part").read_text() == "x"


def test_a_missing_name_says_what_there_is_and_what_to_do(tmp_path: Path) -> None:
    node = thing("a")
    places = make_all(tmp_path, node, names={"models/other": node}).places
    with pytest.raises(
        ArtifactError, match=r"no model called models/a in .*; there is other: raydr train CONFIG --name a makes it"
    ):
        places.open("models/a", "model")
    with pytest.raises(ArtifactError, match="expected a model"):
        places.open("models/other", "model")


def test_a_name_that_another_process_has_moved_since_the_plan_stays(tmp_path: Path) -> None:
    """Two trainings of one name at once: each would end well, and the name be that of the last."""
    places = Places(Folder(str(tmp_path)))
    places.point("models/a", "model", "a" * 32, {"models/a": None})
    places.point("models/a", "model", "a" * 32, {"models/a": None})
    with pytest.raises(FingerprintError, match="another raydr process has meanwhile let models/a .* pass --again"):
        places.point("models/a", "model", "b" * 32, {"models/a": None})
    assert places.pointer("models/a") == Pointer(kind="model", key="a" * 32)
    places.point("models/a", "model", "b" * 32, {"models/a": places.pointer("models/a")})
    places.point("models/a", "model", "c" * 32)
    assert places.pointer("models/a") == Pointer(kind="model", key="c" * 32)


def test_threads_and_processes_point_a_name_at_once(tmp_path: Path) -> None:
    places = Places(Folder(str(tmp_path)))

    def point(digit: str) -> None:
        for other in range(100):
            places.point("models/a", "model", f"{other % 10}{digit}" * 16)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(point, "abcd"))
    assert os.listdir(tmp_path / "models") == ["a"]


def test_a_forgotten_name_leaves_the_artefact(tmp_path: Path) -> None:
    node = thing("a")
    inventory = make_all(tmp_path, node, names={"a": node})
    inventory.places.forget("a")
    assert inventory.places.names() == []
    assert not (tmp_path / "a").exists()
    assert inventory.state(node) == "done"


def test_working_folders_of_before_are_refused_with_a_word(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match="was made by an earlier raydr.*set another workdir"):
        Places.of(str(tmp_path))


def test_names_work_without_links(tmp_path: Path) -> None:
    """Object stores have no links: names are files there and nothing else."""
    places = Places(Folder("memory://names-without-links"))
    places.point("models/a", "model", "0123456789abcdef0123")
    node = places.resolve("models/a")
    assert node is not None
    assert node.url.endswith("store/model/0123456789abcdef")
    assert places.names("models") == ["models/a"]
