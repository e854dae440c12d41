"""The verbs: each is one small file with a Python function, from which its command comes.

They import what they need when they run, so that ``raydr --help`` is there at once.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import typer

from raydr.verbs.command import command
from raydr.verbs.endings import exit_status
from raydr.version import __version__

#: The verbs in the order in which a run uses them; each is a module of this package with a function of that name. A
#: module has a function ``run`` beside it where the command takes something else than the function does.
VERBS = (
    "quickstart",
    "prepare",
    "plan",
    "inspect",
    "inject-noise",
    "mine",
    "judge",
    "train",
    "encode",
    "index",
    "search",
    "rerank",
    "fuse",
    "import-run",
    "import-vectors",
    "evaluate",
    "benchmark",
    "refresh",
    "tune",
    "audit",
    "diagnose",
    "why",
    "review",
    "report",
    "export",
    "submit",
    "doctor",
    "settings",
    "gc",
)

app = typer.Typer(
    name="raydr",
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


for _verb in VERBS:
    _name = _verb.replace("-", "_")
    _module = importlib.import_module(f"raydr.verbs.{_name}")
    _run = getattr(_module, "run", None) or command(getattr(_module, _name), getattr(_module, "show", None))
    app.command(_verb)(_ending(_run))


def _check_machine() -> None:
    """In a job on a cluster: does its machine have what the sender asked for?"""
    if "RAYDR_REQUIRED_ENV" in os.environ:
        from raydr.ops.submit.request import check_required_variables

        check_required_variables(os.environ)


def main() -> None:
    """Entry point."""
    with exit_status("command"):
        _check_machine()
    app()
