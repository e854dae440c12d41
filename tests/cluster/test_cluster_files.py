"""cluster.yaml, its Google Cloud variant and the KubeRay manifest: by Ray's own checks, and by what these let pass."""

from __future__ import annotations

import copy
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from ray.autoscaler._private.util import prepare_config, validate_config

from cluster.node_keys import problems
from raydr.verbs import VERBS

ROOT = Path(__file__).parents[2]
FILES = {"aws": ROOT / "cluster.yaml", "gcp": ROOT / "cluster" / "gcp.yaml"}
KUBERAY = ROOT / "cluster" / "kuberay.yaml"
DOCS = ROOT / "docs" / "cluster.md"


def load(cloud: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(FILES[cloud].read_text())
    return loaded


def pinned(name: str) -> str:
    [version] = re.findall(rf"^{name}==(\S+)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    return version


@pytest.mark.parametrize("cloud", FILES)
def test_ray_accepts_the_file_and_nothing_is_wrong_that_it_lets_pass(cloud: str) -> None:
    config = load(cloud)
    validate_config(prepare_config(copy.deepcopy(config)))
    assert problems(config) == []


def _min_above_max(config: dict[str, Any]) -> None:
    config["available_node_types"]["cpu"]["min_workers"] = 9


def _misspelt(config: dict[str, Any]) -> None:
    config["available_node_types"]["cpu"]["node_config"]["InstanceTyp"] = "m5.large"


def _unbounded(config: dict[str, Any]) -> None:
    del config["available_node_types"]["cpu"]["max_workers"]


def _open(config: dict[str, Any]) -> None:
    config["head_start_ray_commands"] = ["ray start --head --dashboard-host=0.0.0.0"]


def _working_head(config: dict[str, Any]) -> None:
    config["available_node_types"]["head"]["resources"]["CPU"] = 8


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_min_above_max, "min_workers 9 is above max_workers 4"),
        (_misspelt, "cpu: unknown key InstanceTyp"),
        (_unbounded, "cpu: no max_workers"),
        (_open, "the dashboard listens to everyone"),
        (_open, "head: Ray is started without RAY_AUTH_MODE=token"),
        (_working_head, "the head takes work"),
    ],
)
@pytest.mark.parametrize("cloud", FILES)
def test_faults_that_ray_accepts_are_found(cloud: str, fault: Callable[[dict[str, Any]], None], message: str) -> None:
    config = load(cloud)
    fault(config)
    validate_config(prepare_config(copy.deepcopy(config)))
    assert any(message in problem for problem in problems(config))


@pytest.mark.parametrize("cloud", FILES)
def test_ray_refuses_what_it_knows_to_be_wrong(cloud: str) -> None:
    config = load(cloud)
    config["available_node_types"]["cpu"]["max_worker"] = 1
    with pytest.raises(Exception, match="max_worker"):
        validate_config(prepare_config(config))


@pytest.mark.parametrize("cloud", FILES)
def test_spot_comes_first_and_the_same_machine_at_full_price_after_it(cloud: str) -> None:
    groups = load(cloud)["available_node_types"]
    spot, other = groups["gpu_spot"], groups["gpu_on_demand"]
    assert spot["priority"] > other["priority"]
    assert spot["resources"] == other["resources"]
    market = {"aws": "InstanceMarketOptions", "gcp": "scheduling"}[cloud]
    assert "spot" in str(spot["node_config"][market]).lower() or "preemptible" in str(spot["node_config"][market])
    assert "preemptible" not in str(other["node_config"])
    assert "InstanceMarketOptions" not in other["node_config"]


@pytest.mark.parametrize("cloud", FILES)
def test_trainings_have_machines_with_several_gpus_in_one_zone(cloud: str) -> None:
    config = load(cloud)
    group = config["available_node_types"]["gpu_train"]
    assert group["resources"]["GPU"] > 1
    # What train.node_labels asks for; those that encode do not come here first.
    assert group["labels"]["group"] == "train"
    others = [other for other in config["available_node_types"].values() if other["resources"].get("GPU") == 1]
    assert all(other["priority"] > group["priority"] and "group" not in other["labels"] for other in others)
    zones = group["node_config"].get("SubnetIds", [config["provider"]["availability_zone"]])
    assert len(zones) == 1
    assert "," not in zones[0]


