"""The checks in order, and the table of what they found."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.table import Table
from rich.text import Text

from raydr.config.run import RunConfig
from raydr.console import console, counted, say
from raydr.distributed.cluster import RayConfig
from raydr.ops.doctor import machine, services
from raydr.ops.doctor.machine import Finding, State

#: What a check may return.
_Found = Finding | list[Finding]
#: Of this machine, with the config if there is one.
_MACHINE: tuple[Callable[[RunConfig | None], _Found], ...] = (
    lambda config: machine.check_python(),
    lambda config: machine.check_packages(),
    lambda config: machine.check_faiss(num_gpus=len(machine.find_gpus())),
    lambda config: machine.check_gpus(machine.find_gpus(), *machine.torch_gpus(), wanted=machine.wants_gpus(config)),
    lambda config: machine.check_shared_memory((config.ray if config else RayConfig()).object_store_gib),
    lambda config: machine.check_disks(config.ray if config else RayConfig(), config.workdir if config else ""),
    lambda config: machine.check_open_files(),
)
#: Of what a run names.
_RUN: tuple[Callable[[RunConfig], _Found], ...] = (
    machine.check_optional,
    lambda config: services.check_space(config.workdir),
    services.check_storage_and_ray,
    services.check_mlflow,
    services.check_data,
)
_STYLE: dict[State, str] = {"ok": "green", "warning": "yellow", "broken": "red"}


def examine(config: RunConfig | None = None) -> list[Finding]:
    """Look at this machine, and with a config at the services and the storage that it names."""
    checks = [check(config) for check in _MACHINE]
    if config is None:
        checks.append(services.check_ray(RayConfig()))
    else:
        checks += [check(config) for check in _RUN]
    return [finding for result in checks for finding in (result if isinstance(result, list) else [result])]


def any_broken(findings: Sequence[Finding]) -> bool:
    """Whether something will fail."""
    return any(finding.state == "broken" for finding in findings)


def show(findings: Sequence[Finding]) -> None:
    """Print the findings as a table, and what to do below it."""
    table = Table(title="raydr doctor", title_justify="left", title_style="bold", header_style="bold")
    for column in ("check", "", "found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(finding.check, Text(finding.state, style=_STYLE[finding.state]), Text(finding.found))
    console.print(table)
    for finding in findings:
        if finding.advice:
            say(f"{finding.check} ({finding.state}): {finding.advice}")
    broken, warnings = (sum(finding.state == state for finding in findings) for state in ("broken", "warning"))
    say(f"{counted(len(findings), 'check')}: {broken} broken, {warnings} {'warning' if warnings == 1 else 'warnings'}")
