"""``raydr tune``: a search over settings with Ray Tune."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.verbs.options import ConfigFile, Overrides, Overwrite, load


def run(
    config: ConfigFile,
    space: Annotated[
        str, typer.Option("--space", metavar="FILE", help="Space file, YAML or Python; see tune_spaces/.")
    ],
    name: Annotated[str, typer.Option("--name", help="Name of the search; that of the space file if left out.")] = "",
    set_space: Annotated[
        list[str] | None,
        typer.Option(
            "--set-space",
            metavar="KEY=VALUE",
            help="Override a setting of the space file, e.g. search.num_trials=12 or scheduler.name=none; repeatable.",
        ),
    ] = None,
    set_: Overrides = None,
    overwrite: Overwrite = False,
) -> None:
    """Search over settings of the training; a search that was killed goes on with the same command."""
    import raydr

    raydr.tune(load(config, set_), space, name=name, space_overrides=set_space, overwrite=overwrite)