@pytest.mark.parametrize("cloud", FILES)
def test_idle_nodes_outlast_the_gap_between_two_stages(cloud: str) -> None:
    """A search between two encodings takes minutes, and so does a boot; a GPU that waits longer is money."""
    groups = [group for name, group in load(cloud)["available_node_types"].items() if name != "head"]
    assert all(240 <= group["idle_timeout_s"] <= 600 for group in groups)


@pytest.mark.parametrize("cloud", FILES)
def test_every_node_installs_the_tested_versions(cloud: str) -> None:
    config = load(cloud)
    images = [config["docker"]["image"]]
    images += [
        group["docker"]["worker_image"] for group in config["available_node_types"].values() if "docker" in group
    ]
    assert {image.split(":")[1].split("-")[0] for image in images} == {pinned("ray")}
    assert all("-py311" in image for image in images)
    groups = config["available_node_types"].values()
    installs = [
        *config["setup_commands"],
        *(line for group in groups for line in group.get("worker_setup_commands", [])),
    ]
    assert len(installs) == 4
    for line in [*installs, *config["head_setup_commands"]]:
        assert "--constraint /home/ray/raydr/constraints.txt" in line
    for line in config["head_setup_commands"]:
        assert pinned(Requirement(line.split()[-1]).name)
    assert config["file_mounts"]["/home/ray/raydr"] == "."


@pytest.mark.parametrize("cloud", FILES)
def test_token_and_credentials_come_from_files_that_are_not_in_the_repository(cloud: str) -> None:
    config = load(cloud)
    assert config["file_mounts"]["/home/ray/.ray/auth_token"] == "~/.ray/auth_token"
    assert config["file_mounts"]["/home/ray/.raydr.env"] == "~/.raydr.env"
    assert not re.search(r"(AKIA|password|secret)\w*\s*[=:]", FILES[cloud].read_text(), flags=re.IGNORECASE)


def test_aws_machines_are_in_a_security_group_of_ones_own() -> None:
    """With a group that Ray makes, SSH would be open to the world."""
    for name, group in load("aws")["available_node_types"].items():
        assert group["node_config"]["SecurityGroupIds"] == ["sg-REPLACE"], name


def test_google_machines_have_no_public_address() -> None:
    config = load("gcp")
    assert config["provider"]["use_internal_ips"]
    for group in config["available_node_types"].values():
        assert all("accessConfigs" not in interface for interface in group["node_config"]["networkInterfaces"])


def documents() -> dict[str, dict[str, Any]]:
    return {
        f"{document['kind']}/{document['metadata']['name']}": document
        for document in yaml.safe_load_all(KUBERAY.read_text())
    }


def test_the_kuberay_manifest_has_a_closed_cluster_that_scales_from_none() -> None:
    spec = documents()["RayCluster/raydr"]["spec"]
    assert spec["rayVersion"] == pinned("ray")
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["enableInTreeAutoscaling"] is True
    assert spec["autoscalerOptions"]["version"] == "v2"
    assert spec["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    assert set(groups) == {"gpu-spot", "gpu-on-demand", "gpu-train", "cpu"}
    for group in groups.values():
        assert group["replicas"] == group["minReplicas"] == 0
        assert 0 < group["maxReplicas"] <= 8
        assert 240 <= group["idleTimeoutSeconds"] <= 300
    pods = [spec["headGroupSpec"]["template"]["spec"], *(group["template"]["spec"] for group in groups.values())]
    for pod in pods:
        assert pod["restartPolicy"] == "Never"
        [container] = pod["containers"]
        assert {"name": "RAY_AUTH_MODE", "value": "token"} in container["env"]
        assert container["envFrom"] == [{"secretRef": {"name": "raydr-credentials", "optional": True}}]
        assert set(container["resources"]) == {"requests", "limits"}
        mounted, volumes = (
            {mount["name"] for mount in pods_of} for pods_of in (container["volumeMounts"], pod["volumes"])
        )
        assert mounted == volumes
        # Ray's object store, 30 % of the memory, lies on disk where /dev/shm is smaller: KubeRay's own is large enough.
        assert "/dev/shm" not in {mount["mountPath"] for mount in container["volumeMounts"]}
        # What is kept of fetched files has room in the pod's own storage: a pod above its limit is evicted.
        kept = next(variable["value"] for variable in container["env"] if variable["name"] == "RAYDR_CACHE_GIB")
        assert int(kept) < int(container["resources"]["limits"]["ephemeral-storage"].removesuffix("Gi"))
    for group in groups.values():
        annotations = group["template"]["metadata"]["annotations"]
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        # Ray drains a node that is told to end.
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] >= 110
        # A pod of a group without an affinity may come on a spot machine.
        assert ("affinity" in group["template"]["spec"]) == ("market" in group["labels"])
    for name, num_gpus in {"gpu-spot": "1", "gpu-on-demand": "1", "gpu-train": "4"}.items():
        gpu = groups[name]["template"]["spec"]["containers"][0]
        assert gpu["resources"]["limits"]["nvidia.com/gpu"] == num_gpus
        assert gpu["image"].endswith("-gpu")


