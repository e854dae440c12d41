"""``raydr settings``: what a config may hold."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer


def run(
    wanted: Annotated[
        str, typer.Argument(metavar="[PART]", help="Only keys, and kinds of components, that this is a part of.")
    ] = "",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Write docs/settings.md to the standard output.")
    ] = False,
) -> None:
    """List the settings of a run: key, type, default and meaning."""
    from raydr.config import RunConfig
    from raydr.errors import ConfigError
    from raydr.reporting.settings_reference import find_settings, list_settings, settings_page

    groups = find_settings(list_settings(RunConfig), wanted)
    if not groups:
        raise ConfigError(f"no setting or component has {wanted!r} in its name: raydr settings lists them all")
    if markdown:
        typer.echo(settings_page(groups), nl=False)
        return
    for group in groups:
        typer.echo(f"\n{group.title}: {group.about.replace('``', '')}")
        for one in group.settings:
            typer.echo(f"  {one.key}: {one.type.replace('`', '')}; default {one.default}")
            typer.echo(textwrap.indent(textwrap.fill(one.meaning.replace("`", ""), 100), "      "))
