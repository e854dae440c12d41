"""Pairs with human verdicts, read by what has been trained on nothing here: words, and one or all vectors of a model.

The verdicts choose nothing: readings stand beside each other, and are put together with equal weights.

    python -m experiments.untrained_readers --data DATA/staqc-sql-labelled
    python -m experiments.untrained_readers --data DATA/cosqa-labelled --splits labelled
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from experiments.beir_files import read_qrels, read_rows
from experiments.filter_curves import area_interval
from experiments.live_encoder import LiveEncoder
from experiments.results import Table, write_results
from raydr.compare import interval_text
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.scores.sum_of_max import SumOfMax
from raydr.negatives.bm25 import Analyzer
from raydr.negatives.config import BM25Config

FloatArray = NDArray[np.float64]
COSINE, LATE, WORDS, LONG = "cosine", "late interaction", "the query's words", "long code"
#: Readings whose ranks are added, all with the same weight.
TOGETHER = ((COSINE, LATE), (COSINE, WORDS), (COSINE, LONG))
#: Codes whose token states are held at once.
_CHUNK = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="BEIR folder with pairs of score 1 (right) and 0")
    parser.add_argument("--splits", default="train,dev,test")
    parser.add_argument("--checkpoint", default="offline:minilm")
    parser.add_argument("--out", type=Path, default=Path("work/experiments/untrained_readers"))
    arguments = parser.parse_args()
    qrels = read_qrels(arguments.data)
    judged = [row for split in arguments.splits.split(",") for row in qrels[split]]
    query_ids, code_ids, scores = zip(*judged, strict=True)
    queries, codes = _texts(arguments.data, "queries", query_ids), _texts(arguments.data, "corpus", code_ids)
    wrong_N = np.array([int(score) == 0 for score in scores])
    _, query_N = np.unique(query_ids, return_inverse=True)
    found = readings(queries, codes, token_states(arguments.checkpoint, 64, 256))
    rows = []
    for name, right_N in found.items():
        low, high = area_interval(-right_N, wrong_N, query_N, num_samples=1000, seed=0)
        rows.append([name, interval_text(float(roc_auc_score(wrong_N, -right_N)), low, high)])
    title = f"{arguments.data.name}: {len(judged):,} pairs, {wrong_N.mean():.1%} wrong"
    write_results(arguments.out, vars(arguments), [Table(title, ["reader", "AUROC [95 %]"], rows)], {})


def _texts(data: Path, name: str, ids: Sequence[str]) -> list[str]:
    texts = {row["_id"]: row["text"] for row in read_rows(data, name)}
    return [texts[one] for one in ids]


def token_states(checkpoint: str, query_length: int, passage_length: int) -> LiveEncoder:
    """A checkpoint as it comes, of which the states of all tokens are asked."""
    config = ModelConfig(
        checkpoint=checkpoint,
        score=SumOfMax(),
        projection=None,
        similarity="dot",
        query=SideConfig(max_length=query_length),
        passage=SideConfig(max_length=passage_length),
    )
    return LiveEncoder(DualEncoder.from_config(config), build_tokenizers(config), torch.float32)


def readings(queries: Sequence[str], codes: Sequence[str], encoder: LiveEncoder) -> dict[str, FloatArray]:
    """By reader, how right each pair looks.

    ``cosine`` is that of the means of the token states, ``late interaction`` the mean over the query's tokens of the
    highest cosine with a token of the code, ``the query's words`` the share of them that the code has, by idf, with
    identifiers split.
    """
    found = {LONG: np.log1p([len(code.split()) for code in codes]), WORDS: _words_found(queries, codes)}
    read = [
        _by_states(encoder, queries[at : at + _CHUNK], codes[at : at + _CHUNK]) for at in range(0, len(codes), _CHUNK)
    ]
    found[COSINE], found[LATE] = np.concatenate(read, axis=1)
    return found | {" + ".join(both): sum(rankdata(found[one]) for one in both) for both in TOGETHER}


def _by_states(encoder: LiveEncoder, queries: Sequence[str], codes: Sequence[str]) -> FloatArray:
    """Cosine and late interaction of each pair, shape (2, pairs)."""
    pairs = zip(encoder.encode("query", None, list(queries)), encoder.encode("passage", None, list(codes)), strict=True)
    values = []
    for query_MD, code_MD in pairs:
        # Padding is zeros.
        query, code = (side[np.abs(side).sum(axis=1) > 0].astype(np.float64) for side in (query_MD, code_MD))
        means = [_unit(side.mean(axis=0)) for side in (query, code)]
        values.append((means[0] @ means[1], (_unit(query) @ _unit(code).T).max(axis=1).mean()))
    return np.array(values).T


def _unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def _words_found(queries: Sequence[str], codes: Sequence[str]) -> FloatArray:
    analyzer = Analyzer(BM25Config(split_identifiers=True))
    of_queries, of_codes = ([set(analyzer.terms(text)) for text in texts] for texts in (queries, codes))
    codes_with = Counter(term for terms in of_codes for term in terms)

    def weight(terms: set[str]) -> float:
        return sum(math.log(1 + (len(codes) - codes_with[one] + 0.5) / (codes_with[one] + 0.5)) for one in terms)

    both = zip(of_queries, of_codes, strict=True)
    return np.array([weight(query & code) / max(1e-9, weight(query)) for query, code in both])


if __name__ == "__main__":
    main()
