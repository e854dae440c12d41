"""What a verb says of the machine before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.config.run import RunConfig
from raydr.tracking.tracker import DATABASE

IDLE = "1 GPU here, but no model runs on it: --set train.use_gpu=true --set encode.gpus_per_actor=1"


@pytest.mark.parametrize(
    ("gpus", "sections", "is_shown"),
    [(1.0, {}, True), (0.0, {}, False), (1.0, {"search": {"device": "cuda"}}, False)],
)
def test_a_gpu_that_nothing_uses_is_told_of(
    gpus: float,
    sections: dict[str, Any],
    is_shown: bool,
    beir_folder: Path,
    tiny_checkpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, negatives=None, **sections))
    train = config.train.model_copy(update={"num_hard_negatives": 0, "num_epochs": 1})
    config = config.model_copy(update={"train": train})
    monkeypatch.setattr("raydr.pipeline.session.cluster_capacity", lambda: {"CPU": 2.0, "GPU": gpus})
    raydr.prepare(config)
    assert IDLE not in _flat(capsys.readouterr().err)
    raydr.train(config)
    assert (IDLE in _flat(capsys.readouterr().err)) == is_shown


def test_no_more_workers_than_gpus_are_proposed(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    config = small_run(
        beir_folder, tiny_checkpoint, tmp_path, encode={"min_actors": 2, "max_actors": 2, "cpus_per_actor": 0.5}
    )
    config["train"] |= {"num_workers": 2, "num_epochs": 1}
    monkeypatch.setattr("raydr.pipeline.session.cluster_capacity", lambda: {"CPU": 2.0, "GPU": 1.0})
    raydr.train(RunConfig.parse(config), dry_run=True)
    assert IDLE not in _flat(capsys.readouterr().err)
    raydr.encode(RunConfig.parse(config), model="untrained")
    assert f"{IDLE} --set train.num_workers=1 --set encode.min_actors=1" in _flat(capsys.readouterr().err)


def test_a_session_removes_what_a_kill_left_in_what_it_reads(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, negatives=None))
    for _ in range(2):
        raydr.prepare(config)
        [folder] = {path.parent for path in tmp_path.glob("store/corpus/*/manifest.json")}
        left = folder / "plan.json", folder / ".done.tmp-01234567" / "a.json"
        assert not any(file.exists() for file in left)
        for file in left:
            file.parent.mkdir(exist_ok=True)
            file.write_text("{}")


def test_data_are_prepared_without_the_start_of_mlflow(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    """It takes three times as long as the work on some hundred pairs."""
    tracked = small_run(beir_folder, tiny_checkpoint, tmp_path, negatives=None) | {"tracking": {"enabled": True}}
    raydr.prepare(RunConfig.parse(tracked))
    assert (tmp_path / "names" / "dataset.json").is_file()
    assert not (tmp_path / DATABASE).exists()
    raydr.index(RunConfig.parse(tracked), model="untrained")
    assert (tmp_path / DATABASE).is_file()


def _flat(text: str) -> str:
    return " ".join(text.split())
