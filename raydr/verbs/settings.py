"""``raydr settings``: what a config may hold."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer


def run(
    part: Annotated[
        str, typer.Argument(metavar="[PART]", help="Only keys, and kinds of components, that this is a part of.")
    ] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/settings.md.")] = False,
) -> None:
    """List the settings of a run: key, type, default and meaning."""
    import raydr
    from raydr.config.reference import settings_page

    groups = raydr.settings(part)
    if markdown:
        typer.echo(settings_page(groups), nl=False)
        return
    for group in groups:
        typer.echo(f"\n{group.title}: {group.about.replace('``', '')}")
        for one in group.settings:
            typer.echo(f"  {one.key}: {one.type.replace('`', '')}; default {one.default}")
            typer.echo(textwrap.indent(textwrap.fill(one.meaning.replace("`", ""), 100), "      "))