def test_the_job_runs_a_verb_on_the_clusters_pods() -> None:
    job = yaml.safe_load((ROOT / "cluster" / "rayjob.yaml").read_text())
    cluster = documents()["RayCluster/raydr"]
    assert (job["apiVersion"], job["kind"]) == (cluster["apiVersion"], "RayJob")
    # With K8sJobMode a submitter may end well while the job runs.
    assert job["spec"]["submissionMode"] == "HTTPMode"
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    program, verb, config, *overrides = shlex.split(job["spec"]["entrypoint"])
    assert (program, verb in VERBS) == ("raydr", True)
    mounts = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert any(config.startswith(mount["mountPath"]) for mount in mounts)
    assert {word.partition("=")[0] for word in overrides} == {"--set", "workdir", "tracking.uri"}


def test_what_the_manifest_names_is_in_it() -> None:
    resources = documents()
    claims = {
        volume["persistentVolumeClaim"]["claimName"]
        for volume in resources["RayCluster/raydr"]["spec"]["headGroupSpec"]["template"]["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    }
    assert all(f"PersistentVolumeClaim/{claim}" in resources for claim in claims)
    cluster, mlflow = resources["RayCluster/raydr"]["spec"], resources["Deployment/mlflow"]["spec"]
    for pod in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"], mlflow):
        # The image's user, of group 100, writes on a new volume, which is root's.
        assert pod["template"]["spec"]["securityContext"]["fsGroup"] == 100
    labels = mlflow["template"]["metadata"]["labels"]
    assert resources["Service/mlflow"]["spec"]["selector"] == labels
    assert mlflow["selector"]["matchLabels"] == labels
    for name in ("raydr", "mlflow"):
        policy = resources[f"NetworkPolicy/{name}"]["spec"]
        assert policy["policyTypes"] == ["Ingress"]
        assert all("from" in rule for rule in policy["ingress"])


def test_the_command_of_the_slurm_script_joins_the_ray_that_was_started_for_it(tmp_path: Path) -> None:
    """With programs in place of Slurm's and Ray's; without an address raydr starts a Ray of its own there."""
    [script] = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", DOCS.read_text(), re.DOTALL)
    programs = {
        "scontrol": "printf 'node1\\nnode2\\n'",
        "srun": 'exec "$@"',
        "ray": 'while [ "$1" != -- ]; do shift; done; shift; exec "$@"',
        "raydr": 'echo "$RAY_ADDRESS $1"',
    }
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "activate").touch()
    script = script.replace("/shared/raydr/.venv/bin/activate", str(tmp_path / "activate"))
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2"}
    ran = subprocess.run(["bash", "-eu"], input=script, env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == "node1:6379 evaluate\n"


def test_the_image_is_made_from_the_constraints() -> None:
    dockerfile = (ROOT / "cluster" / "Dockerfile").read_text()
    assert f"rayproject/ray:{pinned('ray')}-py311" in dockerfile
    assert "--constraint /home/ray/raydr/constraints.txt" in dockerfile
    # For MLflow's server, whose files kuberay.yaml keeps in s3://; no extra of raydr brings it.
    assert "s3://" in str(documents()["Deployment/mlflow"])
    assert '"/home/ray/raydr[${EXTRAS}]" boto3' in dockerfile
    assert pinned("boto3")
