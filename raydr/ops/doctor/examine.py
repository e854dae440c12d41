"""All checks in order, and the table of what they found."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from raydr.config.run import RunConfig
from raydr.graph.session import asks_for_gpus
from raydr.ops.doctor import machine, services, software, space
from raydr.ops.doctor.finding import Finding, State
from raydr.runtime.cluster import RayConfig
from raydr.runtime.console import console, say

_STYLE: dict[State, str] = {"ok": "green", "warning": "yellow", "broken": "red"}


def examine(config: RunConfig | None = None) -> list[Finding]:
    """Look at this machine, and with a config at the services and the storage that it names."""
    gpus = machine.find_gpus()
    # A cluster brings its own GPUs.
    local = config is None or not (config.ray.address or os.environ.get("RAY_ADDRESS"))
    wanted = config is not None and local and asks_for_gpus(config)
    ray = config.ray if config is not None else RayConfig()
    findings = [
        software.check_python(),
        *software.check_packages(),
        software.check_faiss(software.installed_versions(software.FAISS), len(gpus)),
        machine.check_gpus(gpus, *machine.torch_gpus(), wanted=wanted),
        machine.check_shared_memory(ray.object_store_gib),
        *machine.check_disks(config),
        machine.check_open_files(),
        machine.check_credentials(os.environ),
    ]
    if config is None:
        return [*findings, *services.check_ray(ray)]
    storage = services.check_storage(config.workdir)
    seen = config.workdir if storage.state == "ok" else ""
    room = space.check_space(config) if seen else []
    packages = [
        *software.check_reader(config.data.reader), *software.check_adapters(config), *software.check_int8(config)
    ]  # fmt: skip
    cluster = services.check_ray(ray, seen)
    return [
        *findings, *packages, storage, *room, *cluster, services.check_mlflow(config), services.check_data(config)
    ]  # fmt: skip


def show(findings: Sequence[Finding]) -> None:
    """Print the findings as a table, and what to do below it."""
    table = Table(title="raydr doctor", title_justify="left", title_style="bold", header_style="bold")
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for one in findings:
        table.add_row(one.check, Text(one.state, style=_STYLE[one.state]), Text(one.found))
    console.print(table)
    for one in findings:
        if one.advice:
            say(f"{one.check} ({one.state}): {one.advice}")
    broken = sum(one.state == "broken" for one in findings)
    warnings = sum(one.state == "warning" for one in findings)
    say(f"{len(findings)} checks: {broken} broken, {warnings} {'warning' if warnings == 1 else 'warnings'}")
