"""How much there is to be had, as stages, steps and searches over settings see it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray.train import ScalingConfig

from raydr.distributed import elastic
from raydr.distributed.choose_pool import choose_pool
from raydr.distributed.cluster import RayConfig, ray_session, read_capacity, stated_capacity
from raydr.distributed.resources import cluster_capacity, memory_to_ask, node_capacities
from raydr.distributed.worker_group import _report_missing_resources
from raydr.errors import ConfigError
from raydr.store.folder import Folder
from raydr.training.checkpoint import PROGRESS, state_name
from raydr.training.config import TrainConfig


def test_a_cluster_has_what_is_stated_and_a_machine_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a connection: it would tell the head alone, which has no CPUs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("raydr.distributed.resources.is_connected", lambda: False)
    monkeypatch.setattr("raydr.distributed.cluster.is_connected", lambda: False)
    stated = {"capacity": {"CPU": 64, "GPU": 12}, "num_cpus": 3, "num_gpus": 0}
    with ray_session(RayConfig.model_validate(stated)):
        assert cluster_capacity() == {"CPU": 3.0, "GPU": 0.0}
    with ray_session(RayConfig.model_validate({**stated, "address": "10.0.0.5:6379"})):
        assert cluster_capacity() == {"CPU": 64.0, "GPU": 12.0}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.5:6379")
    with ray_session(RayConfig.model_validate({"capacity": {"CPU": 8}})):
        assert cluster_capacity() == {"CPU": 8.0, "GPU": 0.0}


@pytest.mark.parametrize(
    ("rows", "gpus", "there", "here"),
    [(1_000, 0, 0, True), (1_001, 0, 0, False), (10_000, 0.5, 1, True), (10_001, 0.5, 1, False)]
    # Of several GPUs Ray could give a worker the one that this process has taken; and one may be only stated.
    + [(10, 1, 2, False), (10, 1, 0, False)],
)
def test_little_work_is_done_in_this_process_and_on_its_only_gpu(
    rows: int, gpus: float, there: int, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydr.distributed.choose_pool.num_gpus_here", lambda: there)
    monkeypatch.setattr("raydr.distributed.ray_pool.RayPool.__init__", lambda self: None)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with ray_session(RayConfig(in_process_rows=1_000)):
        assert choose_pool(rows, gpus, asks_model=True).here == here
    with ray_session(RayConfig(in_process_rows=1_000, address="10.0.0.5:6379")):
        assert not choose_pool(rows, gpus, asks_model=True).here


def test_pytorch_is_asked_for_gpus_only_where_there_is_a_driver() -> None:
    """Importing it takes a second, of three that a small preparation takes."""
    code = "import sys; from raydr.distributed import resources; resources._DRIVERS = (); "
    code += "print(resources.num_gpus_here(), 'torch' in sys.modules); "
    code += "resources._DRIVERS = ('/',); print(resources.num_gpus_here() >= 0, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "0 False" if sys.platform == "linux" else "0 True"
    assert done.stdout.splitlines() == [expected, "True True"], done.stderr


def test_the_nodes_of_a_cluster_state_its_capacity_and_the_setting_comes_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYDR_CAPACITY", "CPU=64,GPU=12")
    with ray_session(RayConfig(address="10.0.0.5:6379")):
        assert stated_capacity() == {"CPU": 64, "GPU": 12}
    with ray_session(RayConfig(address="10.0.0.5:6379", capacity={"CPU": 4})):
        assert stated_capacity() == {"CPU": 4}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with ray_session(RayConfig()):
        assert stated_capacity() is None


@pytest.mark.parametrize("text", ["64", "CPU=many", "CPU=-1", "TPU=4"])
def test_a_capacity_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"RAYDR_CAPACITY is '{text}'"):
        read_capacity(text)


def test_nodes_that_the_labels_keep_for_trainings_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """An actor sized by such a node would wait for ever for another."""
    small, large = {"CPU": 8.0, "GPU": 1.0, "memory": 2.0**34}, {"CPU": 48.0, "GPU": 4.0, "memory": 2.0**37}
    nodes = [
        {"Alive": True, "Resources": small, "Labels": {"market": "spot"}},
        {"Alive": True, "Resources": large, "Labels": {"group": "train"}},
        {"Alive": False, "Resources": small, "Labels": {}},
    ]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    with ray_session(RayConfig()):
        assert node_capacities() == [{"CPU": 8.0, "GPU": 1.0}]
        assert memory_to_ask(2**40) == 2**34
    with ray_session(RayConfig(node_labels={})):
        assert [node["CPU"] for node in node_capacities()] == [8.0, 48.0]
    with ray_session(RayConfig(node_labels={"group": "in(train,other)"})):
        assert [node["CPU"] for node in node_capacities()] == [48.0]


def test_an_elastic_group_counts_the_nodes_that_its_labels_admit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own policy counts all: it would start, and resize to, a group that waits for ever."""
    of = {"spot": {"market": "spot"}, "train": {"group": "train"}, "idle": {}}
    nodes = [{"NodeID": node, "Alive": True, "Resources": {}, "Labels": labels} for node, labels in of.items()]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    four = {"CPU": 48.0, "GPU": 4.0}
    free = {"spot": {"CPU": 8.0, "GPU": 1.0}, "train": four, "idle": four}
    monkeypatch.setattr(elastic, "available_resources_per_node", lambda: free)

    def possible(num_running: int, **labels: str) -> int:
        policy = elastic.GroupSize(
            ScalingConfig(num_workers=(1, 6), use_gpu=True, resources_per_worker={"GPU": 1}, label_selector=labels),
            Folder("states"),
        )
        policy.num_running = num_running
        return policy._count_possible_workers(free)

    assert possible(0, market="spot") == 1
    assert possible(2, market="spot") == 3
    assert possible(0, group="train") == 4
    assert possible(4, group="train") == 6
    free["train"] = {}
    assert possible(0, group="train") == 0


