"""What a run talks to and reads: Ray and its nodes, storage, MLflow, the data. Tried out, not only looked at."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Iterator
from typing import Any

from raydr.config.run import RunConfig
from raydr.console import counted
from raydr.distributed.cluster import RayConfig, address_of, connected
from raydr.errors import RaydrError, first_line
from raydr.ops.doctor.machine import GIB, MAIN, Finding, free_bytes, installed
from raydr.ops.preflight import raw_inputs
from raydr.pipeline.forecast import FORECAST_FILE, Forecast
from raydr.store.folder import Folder
from raydr.tracking.mlflow_writer import probe_tracking
from raydr.tracking.tracker import DATABASE, Store

#: Seconds for a task on the cluster: a node that has to be started first is not waited for.
TASK_TIMEOUT_S = 60.0


def check_ray(config: RayConfig, workdir: str = "") -> list[Finding]:
    """Connect, run a task on every node, and see whether the nodes are like this machine and share the working folder.

    Args:
        config: which Ray.
        workdir: the working folder; every node must see it.
    """
    where = address_of(config)
    try:
        with connected(config):
            return _look_around(where, workdir)
    except (RaydrError, RuntimeError, OSError, ValueError) as error:
        advice = "set ray.temp_dir to a short path that can be written, and look at the log folder that Ray names"
        if where:
            advice = "check ray.address or RAY_ADDRESS, RAY_AUTH_MODE=token and the token (docs/cluster.md)"
        return [Finding("ray connection", "broken", f"{where or 'a local Ray'}: {first_line(error)}", advice)]


def _look_around(where: str, workdir: str) -> list[Finding]:
    import ray

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    resources = ray.cluster_resources()
    shown = (
        f"{where or 'a local Ray starts'}: {counted(len(nodes), 'node')}, "
        f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"
    )
    findings = [Finding("ray connection", "ok", shown)]
    reports = _ask_nodes(nodes, workdir if "://" not in workdir else "")
    if len(reports) < len(nodes):
        late = f"{len(nodes) - len(reports)} of {len(nodes)} did not run a task in {TASK_TIMEOUT_S:.0f} s"
        advice = "look at ray status and at their logs on the dashboard"
        findings.append(Finding("ray nodes", "broken", late, advice))
    if different := sorted(differences(reports)):
        advice = "install from the same constraints.txt on every node (docs/cluster.md)"
        findings.append(Finding("ray nodes", "broken", "; ".join(different), advice))
    return findings + ([compare_views(workdir, reports)] if workdir and len(nodes) > 1 else [])


def _ask_nodes(node_ids: list[str], workdir: str) -> list[dict[str, Any]]:
    """What each node says of itself, with a file in the working folder that it is to see."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder, name = Folder(workdir).absolute(), _probe_name()
    if workdir:
        folder.write_json(name, {})
    try:
        ask = ray.remote(num_cpus=0, max_retries=0)(describe_node)
        strategies = [NodeAffinitySchedulingStrategy(node_id, soft=False) for node_id in node_ids]
        asked = [
            ask.options(scheduling_strategy=strategy).remote(workdir and folder.path(name)) for strategy in strategies
        ]
        done, late = ray.wait(asked, num_returns=len(asked), timeout=TASK_TIMEOUT_S)
        for task in late:
            ray.cancel(task, force=True)
        answered: list[dict[str, Any]] = ray.get(done)
        return answered
    finally:
        if workdir:
            folder.remove(name)


def describe_node(probe: str) -> dict[str, Any]:
    """What a node is like; runs there. ``probe`` is a file in the working folder, or empty."""
    versions = {"python": platform.python_version(), **{name: installed(name) for name in MAIN}}
    return {"node": platform.node(), "versions": versions, "sees workdir": not probe or os.path.exists(probe)}


