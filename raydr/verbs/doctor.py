"""``raydr doctor``: is everything there that a run needs?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raydr.verbs.command import Overrides

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.ops.doctor.finding import Finding


def doctor(config: RunConfig | None = None) -> list[Finding]:
    """Check this machine, and with a config what the run needs; prints a table and returns what was found."""
    from raydr.ops.doctor.examine import examine, show

    findings = examine(config)
    show(findings)
    return findings


def run(
    config: Annotated[
        str, typer.Argument(metavar="[CONFIG]", help="YAML file of a run: its storage, Ray, MLflow and data are tried.")
    ] = "",
    set_: Overrides = None,
) -> None:
    """Check versions, FAISS, GPUs, memory, disks, Ray, storage and MLflow, and say what to do.

    Ends with 1 if something is broken.
    """
    from raydr.config.run import RunConfig
    from raydr.ops.doctor.finding import any_broken

    if any_broken(doctor(RunConfig.load(config, set_) if config else None)):
        raise typer.Exit(1)
