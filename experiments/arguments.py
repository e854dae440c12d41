"""What the commands of the experiments on a run's config have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from raydr.config.run import RunConfig
from raydr.verbs.exit_status import exit_status

NumberT = TypeVar("NumberT", int, float)


def command(main: Callable[[], None]) -> None:
    """Run a command as raydr's verbs are run: an error that a user can mend is one message."""
    with exit_status("command"):
        main()


def run_parser(doc: str | None, out: str, seeds: int | None = None) -> argparse.ArgumentParser:
    """A parser with the config, its overrides, the folder of the results, and the number of seeds if there are several.

    Args:
        doc: docstring of the command's module.
        out: default folder of the results, below the run's working folder.
        seeds: default number of seeds; None for a command that has one.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds, help="how many, from the config's seed on")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", default="", help=f"folder of the results; WORKDIR/{out} if left out")
    parser.set_defaults(out_name=out)
    return parser


def load_config(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> tuple[RunConfig, Path]:
    """The config with its overrides, and the folder of the results.

    Raises:
        ConfigError: the config is wrong.
    """
    config = RunConfig.load(arguments.config, arguments.overrides)
    out = Path(arguments.out or f"{config.workdir}/{arguments.out_name}").absolute()
    out.mkdir(parents=True, exist_ok=True)
    return config, out


def numbers(kind: type[NumberT], low: NumberT, high: NumberT) -> Callable[[str], list[NumberT]]:
    """An argument that is a list of numbers in a range, separated by commas.

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
