"""Which machines Ray's own scheduler starts for what the recipes ask for, on each shipped cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _generate_available_node_types_from_ray_cr_spec
from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingReply, SchedulingRequest
from ray.autoscaler.v2.schema import AutoscalerInstance
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.core.generated.autoscaler_pb2 import ClusterResourceConstraint, GangResourceRequest, NodeState, NodeStatus
from ray.core.generated.common_pb2 import LabelSelectorOperator
from ray.core.generated.instance_manager_pb2 import Instance
from ray.data._internal.cluster_autoscaler.default_autoscaling_coordinator import _AutoscalingCoordinatorActor

from raydr.artefacts import bm25
from raydr.artefacts.index import MOST_TRAIN_CPUS
from raydr.artefacts.search_layout import share_of_growing
from raydr.config.run import RunConfig
from raydr.distributed.cluster import RayConfig, read_capacity
from raydr.distributed.ray_pool import data_context
from raydr.indexing.build import build_memory
from raydr.indexing.config import IndexConfig
from raydr.store import Folder
from raydr.tuning import trial

ROOT = Path(__file__).parents[2]
RECIPES = sorted(path for path in (ROOT / "jobs" / "recipes").glob("*.yaml") if path.name != "published.yaml")
CLUSTERS = ("cluster.yaml", "cluster/gcp.yaml", "cluster/kuberay.yaml")
GIB = 2**30


def groups_of(file: str) -> dict[str, dict[str, Any]]:
    """The groups of workers, by names without dashes."""
    if file == "cluster/kuberay.yaml":
        spec = next(yaml.safe_load_all((ROOT / file).read_text()))["spec"]
        types = _generate_available_node_types_from_ray_cr_spec(spec)
        types = {name: group for name, group in types.items() if group["max_workers"]}
    else:
        loaded = yaml.safe_load((ROOT / file).read_text())
        types = {
            name: group for name, group in loaded["available_node_types"].items() if name != loaded["head_node_type"]
        }
    return {name.replace("-", "_"): group for name, group in types.items()}


def capacity_of(file: str) -> dict[str, float]:
    """What the groups that ``ray.node_labels`` admits have together."""
    groups = [group for group in groups_of(file).values() if group["labels"].get("group") != "train"]
    return {
        kind: sum(group["max_workers"] * group["resources"].get(kind, 0) for group in groups) for kind in ("CPU", "GPU")
    }


def request(resources: Mapping[str, float], labels: Mapping[str, str]) -> Any:
    selector = [
        (
            key,
            LabelSelectorOperator.LABEL_OPERATOR_NOT_IN
            if value.startswith("!")
            else LabelSelectorOperator.LABEL_OPERATOR_IN,
            [value.removeprefix("!")],
        )
        for key, value in labels.items()
    ]
    return ResourceRequestUtil.make(dict(resources), label_selectors=[selector] if selector else None)


def scheduled(file: str, **demand: Any) -> SchedulingReply:
    types = {
        name: NodeTypeConfig(
            name=name,
            min_worker_nodes=0,
            max_worker_nodes=group["max_workers"],
            priority=group.get("priority", 0),
            resources=group["resources"],
            labels=group["labels"],
            idle_timeout_s=300,
        )
        for name, group in groups_of(file).items()
    }
    return ResourceDemandScheduler().schedule(
        SchedulingRequest(disable_launch_config_check=True, node_type_configs=types, max_num_nodes=18, **demand)
    )


def started(
    file: str, alone: list[Any], group: list[Any] | None = None, exhausted: Mapping[str, float] | None = None
) -> dict[str, int]:
    """How many machines of each group Ray starts for requests of their own, and for a group of requests.

    Args:
        file: of the cluster.
        alone: requests of tasks and actors.
        group: requests that are met together.
        exhausted: groups whose last start has failed, with 0.
    """
    reply = scheduled(
        file,
        resource_requests=ResourceRequestUtil.group_by_count(alone),
        gang_resource_requests=[GangResourceRequest(requests=group)] if group else [],
        recoverable_resource_availabilities=dict(exhausted or {}),
    )
    assert not reply.infeasible_resource_requests
    assert not reply.infeasible_gang_resource_requests
    return {launch.instance_type: launch.count for launch in reply.to_launch}


def encoders_of(config: RunConfig) -> list[Any]:
    settings = config.encode
    resources = {"GPU": settings.gpus_per_actor, "CPU": settings.cpus_per_actor}
    return [request(resources, config.ray.node_labels)] * settings.max_actors


@pytest.mark.parametrize("file", CLUSTERS)
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_recipes_encode_on_spot_machines_and_train_on_machines_of_several_gpus(recipe: Path, file: str) -> None:
    config = RunConfig.load(recipe)
    assert started(file, encoders_of(config)) == {"gpu_spot": config.encode.max_actors}
    train = config.train
    worker = request({"GPU": 1, "CPU": train.cpus_per_worker}, train.node_labels)
    num_workers = train.num_workers
    assert isinstance(num_workers, int)
    assert started(file, [], [worker] * num_workers) == {"gpu_train": -(-num_workers // 4)}


@pytest.mark.parametrize("file", CLUSTERS)
def test_encoders_beyond_the_spot_machines_take_single_gpus_at_full_price(file: str) -> None:
    encoder = request({"GPU": 1, "CPU": 2}, RayConfig().node_labels)
    assert started(file, [encoder] * 12) == {"gpu_spot": 8, "gpu_on_demand": 4}
    assert started(file, [encoder] * 4, exhausted={"gpu_spot": 0.0}) == {"gpu_on_demand": 4}


def running(file: str, group: str, number: int, idle: bool) -> AutoscalerInstance:
    """A machine of a group that runs, and has long been idle."""
    name, of = f"{group}-{number}", groups_of(file)[group]
    return AutoscalerInstance(
        cloud_instance_id=name,
        im_instance=Instance(instance_id=name, instance_type=group, status=Instance.RAY_RUNNING, node_id=name),
        ray_node=NodeState(
            node_id=name.encode(),
            ray_node_type_name=group,
            total_resources=of["resources"],
            available_resources=of["resources"] if idle else {},
            labels=of["labels"],
            status=NodeStatus.IDLE if idle else NodeStatus.RUNNING,
            idle_duration_ms=3_600_000 if idle else 0,
        ),
    )


@pytest.mark.parametrize("file", CLUSTERS)
def test_an_encoding_starts_and_keeps_no_training_machine(file: str) -> None:
    """Ray Data asks for nodes beside what its encoders ask for: by its share of the cluster, not by their labels."""
    sent: list[Any] = []

    def send(bundles: list[dict[str, float]], label_selectors: list[dict[str, str]] | None = None) -> None:
        sent[:] = map(request, bundles, label_selectors or [{}] * len(bundles))

    coordinator = _AutoscalingCoordinatorActor(send_resources_request=send, get_cluster_nodes=list)
    labels = data_context().execution_options.label_selector
    coordinator.request_resources("data", [{"GPU": 1, "CPU": 2}] * 8, 180, subcluster_selector=labels)
    asked = [ClusterResourceConstraint(resource_requests=ResourceRequestUtil.group_by_count(sent))]
    reply = scheduled(file, cluster_resource_constraints=asked)
    assert {launch.instance_type: launch.count for launch in reply.to_launch} == {"gpu_spot": 8}
    encoding = [running(file, "gpu_spot", number, idle=False) for number in range(8)]
    trained = running(file, "gpu_train", 0, idle=True)
    reply = scheduled(file, cluster_resource_constraints=asked, current_instances=[*encoding, trained])
    assert [machine.instance_id for machine in reply.to_terminate] == ["gpu_train-0"]


@pytest.mark.parametrize("file", CLUSTERS)
def test_without_labels_encoders_would_take_the_training_machines(file: str) -> None:
    """What ``ray.node_labels`` is for: once Ray ranks otherwise, it may go."""
    assert "gpu_train" in started(file, [request({"GPU": 1, "CPU": 2}, {})] * 4)


@pytest.mark.parametrize("file", CLUSTERS)
def test_work_without_a_gpu_goes_where_its_memory_is(file: str) -> None:
    labels = RayConfig().node_labels
    assert started(file, [request({"CPU": 1}, labels)] * 8) == {"cpu": 1}
    # A shard of BM25: passages of some 60 different terms, 8 bytes each in the files of terms.
    memory = bm25._MEMORY_BASE + bm25._MEMORY_FACTOR * bm25.SHARD_ROWS * 60 * 8
    assert 4 * GIB < memory < 8 * GIB
    assert started(file, [request({"CPU": 1, "memory": memory}, labels)]) == {"cpu": 1}
    # Eleven shards of an index of 21 million vectors: eight of them would not fit a spot machine.
    memory = build_memory(IndexConfig().shard_rows, 768 * 2)
    assert 22 * GIB / 8 < memory < 22 * GIB
    assert started(file, [request({"CPU": 1, "memory": memory}, labels)] * 11) == {"cpu": 1}


@pytest.mark.parametrize("file", CLUSTERS)
@pytest.mark.parametrize("gpus", [0, 1])
def test_all_actors_of_a_search_find_room_at_a_time(gpus: int, file: str) -> None:
    """However many shards there are, and whichever machines are there when it begins."""
    capacity, labels = capacity_of(file), RayConfig().node_labels
    head = {"CPU": 0.0, "GPU": 0.0}
    there = [group["resources"] for name, group in groups_of(file).items() if name != "gpu_train"]
    for num_actors in (1, 4, 5, 11, 12) if gpus else (1, 11, 20, 21, 32, 33, 41, 64, 160):
        for nodes in [[], *([node] for node in there if node.get("GPU", 0) >= gpus)]:
            cpus = share_of_growing(capacity["CPU"], [head, *nodes], num_actors, gpus)
            assert started(file, [request({"CPU": cpus, "GPU": gpus}, labels)] * num_actors)
    assert started(file, [request({"CPU": MOST_TRAIN_CPUS}, labels)]) == {"cpu": 1}


@pytest.mark.parametrize("file", CLUSTERS)
def test_trials_of_a_single_gpu_run_on_spot_machines(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def outside(*_: Any, **resources: Any) -> Any:
        asked.update(resources)
        raise InterruptedError

    monkeypatch.setattr(trial, "outside", outside)
    config = RunConfig.load(ROOT / "jobs" / "tune.yaml", ["train.use_gpu=true"])
    with pytest.raises(InterruptedError):
        next(trial.follow_training(config, Folder("/nowhere")))
    worker = request({"CPU": asked["num_cpus"], "GPU": asked["num_gpus"]}, asked["label_selector"])
    assert started(file, [worker] * 8) == {"gpu_spot": 8}


@pytest.mark.parametrize("file", CLUSTERS)
def test_the_nodes_state_the_capacity_of_the_file(file: str) -> None:
    sums = capacity_of(file)
    text = (ROOT / file).read_text()
    if file == "cluster/kuberay.yaml":
        spec = yaml.safe_load(text.split("\n---\n")[0])["spec"]
        [head] = spec["headGroupSpec"]["template"]["spec"]["containers"]
        [stated] = [variable["value"] for variable in head["env"] if variable["name"] == "RAYDR_CAPACITY"]
    else:
        [option] = [setting for setting in yaml.safe_load(text)["docker"]["run_options"] if "RAYDR_CAPACITY" in setting]
        stated = option.removeprefix("--env RAYDR_CAPACITY=")
    assert read_capacity(stated) == sums
