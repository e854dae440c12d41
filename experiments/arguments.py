"""Common arguments of experiments on a run's config."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from raydr.config.run import RunConfig
from raydr.verbs.exit_status import exit_status

NumberT = TypeVar("NumberT", int, float)


def command(main: Callable[[], None]) -> None:
    """Run a command as a verb of raydr: an error that a user can fix is a single message."""
    with exit_status("command"):
        main()


def run_parser(doc: str | None, out: str, seeds: int | None = None) -> argparse.ArgumentParser:
    """Return a parser with the config, its overrides, the folder of the results, and optionally the number of seeds.

    Args:
        doc: docstring of the command's module.
        out: default folder of the results, below the run's working folder.
        seeds: default number of seeds; None for a command without ``--seeds``.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds, help="number of seeds, from the config's seed on")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", default="", help=f"folder of the results; by default WORKDIR/{out}")
    parser.set_defaults(out_name=out)
    return parser


def load_config(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[RunConfig, Path]:
    """Return the config with its overrides, and the folder of the results.

    Raises:
        ConfigError: the config is not valid.
    """
    config = RunConfig.load(arguments.config, arguments.overrides)
    out = Path(arguments.out or f"{config.workdir}/{arguments.out_name}").absolute()
    out.mkdir(parents=True, exist_ok=True)
    return config, out


def numbers(kind: type[NumberT], low: NumberT, high: NumberT) -> Callable[[str], list[NumberT]]:
    """Return the type of an argument that lists numbers of a range, separated by commas.

    >>> numbers(float, 0, 1)("0,0.5")
    [0.0, 0.5]
    """

    def parse(text: str) -> list[NumberT]:
        try:
            values = [kind(value) for value in text.split(",")]
        except ValueError:
            values = []
        if not values or any(not low <= value <= high for value in values):
            name = "whole numbers" if kind is int else "numbers"
            raise argparse.ArgumentTypeError(f"{text!r} is no list of {name} from {low} to {high}, separated by commas")
        return values

    return parse
