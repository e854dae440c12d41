"""What Ray's own checks let pass in a cluster file: bounds that contradict each other, misspelt keys, open doors."""

from __future__ import annotations

from typing import Any

#: The keys of EC2's RunInstances and of Compute Engine's instances.insert that the cluster files may use.
EC2_KEYS = {
    *("InstanceType", "ImageId", "SecurityGroupIds", "IamInstanceProfile", "MetadataOptions"),
    *("BlockDeviceMappings", "InstanceMarketOptions", "KeyName", "SubnetIds", "TagSpecifications", "Placement"),
}
GCE_KEYS = {
    *("machineType", "disks", "networkInterfaces", "metadata", "serviceAccounts", "scheduling"),
    *("guestAccelerators", "labels", "tags", "minCpuPlatform", "shieldedInstanceConfig"),
}
KEYS = {"aws": EC2_KEYS, "gcp": GCE_KEYS}


def problems(config: dict[str, Any]) -> list[str]:
    """What is wrong with a cluster file that Ray accepts, one line each."""
    faults = []
    head = config["head_node_type"]
    workers = {name: group for name, group in config["available_node_types"].items() if name != head}
    for name, group in config["available_node_types"].items():
        faults += [
            f"{name}: unknown key {key} in node_config"
            for key in sorted(set(group["node_config"]) - KEYS[config["provider"]["type"]])
        ]
    for name, group in workers.items():
        least, most = group.get("min_workers", 0), group.get("max_workers")
        if most is None:
            faults.append(f"{name}: no max_workers")
        elif least > most:
            faults.append(f"{name}: min_workers {least} is above max_workers {most}")
        if least:
            faults.append(f"{name}: min_workers {least} costs money while nothing runs")
        if group.get("idle_timeout_s", config["idle_timeout_minutes"] * 60) > 600:
            faults.append(f"{name}: idles for more than ten minutes")
    if sum(group.get("max_workers", 0) for group in workers.values()) > config["max_workers"]:
        faults.append("the groups together exceed max_workers")
    if config["available_node_types"][head]["resources"].get("CPU") != 0:
        faults.append("the head takes work: set its CPU to 0")
    for kind in ("head", "worker"):
        starts = [line for line in config[f"{kind}_start_ray_commands"] if "ray start" in line]
        if not starts or any("RAY_AUTH_MODE=token" not in line for line in starts):
            faults.append(f"{kind}: Ray is started without RAY_AUTH_MODE=token")
        if any("--dashboard-host=0.0.0.0" in line for line in starts):
            faults.append(f"{kind}: the dashboard listens to everyone")
    return faults
