"""Planning tries the real model, says a line a stage, and the report sets what the run takes beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from ops.plan.made_rates import MadeRates
from raydr.config.run import RunConfig
from raydr.config.sections import Prices
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.models.int8 import missing_for_int8
from raydr.ops.plan.run import show
from raydr.ops.plan.trials import Trials
from raydr.pipeline.forecast import Forecast, StageEstimate


def test_a_run_is_planned_done_and_compared(
    ray_local: None, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    sections: dict[str, Any] = {
        "plan": {"sample_passages": 50, "probe_seconds": 0.1, "prices": {"cpu_hour": 0.1}},
        "train": {"num_epochs": 1},
        "variants": {"longer": {"num_epochs": 40}},
        "ranker": {"model": {"checkpoint": tiny_checkpoint, "max_length": 48}, "num_hard_negatives": 3},
        "rerank": {"depth": 7},
    }
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, **sections))
    plan = raydr.plan(config)
    planned = {stage.name: stage for stage in plan.stages}
    assert {"encode-untrained-passages", "index-trained", "search-longer-test", "ranker"} <= planned.keys()
    assert all(stage.seconds > 0 for stage in plan.stages)
    steps = [planned[f"train-{name}"].seconds for name in ("trained", "longer")]
    assert steps[1] > steps[0]
    assert planned["rerank-trained+ranker-test"].disk_bytes == 20 * 7 * 10
    assert planned["bm25"].worker_bytes > 2**28
    assert "search-bm25-test" in plan.missing
    shown = capsys.readouterr().err
    lines = shown[shown.index("plan for") :].splitlines()
    assert max(map(len, lines[: 2 + len(plan.stages)])) <= 80
    assert [line.split()[0] for line in lines[2 : 2 + len(plan.stages)]] == list(planned)
    assert "USD" in lines[1]
    assert f"{plan.cost(config.plan.prices):,.2f} USD" in shown
    # Variants of one shape are tried together.
    assert shown.count("training steps of 8 queries") == 1
    [vectors] = raydr.encode(config)
    took = times(tmp_path)
    assert {"train-trained", "encode-trained-passages", "mine-bm25-train"} <= took.keys()
    # What had nothing to do took no time that would count.
    raydr.encode(config)
    assert times(tmp_path) == took
    raydr.report(config)
    written = sum(Path(vectors.local(part)).stat().st_size for part in vectors.parts())
    encoding = planned["encode-trained-passages"]
    assert encoding.key == vectors.fingerprint
    assert encoding.disk_bytes == pytest.approx(written, rel=0.9)
    assert encoding.worker_bytes > 2**20
    page = (tmp_path / "report.html").read_text()
    assert "Plan, and the time taken" in page
    assert "not run" in page
    [index] = (tmp_path / "store/bm25").glob("*/shard-000")
    assert planned["bm25"].disk_bytes == pytest.approx(sum(part.stat().st_size for part in index.iterdir()), rel=0.9)


def times(workdir: Path) -> dict[str, str]:
    """The files of the times, by the stage's name."""
    return {file.name.rpartition("-")[0]: file.read_text() for file in (workdir / "times").iterdir()}


def test_refresh_rounds_are_planned_for_a_larger_corpus(
    ray_local: None, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    def plan(num_passages: int) -> dict[str, StageEstimate]:
        config = RunConfig.parse(
            small_run(
                beir_folder, tiny_checkpoint, tmp_path,
                plan={"sample_passages": 50, "probe_seconds": 0.1, "num_passages": num_passages},
                refresh={"num_rounds": 2, "evaluate_splits": ["dev"]},
            )
        )  # fmt: skip
        forecast = raydr.plan(config, refresh=True)
        assert (forecast.num_passages, forecast.scaled) == (num_passages, True)
        return {stage.name: stage for stage in forecast.stages}

    smaller, passages = plan(10**6), "round-1/encode-round-1-passages"
    assert {"round-1/train", "round-2/train", passages, "round-2/search-round-2-dev", "round-2/index-round-2"} <= (
        smaller.keys()
    )
    larger = plan(10**9)
    assert larger[passages].disk_bytes == 1000 * smaller[passages].disk_bytes
    assert larger[passages].seconds > smaller[passages].seconds


def test_no_line_of_the_table_is_longer_than_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    name = "round-12/search-" + "a-long-name-of-a-system-" * 5 + "test"
    stage = StageEstimate(
        name=name, seconds=400_000, cpus=1024, gpus=128, worker_bytes=2**36, disk_bytes=2**45, note="IVF262144,SQfp16"
    )
    run = {"data": {"reader": {"name": "beir", "path": "x"}}, "plan": {"prices": {"cpu_hour": 5, "gpu_hour": 40}}}
    missing = ", ".join(f"mine-system-{at}-train" for at in range(30))
    plan = Forecast(stages=[stage] * 3, num_passages=21_015_324, device="NVIDIA H100 80GB HBM3", missing=missing)
    show(plan, RunConfig.parse(run))
    shown = capsys.readouterr().err
    assert max(map(len, shown.partition("sum:")[0].splitlines())) <= 80
    cost = stage.cost(Prices(cpu_hour=5, gpu_hour=40))
    for figure in ("111 h 06 min", "1024", "128", "64.00", "32,768.00", f"{cost:,.2f}"):
        assert shown.count(f" {figure}") >= 3, figure


def test_a_missing_training_split_is_told(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    data = {"reader": {"name": "beir", "path": str(beir_folder), "splits": ["dev", "test"]}}
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, data=data))
    with pytest.raises(ConfigError, match=r"has no split 'train'; it has dev, test"):
        raydr.plan(config)


def test_folds_are_planned_by_their_own_model_and_batches(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = MadeRates()
    monkeypatch.setattr("raydr.ops.plan.run.Trials", lambda *arguments: rates)
    sections: dict[str, Any] = {
        # Stated, so that no Ray is asked.
        "ray": {"capacity": {"CPU": 2}},
        "train": {"num_epochs": 1},
        "judge": {"judges": [{"name": "npc", "margins": "cross_fitted"}], "model": "untrained"},
        "cross_fit": {
            "num_folds": 4,
            "num_epochs": 2,
            "model": {"checkpoint": tiny_checkpoint, "passage": {"max_length": 64}},
        },
    }
    plan = raydr.plan(RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, **sections)))
    folds = [stage for stage in plan.stages if stage.name.startswith("cross-fit-train-")]
    assert len(folds) == 4
    assert "margins-train" in {stage.name for stage in plan.stages}
    tried = {(model.passage.max_length, train.num_hard_negatives, train.num_epochs) for model, train in rates.asked}
    assert tried == {(32, 1, 1), (64, 0, 2)}


@pytest.mark.ray
@pytest.mark.skipif(missing_for_int8() is not None, reason=str(missing_for_int8()))
def test_passages_are_tried_in_int8(ray_local: None, tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    def tried(dtype: str) -> Any:
        sections = {"plan": {"sample_passages": 20, "probe_seconds": 0.01}, "encode": {"dtype": dtype}}
        config = RunConfig.parse(small_run(Path("unused"), tiny_checkpoint, Path("unused"), **sections))
        return Trials(config, Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])).retriever(config.model)

    plain, quantised = tried("float32"), tried("int8")
    assert quantised.texts["passage"].encode != plain.texts["passage"].encode
    # The model that is planned for is the one that was there.
    assert (quantised.num_learning, quantised.num_parameters) == (plain.num_learning, plain.num_parameters)
