"""The passages that take the place of mismatched ones, see :class:`raydr.noise.judges.relabel.Relabel`.

Adds to an artefact ``verdicts``::

    relabelled/SPLIT/part-*.parquet   verdicts(...) of the action ``relabel``: the query, its new passage, and as score
                                      the probability that it is wrong
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raydr.data.annotations import positives_of
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet
from raydr.data.tables import pairs_of, relevant
from raydr.noise.judges.base import Verdicts
from raydr.noise.judges.relabel import RELABELLED, Relabel, probably_right, stands_out
from raydr.noise.verdict_report import verdict_table
from raydr.stages.given_verdicts import DETECTION
from raydr.stages.given_verdicts import VERDICTS as DECIDED
from raydr.stages.parts import write_table
from raydr.stages.runs import Run, by_query
from raydr.store.artifact import Part
from raydr.store.folder import Folder


def relabel_pairs(
    judge: Relabel,
    output: Folder,
    names: Sequence[str],
    data: Dataset,
    corpus: Corpus,
    runs: Sequence[Run],
    split: str,
    scale: float,
) -> tuple[dict[str, Part], dict[str, Any]]:
    """Write what becomes of the queries that are left without a right pair.

    Args:
        judge: how sure it must be.
        output: the ``verdicts`` artefact, with verdicts and what they rest on.
        names: of the parts of the verdicts.
        data, corpus: the pairs.
        runs: what the model of each fold finds for the queries of the split.
        split: the split.
        scale: τ of these models.

    Returns:
        The parts, and counts: ``relabelled``, and where the truth is known ``relabelled_right``.
    """
    verdicts = [read_parquet(output.localize(name)) for name in names]
    rests_on = [read_parquet(output.localize(name.replace(DECIDED, DETECTION, 1))) for name in names]
    pairs = pa.concat_tables(
        [table.append_column("action", one["action"]) for table, one in zip(rests_on, verdicts, strict=True)]
    )
    new = _new_passages(judge, pairs, data, corpus, runs, split, scale)
    right = _known_right(pairs, data, corpus, split)
    parts, counts = {}, {"relabelled": 0, "relabelled_right": 0}
    for name, table in zip(names, verdicts, strict=True):
        # Pairs of a query may lie in two parts: its new one is in the first.
        mine = [one for one in dict.fromkeys(table["query_id"].to_pylist()) if one in new]
        passage_ids, right_M = zip(*map(new.pop, mine), strict=True) if mine else ((), ())
        contents = corpus.content_hashes(corpus.rows_of(passage_ids)).tolist()
        truth = [None if not right else content not in right[one] for one, content in zip(mine, contents, strict=True)]
        wrong = 1.0 - np.array(right_M, dtype=np.float64)
        decided = Verdicts(wrong, np.full(len(mine), "relabel"), np.ones(len(mine)))
        rows = verdict_table(judge, mine, list(passage_ids), decided, truth)
        part = name.replace(DECIDED, RELABELLED, 1)
        parts[part] = write_table(output, part, rows)
        counts["relabelled"] += len(mine)
        counts["relabelled_right"] += truth.count(False)
    return parts, counts if right else {"relabelled": counts["relabelled"]}


def _new_passages(
    judge: Relabel, pairs: pa.Table, data: Dataset, corpus: Corpus, runs: Sequence[Run], split: str, scale: float
) -> dict[str, tuple[str, float]]:
    """The other passage of each query that gets one, and how probably it is right."""
    kept: dict[str, bool] = {}
    trusted: dict[str, bool] = {}
    columns = (pairs[name].to_pylist() for name in ("query_id", "action", "log_posterior"))
    for query_id, action, log_posterior in zip(*columns, strict=True):
        kept[query_id] = kept.get(query_id, False) or action == "keep"
        trusted[query_id] = trusted.get(query_id, True) and log_posterior > np.log(judge.sure)
    fold_of = dict(zip(pairs["query_id"].to_pylist(), pairs["fold"].to_pylist(), strict=True))
    best: dict[str, tuple[str, float]] = {}
    for at, run in enumerate(runs):
        mine = {one for one, fold in fold_of.items() if fold == at}
        best |= _best_others(run, mine, data, corpus, split, scale)
    ids = list(best)
    right_Q = probably_right(
        np.array([best[one][1] for one in ids]),
        np.array([not kept[one] for one in ids], dtype=np.bool_),
        np.array([trusted[one] for one in ids], dtype=np.bool_),
        np.array([fold_of[one] for one in ids], dtype=np.int64),
    )
    return {one: (best[one][0], p) for one, p in zip(ids, right_Q.tolist(), strict=True) if p > judge.sure}


def _best_others(
    run: Run, query_ids: set[str], data: Dataset, corpus: Corpus, split: str, scale: float
) -> dict[str, tuple[str, float]]:
    """The best passage that a query is not annotated with, and how little it stands out."""
    known = positives_of(data, split, list(query_ids))
    found: dict[str, tuple[str, float]] = {}
    for part in run.parts():
        for query_id, rows in by_query(part).items():
            if query_id not in query_ids:
                continue
            passage_ids = rows["passage_id"].to_pylist()
            contents = corpus.content_hashes(corpus.rows_of([*known[query_id], *passage_ids]))
            mine, others = np.split(contents, [len(known[query_id])])
            _, first = np.unique(others, return_index=True)
            left = np.sort(first[~np.isin(others[first], mine)])
            if len(left) > 1:
                scores_K = rows["score"].to_numpy()[left]
                found[query_id] = passage_ids[left[0]], stands_out(scores_K, scale)
    return found


def _known_right(pairs: pa.Table, data: Dataset, corpus: Corpus, split: str) -> dict[str, set[int]]:
    """Contents of the passages that are known to be right, by query; empty if nothing is known."""
    if pairs["truth"].null_count:
        return {}
    judged = relevant(data.qrels(split))
    originals = judged["original_passage_id"].to_pylist()
    right: dict[str, set[int]] = {}
    ids = [original or passage_id for (_, passage_id), original in zip(pairs_of(judged), originals, strict=True)]
    contents = corpus.content_hashes(corpus.rows_of(ids)).tolist()
    for query_id, content in zip(judged["query_id"].to_pylist(), contents, strict=True):
        right.setdefault(query_id, set()).add(content)
    return right
