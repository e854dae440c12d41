"""What a stage reads is looked at before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raydr.config.run import RunConfig
from raydr.errors import ArtifactError, DataError
from raydr.ops.preflight import STAGES, check_inputs
from raydr.store.folder import Folder


def config(workdir: Path, **sections: Any) -> RunConfig:
    reader = {"name": "dpr", "path": "/nowhere", "passages": "p.tsv", "biencoder": {"train": "t.json"}}
    return RunConfig.parse({"workdir": str(workdir), "data": {"reader": reader}, **sections})


def problems(run: RunConfig, stage: Any) -> dict[str, str]:
    return {need.what: need.problem for need in check_inputs(run, stage)}


def test_every_missing_file_is_named(tmp_path: Path) -> None:
    found = problems(config(tmp_path), "prepare")
    assert found == {
        "passages": "/nowhere/p.tsv is missing, also as .gz",
        "questions and contexts of split train": "/nowhere/t.json is missing, also as .gz",
    }


def test_readers_still_stop_at_a_missing_file(tmp_path: Path) -> None:
    check_inputs(config(tmp_path), "prepare")
    with pytest.raises(DataError, match=r"there is no file /nowhere/p\.tsv"):
        config(tmp_path).data.reader.sources()


def test_good_data_are_found_good(tmp_path: Path, beir_folder: Path) -> None:
    run = config(tmp_path, data={"reader": {"name": "beir", "path": str(beir_folder)}})
    assert set(problems(run, "prepare").values()) == {""}


def test_the_first_rows_are_read(tmp_path: Path) -> None:
    (tmp_path / "p.tsv").write_text("id\ttext\ttitle\n" + "no columns\n" * 100_000)
    (tmp_path / "t.json").write_text("[]")
    reader = {"name": "dpr", "path": str(tmp_path), "passages": "p.tsv", "biencoder": {"train": "t.json"}}
    found = problems(config(tmp_path, data={"reader": reader}), "prepare")
    assert "p.tsv:2: expected 3 columns" in found["passages"]
    assert "its first 21 rows are bad" in found["passages"]
    assert "has no rows" in found["questions and contexts of split train"]


def test_artefacts_are_named_with_the_job_that_makes_them(tmp_path: Path) -> None:
    run = config(tmp_path, negatives={"miner": "bm25"}, train={"num_hard_negatives": 2})
    found = problems(run, "train")
    assert set(found) == {"data set", "corpus", "candidates by bm25", "checkpoint"}
    assert "does not exist" in found["data set"]
    assert "jobs/prepare.py makes it" in found["data set"]
    assert found["checkpoint"] == ""
    assert "jobs/encode.py makes it" in problems(run, "index")["passage vectors"]
    assert "jobs/index.py makes it" in problems(run, "evaluate")["index"]


def test_artefacts_that_are_there_are_found(tmp_path: Path, tiny_data: tuple[str, str]) -> None:
    for source, name in zip(tiny_data, ("corpus", "dataset"), strict=True):
        (tmp_path / name).symlink_to(source)
    run = config(tmp_path)
    assert set(problems(run, "train").values()) == {""}
    # What is prepared is not read again.
    assert set(problems(run, "refresh")) == {"checkpoint"}


def test_every_stage_can_be_looked_at(tmp_path: Path) -> None:
    for stage in STAGES:
        assert check_inputs(config(tmp_path), stage)


def test_a_missing_file_system_is_told() -> None:
    with pytest.raises(ArtifactError, match=r"raydr\[s3\]"):
        Folder("s3://bucket/x").exists()
    with pytest.raises(ArtifactError, match="Give a local path"):
        Folder("nonsense://x").exists()
