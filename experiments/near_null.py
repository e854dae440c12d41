"""Flags of ``local_fdr`` with near passages in place of random passages as the null.

Right pairs of a judged set are left as they are, or a share is mismatched, at random or with a passage that the encoder
ranks 5 to 50; then people's own labels. Each is flagged by both nulls: a random passage in the positive's place, and
one from rank 5 to 50.

    python -m experiments.near_null ../shared/data/cosqa-labelled ../shared/data/staqc-sql-labelled
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.results import Table, write_results
from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.noise.detectors.base import BoolArray, FloatArray, IntArray
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.labelled import read_labelled
from raydr.noise.margins import detect_over_draws
from raydr.pipeline.noise_benchmark import encode_set, set_config

SCALE, NEAR, NUM_DRAWS = 20.0, (5, 50), 8


class Pairs(NamedTuple):
    """N pairs with the scores of their queries.

    Args:
        scores_NP: scores of each query with all passages.
        order_NR: passages of other queries, best first.
        passage_N: passage of each pair.
        wrong_N: whether the pair is wrong.
    """

    scores_NP: FloatArray
    order_NR: IntArray
    passage_N: IntArray
    wrong_N: BoolArray

    def others(self, near: bool, rng: np.random.Generator) -> IntArray:
        """Draw another passage for each pair, from all or from the near ones, shape (N,)."""
        low, high = (NEAR[0] - 1, NEAR[1]) if near else (0, self.order_NR.shape[1])
        rows_N = np.arange(len(self.order_NR))
        return np.asarray(self.order_NR[rows_N, rng.integers(low, high, len(rows_N))])

    def mismatched(self, share: float, near: bool, rng: np.random.Generator) -> Pairs:
        """Give a share of the pairs another passage."""
        wrong_N = rng.random(len(self.passage_N)) < share
        return self._replace(passage_N=np.where(wrong_N, self.others(near, rng), self.passage_N), wrong_N=wrong_N)

    def flags(self, near: bool, rng: np.random.Generator) -> BoolArray:
        """Flag pairs; the null is near or random, see :meth:`others`."""
        rows_N, mean_N = np.arange(len(self.passage_N)), self.scores_NP.mean(axis=1)
        margin_N = mean_N - self.scores_NP[rows_N, self.passage_N]
        null_DN = [mean_N - self.scores_NP[rows_N, self.others(near, rng)] for _ in range(NUM_DRAWS)]
        margins_ND = np.repeat(margin_N[:, None], NUM_DRAWS, axis=1)
        return np.asarray(~detect_over_draws(LocalFdrDetector(), margins_ND, np.stack(null_DN, axis=1)).clean)


def read_pairs(folder: Path) -> Pairs:
    """Read a set's pairs, scored by the packaged encoder."""
    labelled = read_labelled(folder)
    model = {"checkpoint": OFFLINE_CHECKPOINT, "query": {"max_length": 64}, "passage": {"max_length": 256}}
    with tempfile.TemporaryDirectory() as work:
        vectors, _ = encode_set(labelled, set_config(labelled, model, work, 0))
    scores_QP = SCALE * vectors.query_QD @ vectors.passage_PD.T
    beside_QP = scores_QP.copy()
    beside_QP[vectors.query_N, vectors.passage_N] = -np.inf
    most_own = int(np.isinf(beside_QP).sum(axis=1).max())
    order_QR = np.argsort(-beside_QP, axis=1)[:, : beside_QP.shape[1] - most_own]
    return Pairs(scores_QP[vectors.query_N], order_QR[vectors.query_N], vectors.passage_N, labelled.wrong_N)


def cells(flagged_N: list[BoolArray], wrong_N: list[BoolArray]) -> list[str]:
    """Return flagged share, precision and recall: means over the seeds with their range."""
    pairs = list(zip(flagged_N, wrong_N, strict=True))
    values = [
        [float(flagged.mean()) for flagged, _ in pairs],
        [float(wrong[flagged].mean()) for flagged, wrong in pairs if flagged.any() and wrong.any()],
        [float(flagged[wrong].mean()) for flagged, wrong in pairs if wrong.any()],
    ]
    return [f"{np.mean(each):.3f} ({min(each):.3f} to {max(each):.3f})" if each else "" for each in values]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("work/experiments/near-null"))
    arguments = parser.parse_args()
    rows = []
    for folder in arguments.sets:
        judged = read_pairs(folder)
        right = Pairs._make(values[~judged.wrong_N] for values in judged)
        for case in ("judged by people", "right pairs", "mismatched at random", "near misses"):
            for null in ("random", "near"):
                flagged_N, wrong_N = [], []
                for seed in range(arguments.seeds):
                    rng = np.random.default_rng(seed)
                    pairs = judged if case == "judged by people" else right
                    if case in ("mismatched at random", "near misses"):
                        pairs = right.mismatched(arguments.share, case == "near misses", rng)
                    flagged_N.append(pairs.flags(null == "near", rng))
                    wrong_N.append(pairs.wrong_N)
                rows.append([folder.name, case, null, *cells(flagged_N, wrong_N)])
    table = Table("Flags by the null", ["set", "pairs", "null", "flagged", "precision", "recall"], rows)
    write_results(arguments.out, vars(arguments), [table], {"rows": rows})


if __name__ == "__main__":
    main()
