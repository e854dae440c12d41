"""``raydr doctor``: what is wrong is found, what to do is said, and no secret is shown."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from artefacts import make_corpus
from patience import PATIENCE_S
from typer.testing import CliRunner

import raydr
from raydr.config.run import RunConfig
from raydr.graph.forecast import FORECAST_FILE, Forecast, StageEstimate
from raydr.graph.places import Places
from raydr.ops.doctor import machine, services, software, space
from raydr.ops.doctor.finding import Finding, any_broken
from raydr.ops.doctor.machine import Gpu
from raydr.runtime.cluster import RayConfig
from raydr.verbs import app

A10G = Gpu("NVIDIA A10G", "580.95.05", 22.5)


def config(tmp_path: Path, **sections: Any) -> RunConfig:
    raw = {
        "workdir": str(tmp_path / "work"),
        "data": {"reader": {"name": "beir", "path": "/nowhere", "splits": ["dev"]}},
    }
    return RunConfig.parse(raw | sections)


def test_the_installed_packages_fit() -> None:
    findings = software.check_packages()
    assert [finding.state for finding in findings] == ["ok"] * len(software.MAIN)
    assert {finding.check: finding.found for finding in findings}["ray"] == version("ray")


def test_a_wrong_and_a_missing_package_are_named_with_the_command() -> None:
    def find(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return {"ray": "2.9.3", "numpy": "2.4.6+local"}[name]

    needed = ["ray[default]>=2.60,<2.61", "torch>=2.13", "numpy>=2.4", "ruff>=1; extra == 'dev'"]
    findings = software.check_packages(needed, find)
    assert [(finding.check, finding.state) for finding in findings] == [("ray", "broken"), ("torch", "broken")]
    assert findings[0].found == "2.9.3, raydr needs <2.61,>=2.60"
    assert findings[1].advice == "pip install --constraint constraints.txt 'torch>=2.13'"


def test_an_old_python_is_broken() -> None:
    assert software.check_python((3, 10, 14)).state == "broken"
    assert software.check_python().state == "ok"


@pytest.mark.parametrize(
    ("installed", "gpus", "state", "said"),
    [
        ({}, 0, "broken", "pip install faiss-cpu"),
        ({"faiss-cpu": "1", "faiss-gpu": "2"}, 1, "broken", "pip uninstall -y faiss-cpu faiss-gpu"),
        ({"faiss-gpu": "1"}, 0, "warning", "faiss-cpu is enough"),
        ({"faiss-gpu": "1"}, 1, "ok", ""),
        ({"faiss-cpu": "1"}, 1, "ok", ""),
    ],
)
def test_faiss_flavours(installed: dict[str, str], gpus: int, state: str, said: str) -> None:
    finding = software.check_faiss(installed, gpus)
    assert finding.state == state
    assert said in finding.advice


@pytest.mark.parametrize(
    ("gpus", "sees", "cuda", "wanted", "state", "said"),
    [
        ([], 0, None, False, "ok", ""),
        ([], 0, None, True, "broken", "train.use_gpu: false"),
        ([A10G], 1, "13.0", True, "ok", ""),
        ([A10G], 0, None, True, "broken", "pip install torch"),
        ([Gpu("NVIDIA T4", "550.54", 15)], 0, "13.0", True, "broken", "driver 580 or newer"),
        ([A10G, A10G], 1, "13.0", True, "warning", "CUDA_VISIBLE_DEVICES"),
        ([Gpu("NVIDIA GB10", "580.95", None)], 0, "13.0", True, "broken", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus(gpus: list[Gpu], sees: int, cuda: str | None, wanted: bool, state: str, said: str) -> None:
    finding = machine.check_gpus(gpus, sees, cuda, wanted)
    assert finding.state == state
    assert said in finding.advice


def test_little_shared_memory_and_disk_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finding = machine.check_shared_memory(1e6, str(tmp_path))
    assert finding.state == "warning"
    assert "--shm-size" in finding.advice
    assert machine.check_shared_memory(1e-6, str(tmp_path)).state == "ok"
    assert machine.check_shared_memory(1e6, str(tmp_path / "none")).state == "ok"
    monkeypatch.setattr(machine, "LITTLE_DISK_GIB", 1e9)
    finding = machine.check_disk("disk", str(tmp_path / "not" / "there" / "yet"))
    assert (finding.state, f"at {tmp_path}" in finding.found) == ("warning", True)


def test_vectors_and_plans_that_do_not_fit_are_told(tmp_path: Path) -> None:
    def found(**sections: Any) -> list[Finding]:
        raw = {"workdir": str(tmp_path), "data": {"reader": {"name": "beir", "path": "unused"}}}
        return space.check_space(RunConfig.parse(raw | sections))

    tokens = {"model": {"score": "sum_of_max"}}
    assert found() == found(**tokens) == []
    assert found(plan={"num_passages": 10**12}) == []
    [one] = found(plan={"num_passages": 10}, **tokens)
    assert (one.state, "10 passages of 1 to 160 vectors of 128 dimensions" in one.found) == ("ok", True)
    free = shutil.disk_usage(tmp_path).free
    [one] = found(plan={"num_passages": free // (128 * 4 * 10)}, **tokens)
    assert (one.state, "`raydr plan` tells from the texts" in one.advice) == ("warning", True)
    # With a vector each they would not fit; nor as many as the words of passages that are there.
    [one] = found(plan={"num_passages": 10**12}, **tokens)
    assert one.state == "broken"
    make_corpus(tmp_path / "store" / "corpus" / "key", [{"passage_id": "p", "title": "", "text": "word " * 12}])
    Places.of(str(tmp_path)).point("corpus", "corpus", "key")
    [one] = found(plan={"num_passages": free // (128 * 4 * 10)}, **tokens)
    assert (one.state, "of 12 to 160 vectors" in one.found) == ("broken", True)
    [one] = found(plan={"num_passages": free // (128 * 4 * 10)}, encode={"token_pooling": 2}, **tokens)
    assert (one.state, "of 6 to 80 vectors" in one.found) == ("warning", True)
    [one] = found(plan={"num_passages": 10**12}, model={"score": "multi", "projection": 64})
    assert one.state == "broken"
    stage = StageEstimate("encode", "", 1, 1, 0, None, disk_bytes=10**16)
    (tmp_path / FORECAST_FILE).write_text(json.dumps(Forecast((stage,), 500, "cpu", "").as_json()))
    [one] = found(**tokens)
    assert (one.state, "planned for 500 passages: 9,313,225.7 GiB" in one.found) == ("broken", True)


def test_credentials_are_named_and_not_shown() -> None:
    finding = machine.check_credentials({"HF_TOKEN": "hush", "AWS_PROFILE": "", "OTHER": "x"})
    assert finding.found == "set: HF_TOKEN (values not shown)"


def test_storage_is_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert services.check_storage(str(tmp_path / "new")).state == "ok"
    assert list((tmp_path / "new").iterdir()) == []
    assert services.check_storage("memory://bucket/doctor").state == "ok"
    (tmp_path / "file").touch()
    finding = services.check_storage(str(tmp_path / "file" / "below"))
    assert finding.state == "broken"
    # As where the package is not installed.
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert "pip install gcsfs for gs://" in services.check_storage("gs://bucket/x").found


def test_mlflow_is_asked(tmp_path: Path) -> None:
    assert services.check_mlflow(config(tmp_path, tracking={"enabled": False})).state == "ok"
    assert "made at its first use" in services.check_mlflow(config(tmp_path)).found
    away = services.check_mlflow(config(tmp_path, tracking={"uri": "http://127.0.0.1:9"}))
    assert away.state == "broken"
    assert "--allowed-hosts" in away.advice
    assert services.check_mlflow(config(tmp_path, workdir="memory://x")).state == "broken"


def test_missing_data_are_a_warning(tmp_path: Path, beir_folder: Path) -> None:
    assert services.check_data(config(tmp_path)).state == "warning"
    there = {"reader": {"name": "beir", "path": str(beir_folder)}}
    assert services.check_data(config(tmp_path, data=there)).state == "ok"


def test_a_cluster_that_is_not_there_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    # The Ray that other tests share may be there already, and would be taken.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    [finding] = services.check_ray(RayConfig(address="127.0.0.1:9"))
    assert finding.state == "broken"
    assert "nothing answers at 127.0.0.1:9" in finding.found


@pytest.mark.ray
def test_a_ray_that_is_there_is_looked_at(ray_local: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "TASK_TIMEOUT_S", PATIENCE_S)
    [finding] = services.check_ray(RayConfig(), str(tmp_path))
    assert finding.state == "ok"
    assert "1 node, 2 CPUs, 0 GPUs" in finding.found
    assert list(tmp_path.iterdir()) == []


def test_nodes_that_differ_or_see_another_folder_are_named() -> None:
    here = services.describe_node("")
    other = here | {"node": "w1", "versions": here["versions"] | {"torch": "2.0"}, "sees workdir": False}
    [difference] = services._differences([here, other])
    assert difference.startswith("w1 has torch 2.0, here is")
    assert services._shared("/mnt/x", [here, other]).found == "/mnt/x is not the same folder on w1"
    assert services._shared("/mnt/x", [here]).state == "ok"


def test_the_table_and_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [Finding.ok("a", "fine"), Finding.broken("b", "gone", "bring it back")]
    monkeypatch.setattr("raydr.verbs.doctor.examine", lambda config: findings)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1
    assert any_broken(raydr.doctor())
    printed = capsys.readouterr().err
    assert "b (broken): bring it back" in printed
    assert "2 checks: 1 broken, 0 warnings" in printed
    del findings[1]
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


def test_the_package_of_a_reader_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = config(tmp_path, data={"reader": {"name": "huggingface", "path": "x"}}).data.reader
    assert [one.state for one in software.check_reader(reader)] == ["ok"]
    assert software.check_reader(config(tmp_path).data.reader) == []
    monkeypatch.setitem(sys.modules, "datasets", None)
    [missing] = software.check_reader(reader)
    assert (missing.state, missing.advice) == ("broken", "pip install datasets")


def test_the_package_of_adapters_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapted = config(tmp_path, ranker={"optimizer": {"lora": {}}})
    [there] = software.check_adapters(adapted)
    assert (there.state, there.found) == ("ok", "is there, as ranker.optimizer.lora needs it")
    assert software.check_adapters(config(tmp_path)) == []
    monkeypatch.setitem(sys.modules, "peft", None)
    [missing] = software.check_adapters(adapted)
    assert (missing.state, missing.advice) == ("broken", "pip install peft")


def test_what_int8_needs_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.check_int8(config(tmp_path)) == []
    asked = config(tmp_path, encode={"dtype": "int8"})
    monkeypatch.setattr("raydr.models.int8.missing_for_int8", lambda: None)
    assert [one.state for one in software.check_int8(asked)] == ["ok"]
    monkeypatch.setattr("raydr.models.int8.missing_for_int8", lambda: ("nncf not installed", "pip install nncf"))
    [missing] = software.check_int8(asked)
    assert (missing.state, missing.found, missing.advice) == ("broken", "nncf not installed", "pip install nncf")
