"""What a run reads is looked at before it begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.errors import ArtifactError, DataError
from raydr.ops.doctor.services import check_inputs
from raydr.store.folder import Folder


def config(workdir: Path, **sections: Any) -> RunConfig:
    reader = {"name": "dpr", "path": "/nowhere", "passages": "p.tsv", "biencoder": {"train": "t.json"}}
    return RunConfig.parse({"workdir": str(workdir), "data": {"reader": reader}, **sections})


def problems(run: RunConfig) -> dict[str, str]:
    return {need.check: need.observation if need.state == "broken" else "" for need in check_inputs(run)}


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    assert problems(config(tmp_path)) == {
        "passages": "/nowhere/p.tsv is missing, also as .gz",
        "questions and contexts of split train": "/nowhere/t.json is missing, also as .gz",
        "checkpoint": "",
    }


def test_readers_still_stop_at_a_missing_file(tmp_path: Path) -> None:
    check_inputs(config(tmp_path))
    with pytest.raises(DataError, match=r"there is no file /nowhere/p\.tsv"):
        config(tmp_path).data.reader.sources()


def test_good_data_are_found_good(tmp_path: Path, beir_folder: Path) -> None:
    run = config(tmp_path, data={"reader": {"name": "beir", "path": str(beir_folder)}})
    assert set(problems(run).values()) == {""}


def test_the_first_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text("id\ttext\ttitle\n" + "no columns\n" * 100_000)
    (tmp_path / "t.json").write_text("[]")
    reader = {"name": "dpr", "path": str(tmp_path), "passages": "p.tsv", "biencoder": {"train": "t.json"}}
    reasons = problems(config(tmp_path, data={"reader": reader}))
    assert "p.tsv:2: expected 3 columns" in reasons["passages"]
    assert "its first 21 rows are bad" in reasons["passages"]
    assert "has no rows" in reasons["questions and contexts of split train"]


def test_a_missing_checkpoint_is_told(tmp_path: Path, tiny_checkpoint: str) -> None:
    two = {"towers": "two", "checkpoint": tiny_checkpoint, "passage_checkpoint": f"{tmp_path}/none"}
    reasons = problems(config(tmp_path, model=two))
    assert reasons["checkpoint"] == ""
    assert f"{tmp_path}/none does not exist" in reasons["passage checkpoint"]
    named = {need.check: need.observation for need in check_inputs(config(tmp_path, model={"checkpoint": "org/bert"}))}
    assert named["checkpoint"] == "org/bert (a name on the hub, not checked)"


def test_what_was_prepared_is_not_read_again(tmp_path: Path) -> None:
    places = Places(Folder(str(tmp_path)))
    for name in ("corpus", "dataset"):
        places.point(name, name, "0" * 32)
    assert problems(config(tmp_path)) == {"checkpoint": ""}


def test_a_missing_file_system_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    # As where the package is not installed.
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ArtifactError, match=r"pip install gcsfs"):
        Folder("gs://bucket/x").exists()
    with pytest.raises(ArtifactError, match="Give a local path"):
        Folder("nonsense://x").exists()
