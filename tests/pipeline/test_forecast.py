"""A verb says what it will take by the last forecast, and asks where that is much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import small_run
from typer.testing import CliRunner

import raydr
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.config.sections import Prices
from raydr.errors import ConfigError
from raydr.pipeline.forecast import FORECAST_FILE, Forecast, StageEstimate
from raydr.pipeline.running import StageTime
from raydr.pipeline.session import open_session
from raydr.verbs.app import app

GPU_HOUR, GIB = 3600.0, 2**30


@pytest.fixture
def raw(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> dict[str, Any]:
    return small_run(beir_folder, tiny_checkpoint, tmp_path / "w", train={"num_epochs": 1})


def test_money_is_hours_held_times_prices_and_hours_of_gpus_are_counted() -> None:
    train = StageEstimate(name="train", seconds=7200, cpus=4, gpus=2, worker_bytes=2**31, disk_bytes=2**30)
    index = StageEstimate(name="index", seconds=10, cpus=1, disk_bytes=2**20)
    plan = Forecast(stages=[train, index], num_passages=10, device="an H100", missing="prepare")
    assert Forecast.model_validate_json(plan.model_dump_json()) == plan
    assert (plan.gpu_hours(), plan.disk_bytes, plan.cost(Prices())) == (4, 2**30 + 2**20, 0)
    assert plan.cost(Prices(gpu_hour=3)) == 12
    assert plan.cost(Prices(gpu_hour=3, cpu_hour=0.5)) == 12 + 4 + 10 * 0.5 / 3600


def test_what_did_not_run_or_was_interrupted_has_no_ratio() -> None:
    """Arms of a refresh have stages of the same name."""
    stages = [StageEstimate(name="index", seconds=10, key=key) for key in "bacd"]
    taken = [StageTime(stage="index", seconds=5, key="a"), StageTime(stage="index", seconds=60, key="b")]
    taken.append(StageTime(stage="index", seconds=6, key="d", num_parts_before=3))
    assert Forecast(stages=stages, num_passages=10, device="").beside(taken)[1] == [
        ["index", "10.0 s", "1 min 00 s", "6.00"],
        ["index", "10.0 s", "5.0 s", "0.50"],
        ["index", "10.0 s", "not run", ""],
        ["index", "10.0 s", "6.0 s, resumed", ""],
    ]


def forecast(raw: dict[str, Any], scaled: bool = False) -> RunConfig:
    """A config with a forecast of 150 GPU-hours for its training, and of a TiB for something else."""
    config = RunConfig.parse(raw)
    with open_session(config) as session:
        key = session.recipe.model().key
    stages = [
        StageEstimate(name="train-trained", seconds=50 * GPU_HOUR, gpus=3, disk_bytes=2 * GIB, key=key),
        StageEstimate(name="encode-trained-passages", seconds=10, gpus=3, disk_bytes=2048 * GIB, key="another"),
    ]
    root = Places.of(config.workdir).root
    plan = Forecast(stages=stages, num_passages=60, device="an H100", scaled=scaled)
    root.write_json(FORECAST_FILE, plan.model_dump())
    return config


def test_a_verb_says_what_the_forecast_of_its_nodes_is(raw: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    raydr.train(forecast(raw), dry_run=True)
    output = capsys.readouterr().err
    assert "forecast of 1 of them" in output
    assert "50 h 00 min one after the other, 150.0 GPU-hours, 2.0 GiB written" in output


def test_what_takes_more_than_was_agreed_to_is_not_begun(raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"150.0 GPU-hours.*above plan.confirm_above.gpu_hours 100: pass --yes"):
        raydr.train(forecast(raw))
    with pytest.raises(ConfigError, match=r"above plan.confirm_above.disk_gib 1: pass --yes"):
        raydr.train(forecast(raw | {"plan": {"confirm_above": {"gpu_hours": None, "disk_gib": 1}}}))
    assert not (Path(raw["workdir"]) / "store").exists()


def test_yes_makes_it(raw: dict[str, Any], tmp_path: Path) -> None:
    forecast(raw)
    written = tmp_path / "config.yaml"
    written.write_text(yaml.safe_dump(raw))
    refused = CliRunner().invoke(app, ["train", str(written)])
    assert refused.exit_code != 0
    done = CliRunner().invoke(app, ["train", str(written), "--yes"])
    assert done.exit_code == 0, done.output
    assert Places.of(raw["workdir"]).open("models/trained", "model")


def test_the_forecast_for_another_corpus_says_nothing(raw: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    raydr.prepare(forecast(raw, scaled=True))
    raydr.train(RunConfig.parse(raw), dry_run=True)
    assert "forecast of" not in capsys.readouterr().err
