"""The application of the command line: a verb's module is loaded when the verb is asked for."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from raydr.verbs import VERBS, function_name
from raydr.verbs.command import command, exit_status, own_command
from raydr.version import __version__


class _Verbs(TyperGroup):
    """Lists the verbs without loading them: their modules, and all that these import, take seconds together."""

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
    """The command with raydr's own endings; Typer's would end after Ctrl-C without a word."""

    @functools.wraps(run)
    def ended(*arguments: Any, **options: Any) -> None:
        with exit_status("command"):
            run(*arguments, **options)

    return ended


def load_command(verb: str) -> Any:
    """The command of a verb, with its options."""
    name = function_name(verb)
    module = importlib.import_module(f"raydr.verbs.{VERBS[verb][0]}")
    own = getattr(module, f"{name}_command", None)
    show, next_step = (getattr(module, f"{what}_{name}", None) for what in ("show", "next_after"))
    run = own_command(own) if own else command(getattr(module, name), show, next_step)
    alone = typer.Typer(add_completion=False)
    alone.command(verb)(_ending(run))
    return typer.main.get_command(alone)


def _listed() -> None:
    """Stands for a verb where verbs are listed."""


for _verb, (_, _sentence) in VERBS.items():
    app.command(_verb, help=_sentence)(_listed)


def _check_machine() -> None:
    """In a job on a cluster: does its machine have what the sender asked for?"""
    if "RAYDR_REQUIRED_ENV" in os.environ:
        from raydr.ops.submit.request import check_required_variables

        check_required_variables(os.environ)


def main() -> None:
    """Entry point."""
    # Ray would start one of its own, with none of the config's settings, where a stage forgot to.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    with exit_status("command"):
        _check_machine()
    app()
