"""Checks of a run's services and inputs: Ray and its nodes, storage, MLflow, raw files, checkpoints.

Each service is used once. Of each file the first rows are read.
"""

from __future__ import annotations

import os
import platform
import uuid
from collections.abc import Iterable, Sequence
from itertools import islice

from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.console import counted, say, show_table
from raydr.data.config import DataConfig
from raydr.data.inputs import Input, exists, looking_for_inputs
from raydr.data.readers.base import Source
from raydr.data.rows import BadRows
from raydr.distributed.cluster import RayConfig, address_of, connected
from raydr.distributed.failures import root_cause
from raydr.errors import ArtifactError, DataError, ModelError, RaydrError, first_line
from raydr.models.checkpoint import resolve_checkpoint
from raydr.ops.doctor.machine import GIB, MAIN, Finding, check_disk, check_machine, installed
from raydr.pipeline.forecast import read_forecast
from raydr.store import Folder
from raydr.tracking.mlflow_writer import probe_tracking
from raydr.tracking.tracker import DATABASE, Store

#: Seconds for a task on the cluster; a node that must be started first may take longer, and counts as failed.
TASK_TIMEOUT_S = 60.0


def examine(config: RunConfig | None = None) -> list[Finding]:
    """Check this machine, and the services, storage and data of a config."""
    if config is None:
        return [*check_machine(), *check_ray(RayConfig())]
    storage = check_storage(config.workdir)
    return [
        *check_machine(config),
        *check_space(config.workdir),
        storage,
        # Nodes are not asked for a folder that this machine cannot write.
        *check_ray(config.ray, config.workdir if storage.state == "ok" else ""),
        check_mlflow(config),
        *(check_inputs(config) if storage.state == "ok" else []),
    ]


def any_broken(findings: Sequence[Finding]) -> bool:
    """Return whether a check is broken."""
    return any(finding.state == "broken" for finding in findings)


def show(findings: Sequence[Finding]) -> None:
    """Print the findings as a table, and advice below it."""
    rows = ([finding.check, finding.state, finding.observation] for finding in findings)
    show_table("raydr doctor", ["check", "state", "detail"], rows)
    for finding in findings:
        if finding.advice:
            say(f"{finding.check} ({finding.state}): {finding.advice}")
    broken, warnings = (sum(finding.state == state for finding in findings) for state in ("broken", "warning"))
    say(f"{counted(len(findings), 'check')}: {broken} broken, {counted(warnings, 'warning')}")


def check_ray(config: RayConfig, workdir: str = "") -> list[Finding]:
    """Connect to Ray and run a task on each node: it compares versions and looks for the working folder.

    Args:
        config: the section ``ray``.
        workdir: the working folder, which every node must see; empty to skip that check.
    """
    where, local_folder = address_of(config), workdir if "://" not in workdir else ""
    try:
        with connected(config):
            import ray

            nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
            num = ray.cluster_resources()
            problems = _ask_nodes(nodes, local_folder)
    except (RaydrError, RuntimeError, OSError, ValueError) as error:
        advice = "set ray.temp_dir to a short path that can be written, and look at the log folder that Ray names"
        if where:
            advice = "check ray.address or RAY_ADDRESS, RAY_AUTH_MODE=token and the token (docs/cluster.md)"
        return [Finding("ray connection", "broken", f"{where or 'a local Ray'}: {first_line(error)}", advice)]
    has = f"{counted(len(nodes), 'node')}, {num.get('CPU', 0):g} CPUs, {num.get('GPU', 0):g} GPUs"
    advice = "install from constraints.txt, and mount the working folder or use a URL (s3://), on every node"
    broken = [Finding("ray nodes", "broken", "; ".join(problems), advice)] if problems else []
    return [Finding("ray connection", "ok", f"{where or 'a local Ray starts'}: {has}"), *broken]