def test_a_group_is_resized_when_it_has_kept_a_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own policy resizes at once, and each node that joins costs the steps since the last state."""
    sizes = ScalingConfig(num_workers=(1, 4), resources_per_worker={"CPU": 1}, elastic_resize_monitor_interval_s=0)
    policy = elastic.GroupSize(sizes, Folder(str(tmp_path)))
    nodes = {"a": {"CPU": 1.0}}
    monkeypatch.setattr(policy, "_maybe_send_resource_request", lambda: None)
    monkeypatch.setattr(policy, "_get_reserved_resources", lambda: nodes)

    def size() -> int | None:
        group = SimpleNamespace(num_workers=1, start_time=0.0)
        return getattr(policy.make_decision_for_running_worker_group(group, None), "num_workers", None)

    def keep_state(step: int) -> None:
        (tmp_path / state_name(step)).mkdir()
        (tmp_path / state_name(step) / PROGRESS).write_text("{}")

    keep_state(1)
    assert size() is None
    nodes["b"] = {"CPU": 2.0}
    assert [size(), size()] == [None, None]
    keep_state(2)
    assert size() == 3
    # The node goes before a state is kept.
    assert size() is None
    del nodes["b"]
    keep_state(3)
    assert [size(), size()] == [None, None]


def test_a_store_that_does_not_answer_resizes_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ScalingConfig(num_workers=(1, 4), resources_per_worker={"CPU": 1}, elastic_resize_monitor_interval_s=0)
    policy = elastic.GroupSize(sizes, Folder("states"))
    monkeypatch.setattr(policy, "_maybe_send_resource_request", lambda: None)
    monkeypatch.setattr(policy, "_get_reserved_resources", lambda: {"a": {"CPU": 2.0}})
    answers = iter([OSError("away"), ["step-1"], OSError("away"), ["step-1"], ["step-2"]])

    def last_states(states: Folder) -> list[str]:
        if isinstance(answer := next(answers), OSError):
            raise answer
        return answer

    monkeypatch.setattr(elastic, "whole_states", last_states)
    group = SimpleNamespace(num_workers=1, start_time=0.0)
    decisions = [policy.make_decision_for_running_worker_group(group, None) for _ in range(5)]
    assert [getattr(decision, "num_workers", None) for decision in decisions] == [None] * 4 + [2]


def test_a_training_that_waits_for_labels_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 8.0}, "Labels": {}}])
    _report_missing_resources(TrainConfig(num_workers=4))
    assert capsys.readouterr().err == ""
    _report_missing_resources(TrainConfig(num_workers=4, node_labels={"group": "train"}))
    message = " ".join(capsys.readouterr().err.split())
    assert "Ray has 0 now on nodes with train.node_labels {'group': 'train'}" in message
    assert "or train.node_labels={}" in message