def differences(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Where the software of nodes is not that of this machine."""
    for name, here in describe_node("")["versions"].items():
        for report in reports:
            if (version := report["versions"].get(name)) != here:
                yield f"{report['node']} has {name} {version or 'missing'}, here is {here or 'none'}"


def compare_views(workdir: str, reports: list[dict[str, Any]]) -> Finding:
    """Whether all nodes have seen the file in the working folder."""
    if blind := sorted({report["node"] for report in reports if not report["sees workdir"]}):
        problem = f"{workdir} is not the same folder on {', '.join(blind)}"
        return Finding(
            "working folder",
            "broken",
            problem,
            "mount a shared folder there on every node, or use a URL (s3://, gs://)",
        )
    return Finding("working folder", "ok", f"{workdir} is seen by all {len(reports)} nodes")


def _probe_name() -> str:
    return f".raydr-doctor-{uuid.uuid4().hex[:8]}"


def check_storage(workdir: str) -> Finding:
    """Write, read and remove a small file in the working folder, wherever it is."""
    name, content = _probe_name(), {"written": "by raydr doctor"}
    try:
        folder = Folder(workdir).absolute()
        folder.write_json(name, content)
        read = folder.read_json(name)
        folder.remove(name)
    # A file system's own errors have no common base.
    except Exception as error:
        problem = str(error) if isinstance(error, RaydrError) else f"{workdir}: {first_line(error)}"
        advice = "check the path, the permissions and the credentials in the environment; set workdir elsewhere"
        return Finding("storage", "broken", problem, advice)
    if read != content:
        return Finding("storage", "broken", f"{workdir}: what was written is not what is read", "use another workdir")
    return Finding("storage", "ok", f"{folder} can be written, read and removed from")


def check_storage_and_ray(config: RunConfig) -> list[Finding]:
    """The working folder, and whether all nodes see it; one that cannot be written is not looked for."""
    storage = check_storage(config.workdir)
    return [storage, *check_ray(config.ray, config.workdir if storage.state == "ok" else "")]


def check_space(workdir: str) -> list[Finding]:
    """What the last plan writes against what is free; nothing without a plan, or where the folder is no local one."""
    folder = Folder(workdir).absolute()
    if not folder.is_local or not folder.exists(FORECAST_FILE):
        return []
    plan, free = Forecast.from_json(folder.read_sealed(FORECAST_FILE)), free_bytes(folder.root)[0]
    space = f"planned for {plan.num_passages:,} passages: {plan.disk_bytes / GIB:,.1f} GiB, {free / GIB:,.1f} GiB free"
    if plan.disk_bytes <= free:
        return [Finding("space for artefacts", "ok", space)]
    advice = "free space, move the working folder, or see `raydr plan` for what is largest"
    return [Finding("space for artefacts", "broken", space, advice)]


def check_mlflow(config: RunConfig) -> Finding:
    """Ask the tracking server something."""
    if not config.tracking.enabled:
        return Finding("mlflow", "ok", "tracking is off (tracking.enabled: false)")
    try:
        store = Store.of(config.tracking, Folder(config.workdir).absolute())
    except RaydrError as error:
        return Finding("mlflow", "broken", str(error), "set tracking.uri, or tracking.enabled: false")
    if not store.uri and not store.workdir.exists(DATABASE):
        return Finding("mlflow", "ok", f"{store.shown}, made at its first use")
    if problem := probe_tracking(store):
        advice = (
            "check tracking.uri, that the server runs and lets this host in (--allowed-hosts), and "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; or set tracking.enabled: false"
        )
        return Finding("mlflow", "broken", f"{store.shown}: {problem}", advice)
    return Finding("mlflow", "ok", f"{store.shown} answers")


def check_data(config: RunConfig) -> Finding:
    """The raw files of the reader; they are not needed once the data are prepared."""
    needs = raw_inputs(config.data)
    wrong = [need.problem for need in needs if need.problem]
    if not wrong:
        return Finding("data", "ok", f"{len(needs)} inputs of data.reader are there")
    problem = f"{len(wrong)} of {len(needs)} inputs: {'; '.join(wrong[:3])}{' ...' if len(wrong) > 3 else ''}"
    return Finding(
        "data", "warning", problem, "only raydr prepare reads them: check data.reader if it has not been run yet"
    )
