"""``raydr benchmark noise``: compare methods that detect wrong labels on sets with human judgments."""

from __future__ import annotations

import csv
import json
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from raydr.console import say, show_summary, show_table, warn
from raydr.errors import ConfigError, DataError
from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.noise.labelled import LabelledSet, read_labelled, read_scores, scores_on
from raydr.pipeline.noise_benchmark import (
    METHODS,
    RECORD,
    SetFigures,
    benchmark_set,
    markdown,
    records,
    source_rows,
    terminal_rows,
)

#: Files that the command writes.
CSV, JSON, PAGE = "figures.csv", "figures.json", "page.md"
_OUT = "work/noise-benchmark"
#: Token limits: code and forum posts are longer than the default passage.
_QUERY_LENGTH, _PASSAGE_LENGTH = 64, 256


def benchmark_noise(
    pairs: Sequence[str | Path] = (),
    candidates: Sequence[str | Path] = (),
    *,
    scores: Mapping[str, str | Path] | None = None,
    model: str | Path = OFFLINE_CHECKPOINT,
    query_length: int = _QUERY_LENGTH,
    passage_length: int = _PASSAGE_LENGTH,
    out: str | Path = _OUT,
    samples: int = 1000,
    seed: int = 0,
) -> list[SetFigures]:
    """Compare methods that detect wrong labels on labelled sets.

    Args:
        pairs: sets whose pairs are taken for right, see :func:`raydr.noise.labelled.read_labelled`.
        candidates: sets whose rows are taken for negatives, except the first right row of each query.
        scores: files of further methods, by name, see :func:`raydr.noise.labelled.read_scores`.
        model: encoder that all methods start from.
        query_length, passage_length: token limits of the encoder.
        out: folder of the results, and of the artefacts while they are needed.
        samples: number of bootstrap samples.
        seed: seed of all draws.

    Returns:
        The figures of each set, which are in ``out`` too as soon as the set is finished.

    Raises:
        DataError: a set or a file of scores is invalid, or a file has no pair of any set.
        ConfigError: no set is named, two sets share a name, or a method has the name of a built-in method.
    """
    for sets in (pairs, candidates):
        if isinstance(sets, str | Path) or not isinstance(sets, Sequence):
            raise ConfigError(f"the sets of the benchmark are {sets!r:.80}; expected a list of paths")
    labelled = [read_labelled(path) for path in pairs] + [read_labelled(path, "candidates") for path in candidates]
    names = [(labelled_set.name, labelled_set.subject) for labelled_set in labelled]
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"the benchmark has the sets {names}; expected at least one, each once")
    lengths = {"query": {"max_length": query_length}, "passage": {"max_length": passage_length}}
    settings = {"checkpoint": str(model), **lengths}
    others = {name: _further_scores(name, path, labelled) for name, path in (scores or {}).items()}
    Path(out).mkdir(parents=True, exist_ok=True)
    results = []
    # All is made anew, so that the seconds count the whole work. After an interrupt threads may still write.
    with tempfile.TemporaryDirectory(dir=out, prefix="artefacts-", ignore_cleanup_errors=True) as work:
        for at, labelled_set in enumerate(labelled):
            folder = f"{work}/{at}-{labelled_set.name}"
            results.append(benchmark_set(labelled_set, settings, folder, others, samples, seed))
            _write(results, Path(out))
    return results


def _further_scores(name: str, path: str | Path, labelled: Sequence[LabelledSet]) -> dict[tuple[str, str], float]:
    """Read the scores of a further method, which must fit at least one set."""
    if name in METHODS:
        raise ConfigError(f"--scores {name}: the benchmark has a method of this name; take another")
    scores = read_scores(path)
    if all(scores_on(scores, labelled_set, name) is None for labelled_set in labelled):
        raise DataError(f"--scores {name}: {path} has no pair of any set; texts are compared without outer white space")
    return scores


def benchmark_noise_command(
    pairs: Annotated[list[str] | None, typer.Argument(metavar="[PAIRS]...", show_default=False)] = None,
    candidates: list[str] | None = None,
    scores: Annotated[list[str] | None, typer.Option("--scores", metavar="NAME=FILE")] = None,
    model: str = OFFLINE_CHECKPOINT,
    query_length: int = _QUERY_LENGTH,
    passage_length: int = _PASSAGE_LENGTH,
    out: str = _OUT,
    samples: Annotated[int, typer.Option("--samples", min=100)] = 1000,
    seed: int = 0,
) -> None:
    """Compare methods that detect wrong labels on sets with human judgments.

    A set is a file of rows with query, passage, label (0 or 1) and perhaps source; a folder of such files; or a BEIR
    folder whose judgments are labels.

    Args:
        pairs: sets whose pairs are taken for right.
        candidates: a set whose rows are taken for negatives, except the first right row of each query; repeatable.
        scores: a further method, as a file of rows with query, passage and score, the most suspicious highest.
        model: encoder that all methods start from.
        query_length: token limit of queries.
        passage_length: token limit of passages.
        out: folder of the results.
        samples: number of bootstrap samples.
        seed: seed of all draws.
    """
    named: dict[str, str] = {}
    for entry in scores or []:
        name, separator, file = entry.partition("=")
        if not (name and separator and file) or name in named:
            raise typer.BadParameter(f"takes NAME=FILE, each name once, got {entry!r}", param_hint="--scores")
        named[name] = file
    lengths = {"query_length": query_length, "passage_length": passage_length}
    try:
        results = benchmark_noise(
            pairs or [], candidates or [], scores=named, model=model, **lengths, out=out, samples=samples, seed=seed
        )
    except KeyboardInterrupt:
        warn(f"interrupted: {out} has the figures of the finished sets; the same command measures all sets again")
        raise
    for figures in results:
        show_table(figures.title, *terminal_rows(figures))
        if figures.shares:
            show_table(f"{figures.labelled.name}, by source", *source_rows(figures))
    say(f"{sum(figures.seconds for figures in results):.0f} s in all")
    show_summary("The figures", {name: Path(out) / name for name in (PAGE, CSV, JSON)})


def _write(results: Sequence[SetFigures], out: Path) -> None:
    rows = [record for figures in results for record in records(figures)]
    with (out / CSV).open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, RECORD, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    (out / JSON).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    (out / PAGE).write_text(markdown(results, shlex.join(["raydr", *sys.argv[1:]])), encoding="utf-8")