def _ask_nodes(nodes: dict[str, str], workdir: str) -> list[str]:
    """Return the problems of all nodes.

    Args:
        nodes: addresses of the nodes by their ids.
        workdir: folder in which each node must see a file that is written to it; empty to skip that check.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    folder, name = Folder(workdir).absolute(), _probe_name()
    if workdir:
        folder.write_json(name, {})
    try:
        ask = ray.remote(num_cpus=0, max_retries=0)(problems_here)
        here = _versions(["python", *MAIN])
        tasks = {
            ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(
                here, workdir and folder.path(name)
            ): address
            for node_id, address in nodes.items()
        }
        done, late = ray.wait(list(tasks), num_returns=len(tasks), timeout=TASK_TIMEOUT_S)
        for task in late:
            ray.cancel(task, force=True)
        problems = []
        for task in done:
            try:
                problems += ray.get(task)
            except ray.exceptions.RayError as error:
                # Its Python has no raydr, for example, or the node is lost.
                problems.append(f"{tasks[task]} cannot run a task of raydr ({root_cause(error)})")
        silent = f"{len(late)} of {len(tasks)} did not run a task in {TASK_TIMEOUT_S:.0f} s: look at ray status"
        return [*problems, *([silent] if late else [])]
    finally:
        if workdir:
            folder.remove(name)


def problems_here(versions: dict[str, str], probe: str) -> list[str]:
    """Return the problems of the node that runs this.

    Args:
        versions: expected versions of Python and of packages.
        probe: a file in the working folder; empty to skip that check.
    """
    node, present = platform.node(), _versions(versions)
    problems = [
        f"{node} has {name} {present[name] or 'missing'}, expected {version or 'none'}"
        for name, version in versions.items()
        if present[name] != version
    ]
    blind = f"{os.path.dirname(probe)} is not the same folder on {node}"
    return problems + ([blind] if probe and not os.path.exists(probe) else [])


def _versions(names: Iterable[str]) -> dict[str, str]:
    # A local part (+cu130) names the build: nodes with GPUs have another than the head.
    return {
        name: platform.python_version() if name == "python" else installed(name).partition("+")[0] for name in names
    }


def _probe_name() -> str:
    return f".raydr-doctor-{uuid.uuid4().hex[:8]}"


def check_storage(workdir: str) -> Finding:
    """Write, read and remove a small file in the working folder, on a disk or in a bucket."""
    name, content = _probe_name(), {"written": "by raydr doctor"}
    try:
        folder = Folder(workdir).absolute()
        folder.write_json(name, content)
        read = folder.read_json(name)
        folder.remove(name)
    # Errors of file systems have no common base class.
    except Exception as error:
        problem = str(error) if isinstance(error, RaydrError) else f"{workdir}: {first_line(error)}"
        advice = "check the path, the permissions and the credentials in the environment; set workdir elsewhere"
        return Finding("storage", "broken", problem, advice)
    if read != content:
        return Finding("storage", "broken", f"{workdir}: a file is read back changed", "use another workdir")
    return Finding("storage", "ok", f"{folder} can be written, read and removed from")


def check_space(workdir: str) -> list[Finding]:
    """Check the free space of a local working folder, against the disk space of the last plan if there is one."""
    folder = Folder(workdir).absolute()
    if not folder.is_local:
        return []
    if (plan := read_forecast(folder)) is None:
        return [check_disk("disk for artefacts", folder.root)]
    passages = f"planned for {plan.num_passages:,} passages"
    return [check_disk("disk for artefacts", folder.root, plan.disk_bytes / GIB, passages)]


def check_mlflow(config: RunConfig) -> Finding:
    """Check that the tracking server answers."""
    if not config.tracking.enabled:
        return Finding("mlflow", "ok", "tracking is off (tracking.enabled: false)")
    try:
        store = Store.of(config.tracking, Folder(config.workdir).absolute())
    except RaydrError as error:
        return Finding("mlflow", "broken", str(error), "set tracking.uri, or tracking.enabled: false")
    if not store.uri and not store.workdir.exists(DATABASE):
        return Finding("mlflow", "ok", f"{store.shown}, created on first use")
    if problem := probe_tracking(store):
        advice = (
            "check tracking.uri, that the server runs and lets this host in (--allowed-hosts), and "
            "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; or set tracking.enabled: false"
        )
        return Finding("mlflow", "broken", f"{store.shown}: {problem}", advice)
    return Finding("mlflow", "ok", f"{store.shown} answers")


#: Rows of a raw file that are read to see whether its format is the expected one.
_ROWS = 20


def check_inputs(config: RunConfig) -> list[Finding]:
    """Check the inputs that a run cannot make: raw files, unless they are prepared, and checkpoints.

    Raises:
        ArtifactError: the working folder is on a storage that raydr cannot read.
    """
    places = Places.of(config.workdir)
    prepared = all(places.pointer(name) is not None for name in ("corpus", "dataset"))
    return [*([] if prepared else _raw_inputs(config.data)), *_checkpoints(config)]


def _checkpoints(config: RunConfig) -> list[Finding]:
    names = {"checkpoint": config.model.checkpoint}
    if config.model.towers == "two" and config.model.passage_checkpoint:
        names["passage checkpoint"] = config.model.passage_checkpoint
    findings = []
    for what, name in names.items():
        try:
            resolved = resolve_checkpoint(name)
        except ModelError as error:
            findings.append(Finding(what, "broken", str(error), "correct section model"))
        else:
            local = resolved.startswith("/")
            findings.append(Finding(what, "ok", resolved if local else f"{name} (a name on the hub, not checked)"))
    return findings


def _raw_inputs(config: DataConfig) -> list[Finding]:
    """Check that the reader's files exist and that their first rows can be read."""
    problem, sources = "", list[Source]()
    with looking_for_inputs() as inputs:
        try:
            sources = config.reader.sources()
        except (DataError, ArtifactError) as error:
            problem = str(error)
    roles = {source.path: source for source in sources}
    wrong = [(source.what, source.path, _wrong(config, source, roles.get(source.path))) for source in inputs]
    wrong += [("data", "", problem)] if problem else []
    return [
        Finding(what, "broken", why, "raydr prepare reads it: correct data.reader")
        if why
        else Finding(what, "ok", path)
        for what, path, why in wrong or [(source.role, source.path, "") for source in sources]
    ]


def _wrong(config: DataConfig, looked_for: Input, source: Source | None) -> str:
    """Return the problem of a file by its first rows; a file that is only read with another must exist."""
    if not looked_for.exists:
        return f"{looked_for.path} is missing, also as .gz"
    if source is None or not all(exists(path) for path in source.also):
        return ""
    bad_rows = _FirstBadRows(source.path, at_most=max(_ROWS, config.max_bad_rows))
    try:
        rows = list(islice(config.reader.read(source, bad_rows), _ROWS))
    except DataError as error:
        return f"{source.path}: {error}"
    if bad_rows.count > config.max_bad_rows:
        return f"the first bad row is {bad_rows.kept[0]}"
    return "" if rows else f"{source.path} has no rows"


class _FirstBadRows(BadRows):
    """Bad rows that end the reading when they are too many: a file of another format is not read to its end."""

    def __init__(self, file: str, at_most: int) -> None:
        super().__init__(file)
        self.at_most = at_most

    def add(self, line: int, reason: str, content: object = "") -> None:
        super().add(line, reason, content)
        if self.count > self.at_most:
            raise DataError(f"its first {self.count} rows are bad, the first is {self.kept[0]}")
