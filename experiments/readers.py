"""A second reader in addition to ``npc``, a cross-encoder or a language model, on labels that people have judged.

A reader is the folder of a cross-encoder that raydr saved. Its vote is the log-odds of a wrong label. It is combined in
two ways: its rank is added to that of ``npc``; and, in a cascade, it decides pairs with a probability from .1 to .9
under ``npc``. No setting is chosen by the labels.

    python -m experiments.readers ../shared/data/cosqa-labelled --reader wikiqa=work/reader-wikiqa/models/ranker
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from scipy.stats import rankdata

from experiments.arguments import command
from experiments.results import Table, write_results
from raydr.console import say
from raydr.data.corpus import Texts
from raydr.errors import ConfigError
from raydr.evaluation.noise_measures import (
    BoolArray,
    FloatArray,
    IntArray,
    MethodScores,
    bootstrap_weights,
    measure_method,
    measure_ranking,
)
from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.models.cross_encoder import CrossEncoderScorer
from raydr.models.precision import resolve_dtype
from raydr.noise.judges.language_model import LanguageModel
from raydr.noise.labelled import LabelledSet, read_labelled, unique_texts
from raydr.pipeline.noise_benchmark import detect_wrong_labels, set_config

FIRST = "npc"
_TOKENS, _NUM_SAMPLES = 4_096, 2_000
_LENGTHS = {"query": {"max_length": 64}, "passage": {"max_length": 256}}
#: Range of probabilities in which the second reader of a cascade decides.
_UNSURE = LanguageModel().unsure


def read_pairs(labelled: LabelledSet, rows_B: IntArray, folder: str) -> FloatArray:
    """Compute a reader's log-odds of a wrong label for some pairs, shape (B,)."""
    dtype, _ = resolve_dtype("auto", "cpu")
    scorer = CrossEncoderScorer(folder, dtype, "cpu", _TOKENS)
    passages = [labelled.passages[at] for at in rows_B]
    each_B = np.arange(len(rows_B))
    queries = [labelled.queries[at] for at in rows_B]
    sign = -1.0 if labelled.subject == "pairs" else 1.0
    return sign * scorer.score(queries, Texts([""] * len(passages), passages), each_B, each_B)


def votes(first: MethodScores, readers: dict[str, FloatArray]) -> Iterator[MethodScores]:
    """Yield the first judge, each reader alone, and each reader combined with it by rank and in a cascade."""
    yield first
    assert first.probability_N is not None
    assert first.flagged_N is not None
    low, high = _UNSURE
    in_doubt_B = (first.probability_N >= low) & (first.probability_N <= high)
    for name, odds_B in readers.items():
        yield MethodScores(name, odds_B, odds_B > 0.0)
        flagged_B = np.where(in_doubt_B, odds_B > 0.0, first.flagged_N)
        yield MethodScores(f"{FIRST} and {name}", rankdata(first.suspicion_N) + rankdata(odds_B), flagged_B)


def gain(wrong_B: BoolArray, before_B: FloatArray, after_B: FloatArray, query_B: IntArray, seed: int) -> str:
    """Return the gain in AUROC with its 95 % bootstrap interval over queries."""

    def gains(weight_SB: FloatArray) -> FloatArray:
        before_S, after_S = (measure_ranking(wrong_B, scores_B, weight_SB)[:, 2] for scores_B in (before_B, after_B))
        return np.asarray(after_S - before_S)

    [value] = gains(np.ones((1, len(wrong_B))))
    samples = np.concatenate([gains(weight_SB) for weight_SB in bootstrap_weights(query_B, _NUM_SAMPLES, seed)])
    low, high = np.nanquantile(samples, [0.025, 0.975])
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def rows_of_set(labelled: LabelledSet, arguments: argparse.Namespace, folders: dict[str, str]) -> Iterator[list[str]]:
    """Yield the table's rows of a set."""
    count, seed = len(labelled.queries), arguments.seed
    rows_B = np.arange(count)
    if 0 < arguments.rows < count:
        rows_B = np.sort(np.random.default_rng(seed).permutation(count)[: arguments.rows])
    with tempfile.TemporaryDirectory() as work:
        config = set_config(labelled, {"checkpoint": arguments.model, **_LENGTHS}, work, seed)
        detected = detect_wrong_labels(labelled, FIRST, config)
    if detected.probability_N is None or detected.flagged_N is None:
        raise ConfigError(f"{labelled.name}: {FIRST} is inconclusive and has no probabilities for a cascade")
    first = MethodScores(
        FIRST, detected.suspicion_N[rows_B], detected.flagged_N[rows_B], detected.probability_N[rows_B]
    )
    readers = {}
    for name, folder in folders.items():
        started = time.perf_counter()
        readers[name] = read_pairs(labelled, rows_B, folder)
        say(f"{labelled.name}: {name} has read {len(rows_B)} pairs in {time.perf_counter() - started:.0f} s")
    wrong_B, query_B = labelled.wrong_N[rows_B], unique_texts([labelled.queries[at] for at in rows_B])[1]
    for scores in votes(first, readers):
        measures = measure_method(scores, wrong_B, query_B, seed=seed).measures
        figures = ["{:.3f} [{:.3f}, {:.3f}]".format(*measures[key]) for key in ("AUROC", "P@R.5")]
        figures += [
            f"{measures[key].mean:.2f}" if key in measures else "" for key in ("flagged", "precision", "recall")
        ]
        ahead = "" if scores is first else gain(wrong_B, first.suspicion_N, scores.suspicion_N, query_B, seed)
        yield [labelled.name, str(len(rows_B)), scores.method, figures[0], ahead, *figures[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="*", help="labelled sets of pairs")
    parser.add_argument("--candidates", action="append", default=[], help="labelled set of candidates; repeatable")
    parser.add_argument("--reader", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--rows", type=int, default=0, help="number of pairs drawn from each set; all if 0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default=OFFLINE_CHECKPOINT)
    parser.add_argument("--out", default="work/experiments/readers")
    arguments = parser.parse_args()
    folders = dict(entry.partition("=")[::2] for entry in arguments.reader)
    if not all(folders) or not all(folders.values()):
        raise ConfigError(f"--reader takes NAME=FOLDER, got {arguments.reader}")
    subjects: tuple[tuple[list[str], Literal["pairs", "candidates"]], ...] = (
        (arguments.pairs, "pairs"),
        (arguments.candidates, "candidates"),
    )
    sets = [read_labelled(path, subject) for paths, subject in subjects for path in paths]
    rows = [row for labelled in sets for row in rows_of_set(labelled, arguments, folders)]
    columns = ["set", "pairs", "judge", "AUROC", f"− {FIRST}", "P@R.5", "flagged", "precision", "recall"]
    write_results(Path(arguments.out), vars(arguments), [Table("Readers", columns, rows)], {"rows": rows})


if __name__ == "__main__":
    command(main)
