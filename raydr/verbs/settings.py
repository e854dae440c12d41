"""``raydr settings``: what a config may hold."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from raydr.config.reference import SettingGroup, find_settings, list_settings, settings_page
from raydr.config.run import RunConfig
from raydr.errors import ConfigError


def settings(part: str = "") -> list[SettingGroup]:
    """What a config may hold, in groups: key, type, default and meaning.

    Args:
        part: only keys, and kinds of components, that this is a part of.

    Raises:
        ConfigError: nothing is called so.

    >>> settings("first_rank")[0].settings[0].key
    'negatives.first_rank'
    """
    found = find_settings(list_settings(RunConfig), part)
    if not found:
        raise ConfigError(f"no setting or component has {part!r} in its name: raydr settings lists them all")
    return found


def settings_command(
    part: Annotated[str, typer.Argument(metavar="[PART]")] = "",
    markdown: bool = False,
) -> None:
    """List the settings of a run: key, type, default and meaning.

    Args:
        part: only keys, and kinds of components, that this is a part of.
        markdown: print the page docs/settings.md.
    """
    groups = settings(part)
    if markdown:
        typer.echo(settings_page(groups), nl=False)
        return
    for group in groups:
        typer.echo(f"\n{group.title}: {group.about.replace('``', '')}")
        for one in group.settings:
            typer.echo(f"  {one.key}: {one.type.replace('`', '')}; default {one.default}")
            typer.echo(textwrap.indent(textwrap.fill(one.meaning.replace("`", ""), 100), "      "))
