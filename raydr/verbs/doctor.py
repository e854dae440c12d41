"""``raydr doctor``: is everything there that a run needs?"""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.config.run import GivenConfig, RunConfig
from raydr.ops.doctor.examine import any_broken, examine, show
from raydr.ops.doctor.machine import Finding
from raydr.verbs.command import Overrides


def doctor(config: GivenConfig | None = None) -> list[Finding]:
    """Check this machine, and with a config what the run needs; prints a table and returns what was found."""
    findings = examine(None if config is None else RunConfig.of(config))
    show(findings)
    return findings


def doctor_command(
    config: Annotated[str, typer.Argument(metavar="[CONFIG]")] = "",
    set_: Overrides = None,
) -> None:
    """Check versions, FAISS, GPUs, memory, disks, Ray, storage and MLflow, and say what to do.

    Ends with 1 if something is broken.

    Args:
        config: YAML file of a run: its storage, Ray, MLflow and data are tried.
    """
    if any_broken(doctor(RunConfig.load(config, set_) if config else None)):
        raise typer.Exit(1)
