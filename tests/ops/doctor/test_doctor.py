"""``raydr doctor``: what is wrong is found, what to do is said, and no secret is shown."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from typer.testing import CliRunner

import raydr
from raydr.config.run import RunConfig
from raydr.distributed.cluster import RayConfig
from raydr.ops.doctor import machine, services
from raydr.ops.doctor.machine import Finding
from raydr.ops.doctor.services import any_broken, examine
from raydr.pipeline.forecast import FORECAST_FILE, Forecast, StageEstimate
from raydr.verbs.app import app

A10G = "NVIDIA A10G, 580.95.05"


def config(tmp_path: Path, **sections: Any) -> RunConfig:
    raw = {
        "workdir": str(tmp_path / "work"),
        "data": {"reader": {"name": "beir", "path": "/nowhere", "splits": ["dev"]}},
    }
    return RunConfig.parse(raw | sections)


def test_the_installed_packages_fit() -> None:
    findings = machine.check_packages()
    assert [finding.state for finding in findings] == ["ok"] * len(machine.MAIN)
    assert {finding.check: finding.observation for finding in findings}["ray"] == version("ray")


def test_a_wrong_and_a_missing_package_are_named_with_the_command() -> None:
    there = {"ray": "2.9.3", "numpy": "2.4.6+local", "torch": ""}
    needed = ["ray[default]>=2.60,<2.61", "torch>=2.13", "numpy>=2.4", "ruff>=1; extra == 'dev'"]
    findings = machine.check_packages(needed, there.__getitem__)
    assert [(finding.check, finding.state) for finding in findings] == [("ray", "broken"), ("torch", "broken")]
    assert findings[0].observation == "2.9.3, raydr needs <2.61,>=2.60"
    assert findings[1].advice == "pip install --constraint constraints.txt 'torch>=2.13'"


@pytest.mark.parametrize(
    ("installed", "gpus", "state", "advice"),
    [
        ([], 0, "broken", "pip install faiss-cpu"),
        (["faiss-cpu", "faiss-gpu"], 1, "broken", "pip uninstall faiss-cpu faiss-gpu"),
        (["faiss-gpu"], 0, "warning", "faiss-cpu is enough"),
        (["faiss-gpu"], 1, "ok", ""),
        (["faiss-cpu"], 1, "ok", ""),
    ],
)
def test_faiss_flavours(
    monkeypatch: pytest.MonkeyPatch, installed: list[str], gpus: int, state: str, advice: str
) -> None:
    monkeypatch.setattr("raydr.indexing.faiss_backend.installed", lambda: installed)
    finding = machine.check_faiss(gpus)
    assert finding.state == state
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("gpus", "sees", "cuda", "wanted", "state", "advice"),
    [
        ([], 0, None, False, "ok", ""),
        ([], 0, None, True, "broken", "train.use_gpu: false"),
        ([A10G], 1, "13.0", True, "ok", ""),
        ([A10G], 0, None, True, "broken", "pip install torch"),
        (["NVIDIA T4, 550.54"], 0, "13.0", True, "broken", "driver 580 or newer"),
        ([A10G, A10G], 1, "13.0", True, "warning", "CUDA_VISIBLE_DEVICES"),
        ([A10G], 0, "13.0", True, "broken", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus(
    tmp_path: Path, gpus: list[str], sees: int, cuda: str | None, wanted: bool, state: str, advice: str
) -> None:
    asking = config(tmp_path, train={"use_gpu": wanted}, encode={"gpus_per_actor": int(wanted)})
    finding = machine.check_gpus(asking, gpus, sees, cuda)
    assert finding.state == state
    assert advice in finding.advice


def test_little_shared_memory_and_disk_are_told(tmp_path: Path) -> None:
    finding = machine.check_shared_memory(1e6, str(tmp_path))
    assert finding.state == "warning"
    assert "--shm-size" in finding.advice
    assert machine.check_shared_memory(1e-6, str(tmp_path)).state == "ok"
    assert machine.check_shared_memory(1e6, str(tmp_path / "none")).state == "ok"
    finding = machine.check_disk("disk", str(tmp_path / "not" / "there" / "yet"), needed_gib=1e9)
    assert (finding.state, f"at {tmp_path}" in finding.observation) == ("warning", True)


def test_a_plan_that_does_not_fit_is_told(tmp_path: Path) -> None:
    assert services.check_space("memory://bucket/x") == []
    for num_bytes, state in ((10**16, "broken"), (10, "ok")):
        stage = StageEstimate(name="encode", seconds=1, disk_bytes=num_bytes)
        plan = Forecast(stages=[stage], num_passages=500, device="cpu")
        (tmp_path / FORECAST_FILE).write_text(plan.model_dump_json())
        [finding] = services.check_space(str(tmp_path))
        assert (finding.state, "planned for 500 passages" in finding.observation) == (state, True)


def test_storage_is_tried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert services.check_storage(str(tmp_path / "new")).state == "ok"
    assert list((tmp_path / "new").iterdir()) == []
    assert services.check_storage("memory://bucket/doctor").state == "ok"
    (tmp_path / "file").touch()
    finding = services.check_storage(str(tmp_path / "file" / "below"))
    assert finding.state == "broken"
    # As where the package is not installed.
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    assert "pip install gcsfs for gs://" in services.check_storage("gs://bucket/x").observation


def test_mlflow_is_asked(tmp_path: Path) -> None:
    assert services.check_mlflow(config(tmp_path, tracking={"enabled": False})).state == "ok"
    assert "created on first use" in services.check_mlflow(config(tmp_path)).observation
    away = services.check_mlflow(config(tmp_path, tracking={"uri": "http://127.0.0.1:9"}))
    assert away.state == "broken"
    assert "--allowed-hosts" in away.advice
    assert services.check_mlflow(config(tmp_path, workdir="memory://x")).state == "broken"


def test_a_cluster_that_is_not_there_is_told_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    # The Ray that other tests share may be there already, and would be taken.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    [finding] = services.check_ray(RayConfig(address="127.0.0.1:9"))
    assert finding.state == "broken"
    assert "nothing answers at 127.0.0.1:9" in finding.observation


@pytest.mark.ray
def test_a_ray_that_is_there_is_looked_at(ray_local: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "TASK_TIMEOUT_S", PATIENCE_S)
    [finding] = services.check_ray(RayConfig(), str(tmp_path))
    assert finding.state == "ok"
    assert "1 node, 2 CPUs, 0 GPUs" in finding.observation
    assert list(tmp_path.iterdir()) == []


def test_nodes_that_differ_or_see_another_folder_are_named(tmp_path: Path) -> None:
    # The head's build is for processors, a worker's for GPUs.
    release = version("torch").partition("+")[0]
    assert services.problems_here({"torch": release}, str(tmp_path)) == []
    different, blind = services.problems_here({"torch": "2.0"}, "/mnt/x/probe")
    assert different.endswith(f"has torch {release}, expected 2.0")
    assert blind.startswith("/mnt/x is not the same folder on ")


@pytest.mark.usefixtures("ray_local")
def test_a_node_that_cannot_run_a_task_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_raydr(versions: dict[str, str], probe: str) -> list[str]:
        raise ModuleNotFoundError("No module named 'raydr'")

    monkeypatch.setattr(services, "problems_here", without_raydr)
    _, nodes = services.check_ray(RayConfig())
    assert (nodes.check, nodes.state) == ("ray nodes", "broken")
    assert nodes.observation.endswith("cannot run a task of raydr (ModuleNotFoundError: No module named 'raydr')")


def test_the_table_and_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    findings = [Finding("a", "ok", "fine"), Finding("b", "broken", "gone", "bring it back")]
    monkeypatch.setattr("raydr.verbs.operations.examine", lambda config: findings)
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 1
    assert any_broken(raydr.doctor())
    printed = capsys.readouterr().err
    assert "b (broken): bring it back" in printed
    assert "2 checks: 1 broken, no warnings" in printed
    del findings[1]
    assert CliRunner().invoke(app, ["doctor"]).exit_code == 0


def test_packages_that_a_setting_needs_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.check_optional(config(tmp_path)) == []
    data = {"reader": {"name": "huggingface", "path": "x"}}
    wanted = config(tmp_path, data=data, ranker={"optimizer": {"lora": {}}}, encode={"dtype": "int8"})
    monkeypatch.setattr("raydr.models.int8.missing_for_int8", lambda: None)
    there = machine.check_optional(wanted)
    assert [(finding.check, finding.state) for finding in there] == [("datasets", "ok"), ("peft", "ok"), ("int8", "ok")]
    assert there[1].observation == "installed, as ranker.optimizer.lora needs it"
    for name in ("datasets", "peft"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("raydr.models.int8.missing_for_int8", lambda: ("nncf not installed", "pip install nncf"))
    missing = machine.check_optional(wanted)
    assert {finding.state for finding in missing} == {"broken"}
    assert [finding.advice for finding in missing] == ["pip install datasets", "pip install peft", "pip install nncf"]


def test_every_check_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "check_ray", lambda *arguments: [Finding("ray connection", "ok", "")])
    alone = [finding.check for finding in examine()]
    assert alone == [
        *("python", "ray", "torch", "transformers", "mlflow", "faiss", "gpu", "shared memory", "disk for Ray"),
        *("open files", "ray connection"),
    ]
    with_config = [finding.check for finding in examine(config(tmp_path))]
    inputs = ["passages", "queries", "judgments", "checkpoint"]
    assert sorted(with_config) == sorted([*alone, "disk for artefacts", "storage", "mlflow", *inputs])
