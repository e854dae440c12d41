"""Planning tries the real model, and the report sets what the run takes beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from ops.plan.made_rates import RATES
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.models.int8 import missing_for_int8
from raydr.ops.plan.estimate import StageEstimate
from raydr.ops.plan.measure import try_model
from raydr.ops.plan.probe import probe_encoding
from raydr.ops.plan.rates import EncodingRates, RunRates, TrainingRates


def test_a_run_is_planned_done_and_compared(
    ray_local: None, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, capsys: Any
) -> None:
    sections: dict[str, Any] = {
        "plan": {"sample_passages": 50, "probe_seconds": 0.1, "prices": {"cpu_hour": 0.1}},
        "train": {"num_epochs": 1},
        "variants": {
            "longer": {"num_epochs": 40},
            "taught": {"loss": "ranker_kl", "num_hard_negatives": 3},
        },
        "ranker": {"model": {"checkpoint": tiny_checkpoint, "max_length": 48}, "num_hard_negatives": 3},
        "rerank": {"depth": 7},
    }
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, **sections))
    plan = raydr.plan(config)
    planned = {stage.name: stage for stage in plan.stages}
    assert {"train-trained", "train-longer", "encode-untrained-passages", "index-trained", "search-longer-test"} <= (
        planned.keys()
    )
    assert all(stage.seconds > 0 for stage in plan.stages)
    assert [planned[f"train-{name}"].work for name in ("trained", "longer")] == [
        "40 queries x 1 epochs",
        "40 queries x 40 epochs",
    ]
    assert planned["ranker"].work == "40 lists of 4 x 1 epochs"
    assert planned["rerank-trained+ranker-test"].work.startswith("70 pairs of ")
    assert "bm25" in plan.missing
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
    assert (encoding.worker_bytes or 0) > 2**20
    page = (tmp_path / "report.html").read_text()
    assert "Plan and what it took" in page
    assert "not run" in page
    assert "cost" in capsys.readouterr().err


def times(workdir: Path) -> dict[str, str]:
    """The files of the times, by the stage's name."""
    return {file.name.rpartition("-")[0]: file.read_text() for file in (workdir / "times").iterdir()}


def test_refresh_rounds_are_planned_by_the_figures_of_another_device(
    ray_local: None,
    beir_folder: Path,
    tiny_checkpoint: str,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates: list[RunRates] = []

    def once(*what: Any) -> RunRates:
        rates.extend([] if rates else [try_model(*what)])
        return rates[0]

    monkeypatch.setattr("raydr.ops.plan.run.try_model", once)

    def plan(num_passages: int) -> dict[str, StageEstimate]:
        device = {"name": "an H100", "flops": 4e14}
        config = RunConfig.parse(
            small_run(
                beir_folder, tiny_checkpoint, tmp_path,
                plan={"sample_passages": 50, "device": device, "num_passages": num_passages},
                refresh={"num_rounds": 2, "evaluate_splits": ["dev"]},
            )
        )  # fmt: skip
        return {stage.name: stage for stage in raydr.plan(config, refresh=True).stages}

    found = plan(10**6)
    passages = "round-1/encode-round-1-passages"
    assert {"round-1/train", "round-2/train", passages, "round-2/search-round-2-dev", "round-2/index-round-2"} <= (
        found.keys()
    )
    larger = plan(10**9)[passages]
    assert larger.disk_bytes == 1000 * found[passages].disk_bytes
    assert larger.seconds > found[passages].seconds
    said = capsys.readouterr().err
    assert "an H100" in said
    assert "1,000,000,000 passages" in said
    assert "bm25" in said


def test_a_missing_training_split_is_told(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    data = {"reader": {"name": "beir", "path": str(beir_folder), "splits": ["dev", "test"]}}
    config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, data=data))
    with pytest.raises(ConfigError, match=r"has no split 'train'; it has dev, test"):
        raydr.plan(config)


def test_passages_in_int8_are_planned_by_a_rate_of_their_own(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(int8_tokens_per_second: float | None) -> dict[str, str]:
        encoding = replace(RATES.encoding, int8_tokens_per_second=int8_tokens_per_second)
        monkeypatch.setattr("raydr.ops.plan.run.try_model", lambda *given: replace(RATES, encoding=encoding))
        config = RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, ray={"capacity": {"CPU": 2}}))
        return {stage.name: stage.note for stage in raydr.plan(config).stages}

    before, after = plan(None), plan(3 * RATES.encoding.tokens_per_second)
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {f"encode-{model}-passages" for model in ("trained", "untrained")}


def test_what_cross_fitting_costs_is_planned(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[RunConfig] = []

    def of_a_larger_model_in_folds(config: RunConfig, *what: Any, ranker: bool = False) -> RunRates:
        tried.append(config)
        return RATES if len(tried) == 1 else replace(RATES, training=TrainingRates(5.0, 10**9))

    monkeypatch.setattr("raydr.ops.plan.run.try_model", of_a_larger_model_in_folds)
    larger = {"checkpoint": tiny_checkpoint, "passage": {"max_length": 64}}
    sections: dict[str, Any] = {
        # Stated, so that no Ray is asked.
        "ray": {"capacity": {"CPU": 2}},
        "train": {"num_epochs": 1},
        "judge": {"judges": [{"name": "npc", "margins": "cross_fitted"}], "model": "untrained"},
        "cross_fit": {"num_folds": 4, "num_epochs": 2, "model": larger},
    }
    plan = raydr.plan(RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path, **sections)))
    planned = {stage.name: stage for stage in plan.stages}
    folds = [planned[f"cross-fit-train-{fold}"] for fold in range(1, 5)]
    assert [one.work for one in folds] == ["30 queries x 2 epochs"] * 4
    assert all(one.seconds > 0 for one in folds)
    # Each by the rates of its own training: the folds draw no hard negatives, and may have another model.
    assert [planned[name].note[:4] for name in ("train-trained", "cross-fit-train-1")] == ["0.50", "5.00"]
    assert [one.model.passage.max_length for one in tried] == [32, 64]
    assert [one.train.num_hard_negatives for one in tried] == [1, 0]
    assert planned["cross-fit-margins-train"].work.startswith("80 passages")


@pytest.mark.skipif(missing_for_int8() is not None, reason=str(missing_for_int8()))
def test_int8_is_tried_beside_the_arithmetic_of_queries(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    def probe(dtype: str) -> EncodingRates:
        sections = {"plan": {"sample_passages": 20, "probe_seconds": 0.01}, "encode": {"dtype": dtype}}
        config = RunConfig.parse(small_run(Path("unused"), tiny_checkpoint, Path("unused"), **sections))
        return probe_encoding(config, Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1]), "float32", "cpu")

    plain, found = probe("float32"), probe("int8")
    assert plain.int8_tokens_per_second is None
    assert found.int8_tokens_per_second is not None
    assert min(found.int8_tokens_per_second, found.tokens_per_second) > 0
    # The model that is planned for is the one that was there.
    assert (found.num_learning, found.num_parameters) == (plain.num_learning, plain.num_parameters)
