"""The verbs: each is one small file with a Python function, from which its command comes.

A verb's module is loaded when it is asked for, so that ``raydr --help`` is there at once.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from raydr.verbs.command import command, own_command
from raydr.verbs.endings import exit_status
from raydr.version import __version__

#: The verbs in the order in which a run uses them, and what each is for. A verb is a module of this package with a
#: function of that name, and a function ``run`` beside it where the command takes something else than that does.
VERBS = {
    "quickstart": "The main job, from raw files to a table of results.",
    "prepare": "Read raw files into a corpus and a data set.",
    "plan": "What every stage takes: time, memory, disk, money.",
    "inspect": "Counts, lengths, duplicates, gaps and examples of the data.",
    "inject-noise": "Put noise into the training split on purpose.",
    "mine": "Find candidate hard negatives.",
    "judge": "Judge negatives and pairs, and leave out what is wrong.",
    "train": "Train the dual encoder, or the ranker.",
    "encode": "Encode the corpus, or the queries of a split.",
    "index": "Build the FAISS index over a model's passage vectors.",
    "search": "Search the queries of a split, or a text.",
    "rerank": "Rerank the run of a system.",
    "fuse": "Fuse the runs of several systems.",
    "import-run": "Take over a run of another program.",
    "import-vectors": "Take over the vectors of any other embedder.",
    "evaluate": "The whole run: systems side by side, with paired tests.",
    "benchmark": "Systems on a public benchmark, beside what is known of it.",
    "refresh": "Rounds of training, re-encoding, mining and judging.",
    "tune": "Search over settings of the training.",
    "audit": "Estimate noise, and show the worst of it on one page.",
    "clean": "A file of pairs without the mismatched ones.",
    "diagnose": "What spoils a training, the likeliest cause first.",
    "why": "Each negative of a query, its provenance and verdicts.",
    "review": "A page on which people decide what judges doubt.",
    "report": "All that a run has made, on one HTML page.",
    "export": "Write the data set for other trainers, or a model.",
    "submit": "Run a verb as a job on a Ray cluster.",
    "doctor": "Check versions, devices, disks, Ray, storage and MLflow.",
    "settings": "The settings of a run: key, type, default, meaning.",
    "gc": "What no name reaches any more, and remove it.",
}


class _Verbs(TyperGroup):
    """Lists the verbs without loading them: their modules, and all that these import, take seconds together."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
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
    name = verb.replace("-", "_")
    module = importlib.import_module(f"raydr.verbs.{name}")
    own = getattr(module, "run", None)
    shows, then = (getattr(module, what, None) for what in ("show", "next_step"))
    run = own_command(own) if own else command(getattr(module, name), shows, then)
    alone = typer.Typer(add_completion=False)
    alone.command(verb)(_ending(run))
    return typer.main.get_command(alone)


def _listed() -> None:
    """Stands for a verb where verbs are listed."""


for _verb, _sentence in VERBS.items():
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
