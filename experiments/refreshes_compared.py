"""Comparison of refreshes with several settings and seeds: a round of each arm, means over seeds, paired tests.

Working folders with the same name are seeds of a setting; a query's value is its mean over these. The arms of each
setting are compared with its first arm, and each setting with the first setting, arm by arm.

    python -m experiments.refreshes_compared --split val --round 2 --arms random,hard \\
        dual=work/linking poly=work/linking-poly,work/linking-poly-14
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from experiments.arguments import command
from experiments.results import Table, write_results
from raydr.data.tables import read_parquet
from raydr.errors import ArtifactError, ConfigError
from raydr.evaluation.comparison import PerQuery, compare, summarize
from raydr.evaluation.config import EvaluateConfig
from raydr.pipeline.compare import interval_text

#: measure → query id → value.
_Values = dict[str, dict[str, float]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "settings", nargs="+", metavar="NAME=WORKDIR,WORKDIR", help="seeds of a setting; the baseline first"
    )
    parser.add_argument("--arms", required=True, help="comma-separated; the baseline first")
    parser.add_argument("--round", type=int, required=True)
    parser.add_argument("--split", required=True)
    parser.add_argument("--out", type=Path, default=Path("work/experiments/refreshes_compared"))
    arguments = parser.parse_args()
    tables = compared(seeds_of(arguments.settings), arguments.arms.split(","), arguments.round, arguments.split)
    write_results(arguments.out, vars(arguments), tables, {})


def seeds_of(settings: Sequence[str]) -> dict[str, list[str]]:
    """Return the working folders of each setting.

    >>> seeds_of(["dual=a,b", "poly=c", "dual=d"])
    {'dual': ['a', 'b', 'd'], 'poly': ['c']}
    """
    folders: dict[str, list[str]] = {}
    for name, _, listed in (text.partition("=") for text in settings):
        folders.setdefault(name, []).extend(filter(None, listed.split(",")))
    return folders


def compared(settings: dict[str, list[str]], arms: list[str], number: int, split: str) -> list[Table]:
    """Return a table of means, and a table of tested differences.

    Args:
        settings: working folders by name.
        arms: the compared arms.
        number: of the round.
        split: the evaluated split.
    """
    read = {name: [_per_query(folder, split) for folder in folders] for name, folders in settings.items()}
    per_query: PerQuery = {
        f"{name}, {arm}": _mean([_of_system(seed, f"{arm}-{number}") for seed in seeds])
        for name, seeds in read.items()
        for arm in arms
    }
    evaluate = EvaluateConfig()
    means = [
        [summary.system, str(len(read[summary.system.rpartition(", ")[0]])), summary.measure]
        + [interval_text(summary.mean, summary.low, summary.high)]
        for summary in summarize(per_query, evaluate, seed=0)
    ]
    names = list(settings)
    wanted = {(f"{name}, {arms[0]}", f"{name}, {arm}") for name in names for arm in arms[1:]}
    wanted |= {(f"{names[0]}, {arm}", f"{name}, {arm}") for name in names[1:] for arm in arms}
    differences = [
        [
            comparison.system,
            comparison.baseline,
            comparison.measure,
            interval_text(comparison.difference, comparison.low, comparison.high),
            f"{comparison.p:.4f}",
        ]
        for comparison in compare(per_query, evaluate, seed=0, every_pair=True)
        if (comparison.baseline, comparison.system) in wanted
    ]
    title = f"{split}, round {number}"
    return [
        Table(title, ["setting, arm", "seeds", "measure", "mean [95 %]"], means),
        Table(f"{title}: differences", ["setting, arm", "minus", "measure", "difference [95 %]", "p"], differences),
    ]


def _per_query(folder: str, split: str) -> dict[str, _Values]:
    """Return the values of each query that a refresh has measured, by arm and round."""
    file = Path(folder) / "refresh" / "comparison" / split / "per_query.parquet"
    if not file.exists():
        raise ArtifactError(f"{folder} has no refresh that was compared on split {split!r}: there is no {file}")
    by_system: dict[str, _Values] = {}
    for row in read_parquet(str(file)).to_pylist():
        by_system.setdefault(row["system"], {}).setdefault(row["measure"], {})[row["query_id"]] = row["value"]
    return by_system


def _of_system(by_system: dict[str, _Values], system: str) -> _Values:
    if system not in by_system:
        raise ConfigError(f"there is no {system!r} (ARM-ROUND); there are {', '.join(by_system)}")
    return by_system[system]


def _mean(seeds: list[_Values]) -> _Values:
    """Compute the mean of each query over the seeds, which must have the same queries."""
    for seed in seeds[1:]:
        if any(seed[measure].keys() != values.keys() for measure, values in seeds[0].items()):
            raise ConfigError("the working folders of a setting were evaluated on different queries")
    return {
        measure: {query_id: float(np.mean([seed[measure][query_id] for seed in seeds])) for query_id in values}
        for measure, values in seeds[0].items()
    }


if __name__ == "__main__":
    command(main)
