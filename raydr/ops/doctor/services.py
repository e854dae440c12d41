"""Ray, storage, MLflow and the data: tried out, not only looked at."""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raydr.config.run import RunConfig
from raydr.errors import RaydrError
from raydr.ops.doctor.finding import Finding
from raydr.ops.doctor.software import MAIN, installed_versions
from raydr.ops.preflight import raw_inputs
from raydr.runtime.cluster import RayConfig, connected
from raydr.runtime.console import counted
from raydr.runtime.mlflow_runs import probe_tracking, tracking_uri
from raydr.store.folder import Folder

#: Seconds for a task on the cluster: a node that has to be started first is not waited for.
TASK_TIMEOUT_S = 60.0


def check_ray(config: RayConfig, workdir: str = "") -> list[Finding]:
    """Connect, run a task on every node, and see whether the nodes are like this machine and share the working folder.

    Args:
        config: which Ray.
        workdir: the working folder; every node must see it.
    """
    where = config.address or os.environ.get("RAY_ADDRESS", "")
    try:
        with connected(config):
            return _look_around(where, workdir)
    except (RaydrError, RuntimeError, OSError, ValueError) as error:
        advice = (
            "check ray.address or RAY_ADDRESS, RAY_AUTH_MODE=token and the token (docs/cluster.md)"
            if where
            else "set ray.temp_dir to a short path that can be written, and look at the log folder that Ray names"
        )
        return [Finding.broken("ray connection", f"{where or 'a local Ray'}: {_short(error)}", advice)]


def _look_around(where: str, workdir: str) -> list[Finding]:
    import ray

    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    resources = ray.cluster_resources()
    shown = (
        f"{where or 'a local Ray starts'}: {counted(len(nodes), 'node')}, "
        f"{resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs"
    )
    findings = [Finding.ok("ray connection", shown)]
    reports = _ask_nodes(nodes, workdir)
    if len(reports) < len(nodes):
        late = f"{len(nodes) - len(reports)} of {len(nodes)} did not run a task in {TASK_TIMEOUT_S:.0f} s"
        advice = "look at ray status and at their logs on the dashboard"
        findings.append(Finding.broken("ray nodes", late, advice))
    different = sorted(_differences(reports))
    if different:
        advice = "install from the same constraints.txt on every node (docs/cluster.md)"
        findings.append(Finding.broken("ray nodes", "; ".join(different), advice))
    if workdir and len(nodes) > 1:
        findings.append(_shared(workdir, reports))
    return findings


def _ask_nodes(node_ids: list[str], workdir: str) -> list[dict[str, Any]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    with _probe(workdir) as probe:
        ask = ray.remote(num_cpus=0, max_retries=0)(describe_node)
        asked = [
            ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(one, soft=False)).remote(probe)
            for one in node_ids
        ]
        done, late = ray.wait(asked, num_returns=len(asked), timeout=TASK_TIMEOUT_S)
        for one in late:
            ray.cancel(one, force=True)
        answered: list[dict[str, Any]] = ray.get(done)
        return answered


def describe_node(probe: str) -> dict[str, Any]:
    """What a node is like; runs there. ``probe`` is a file in the working folder, or empty."""
    return {
        "node": platform.node(),
        "versions": {"python": platform.python_version(), **installed_versions(MAIN)},
        "sees workdir": not probe or os.path.exists(probe),
    }


def _differences(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Where the software of nodes is not that of this machine."""
    here = describe_node("")["versions"]
    for report in reports:
        versions = report["versions"]
        for name in {*here, *versions}:
            if versions.get(name) != here.get(name):
                there, mine = versions.get(name) or "missing", here.get(name) or "none"
                yield f"{report['node']} has {name} {there}, here is {mine}"


def _shared(workdir: str, reports: list[dict[str, Any]]) -> Finding:
    blind = [report["node"] for report in reports if not report["sees workdir"]]
    if blind:
        return Finding.broken(
            "working folder",
            f"{workdir} is not the same folder on {', '.join(sorted(set(blind)))}",
            "mount a shared folder there on every node, or use a URL (s3://, gs://)",
        )
    return Finding.ok("working folder", f"{workdir} is seen by all {len(reports)} nodes")


@contextmanager
def _probe(workdir: str) -> Iterator[str]:
    """The path of a file in a local working folder while the block runs; empty for a URL or no folder."""
    if not workdir or "://" in workdir:
        yield ""
        return
    folder, name = Folder(workdir).absolute(), _probe_name()
    folder.write_json(name, {})
    try:
        yield folder.path(name)
    finally:
        folder.remove(name)


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
        found = str(error) if isinstance(error, RaydrError) else f"{workdir}: {_short(error)}"
        advice = "check the path, the permissions and the credentials in the environment; set workdir elsewhere"
        return Finding.broken("storage", found, advice)
    if read != content:
        return Finding.broken("storage", f"{workdir}: what was written is not what is read", "use another workdir")
    return Finding.ok("storage", f"{folder} can be written, read and removed from")


def check_mlflow(config: RunConfig) -> Finding:
    """Ask the tracking server something."""
    if not config.tracking.enabled:
        return Finding.ok("mlflow", "tracking is off (tracking.enabled: false)")
    try:
        uri = config.tracking.uri or tracking_uri(config.tracking, Folder(config.workdir).absolute())
    except RaydrError as error:
        return Finding.broken("mlflow", str(error), "set tracking.uri, or tracking.enabled: false")
    if uri.startswith("sqlite:") and not os.path.exists(uri.removeprefix("sqlite:///")):
        return Finding.ok("mlflow", f"{uri}, made at its first use")
    problem = probe_tracking(uri)
    if problem:
        advice = (
            "check tracking.uri, that the server runs and lets this host in (--allowed-hosts), and "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; or set tracking.enabled: false"
        )
        return Finding.broken("mlflow", f"{uri}: {problem}", advice)
    return Finding.ok("mlflow", f"{uri} answers")


def check_data(config: RunConfig) -> Finding:
    """The raw files of the reader; they are not needed once the data are prepared."""
    needs = raw_inputs(config.data)
    wrong = [need.problem for need in needs if need.problem]
    if not wrong:
        return Finding.ok("data", f"{len(needs)} inputs of data.reader are there")
    return Finding.warning(
        "data",
        f"{len(wrong)} of {len(needs)} inputs: {'; '.join(wrong[:3])}{' ...' if len(wrong) > 3 else ''}",
        "only raydr prepare reads them: check data.reader if it has not been run yet",
    )


def _short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
