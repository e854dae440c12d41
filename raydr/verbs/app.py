"""Application of the command line, which loads a verb's module on use."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from raydr.verbs import VERBS, function_name
from raydr.verbs.exit_status import exit_status
from raydr.version import __version__


class _Verbs(TyperGroup):
    """Group that lists verbs without loading their modules, which takes seconds."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (two_words := " ".join(args[:2])) in VERBS:
            args = [two_words, *args[2:]]
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else load_command(name), rest


app = typer.Typer(
    name="raydr",
    cls=_Verbs,
    help="Train, apply and evaluate noise-robust dense retrievers on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"raydr {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Train, apply and evaluate noise-robust dense retrievers on Ray."""


def _ending(run: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command with raydr's exit messages; Typer exits silently after Ctrl-C."""

    @functools.wraps(run)
    def ended(*arguments: Any, **options: Any) -> None:
        with exit_status("command"):
            run(*arguments, **options)

    return ended


def load_command(verb: str) -> Any:
    """Return the command of a verb, with its options."""
    # The list of verbs needs no config, whose import takes half a second.
    from raydr.verbs.command import command, own_command

    name = function_name(verb)
    module = importlib.import_module(f"raydr.verbs.{VERBS[verb][0]}")
    own = getattr(module, f"{name}_command", None)
    show, next_step = (getattr(module, f"{what}_{name}", None) for what in ("show", "next_after"))
    run = own_command(own) if own else command(getattr(module, name), show, next_step)
    alone = typer.Typer(add_completion=False)
    alone.command(verb)(_ending(run))
    return typer.main.get_command(alone)


def _listed() -> None:
    """Placeholder of a verb in the list of verbs."""


for _verb, (_, _sentence) in VERBS.items():
    app.command(_verb, help=_sentence)(_listed)


def _check_machine() -> None:
    """Check the machine of a cluster job against the requirements of the submitter."""
    if "RAYDR_REQUIRED_ENV" in os.environ:
        from raydr.ops.submit.request import check_required_variables

        check_required_variables(os.environ)


def main() -> None:
    """Entry point."""
    # Where a stage forgot to start Ray, Ray would start itself without the config's settings.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    with exit_status("command"):
        _check_machine()
    app()
