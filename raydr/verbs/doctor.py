"""``raydr doctor``: is everything there that a run needs?"""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import Overrides, load


def run(
    config: Annotated[
        str, typer.Argument(metavar="[CONFIG]", help="YAML file of a run: its storage, Ray, MLflow and data are tried.")
    ] = "",
    set_: Overrides = None,
) -> None:
    """Check versions, FAISS, GPUs, memory, disks, Ray, storage and MLflow, and say what to do.

    Ends with 1 if something is broken.
    """
    import raydr
    from raydr.ops.doctor.finding import any_broken

    if any_broken(raydr.doctor(load(config, set_) if config else None)):
        raise typer.Exit(1)
