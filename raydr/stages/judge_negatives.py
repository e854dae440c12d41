"""The worker that judges candidate negatives: scores of a unit's queries, verdicts, one Parquet file."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import FALSE_NEGATIVE
from raydr.data.schema import VERDICTS, read_arrow, write_parquet
from raydr.errors import DataError
from raydr.noise.judges.base import FloatArray, IntArray, Judge, ScoredCandidates, Verdicts
from raydr.stages.units import Scoring, Unit, unit_of, write_unit
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder


@dataclass(frozen=True)
class NegativesJob:
    """What every worker of one judging knows; small and picklable."""

    judge: Judge
    split: str
    dataset: Folder
    corpus: Folder
    negatives: Folder
    output: Folder
    #: None: the scores that the candidates were mined with.
    scoring: Scoring | None

    def name_of(self, unit: Unit) -> str:
        return verdicts_name(self.split, unit.number)


def verdicts_name(split: str, number: str) -> str:
    return f"verdicts/{split}/part-{number}.parquet"


@dataclass(frozen=True)
class Candidates:
    """The candidates of some queries, query after query.

    Args:
        table: rows of the table ``negatives``.
        query_ids: the Q queries, in the order of the rows.
        offsets: rows of query i are ``offsets[i]:offsets[i + 1]``.
    """

    table: pa.Table
    query_ids: list[str]
    offsets: IntArray

    @property
    def query_M(self) -> IntArray:
        return np.repeat(np.arange(len(self.query_ids)), np.diff(self.offsets))

    def only(self, keep_Q: np.ndarray) -> Candidates:
        """The candidates of some of the queries."""
        return self._those(keep_Q[self.query_M], keep_Q)

    def undecided(self) -> Candidates:
        """Those that no earlier judge has dropped or relabelled, each once; queries that have none are left out."""
        ids = [self.table["query_id"].to_pylist(), self.table["passage_id"].to_pylist()]
        used_M = pc.is_in(self.table["action"], pa.array(["keep", "down_weight"])).to_numpy()
        seen: set[tuple[str, str]] = set()
        keep_M = np.zeros(len(self.table), dtype=np.bool_)
        for at, pair in enumerate(zip(*ids, strict=True)):
            keep_M[at] = used_M[at] and pair not in seen
            seen.add(pair)
        return self._those(keep_M, np.bincount(self.query_M[keep_M], minlength=len(self.query_ids)) > 0)

    def relabelled(self) -> dict[str, list[str]]:
        """By query, the passages that an earlier judge has made positives."""
        found = self.table.filter(pc.equal(self.table["action"], "relabel"))
        by_query: dict[str, list[str]] = defaultdict(list)
        for query_id, passage_id in zip(found["query_id"].to_pylist(), found["passage_id"].to_pylist(), strict=True):
            by_query[query_id].append(passage_id)
        return by_query

    def _those(self, keep_M: np.ndarray, keep_Q: np.ndarray) -> Candidates:
        sizes = np.bincount(self.query_M[keep_M], minlength=len(self.query_ids))[keep_Q]
        return Candidates(
            self.table.filter(pa.array(keep_M)),
            [query_id for query_id, kept in zip(self.query_ids, keep_Q, strict=True) if kept],
            np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        )


def candidates_of(table: pa.Table, start: int, end: int) -> Candidates:
    """All candidates of the queries whose first row is one of ``start`` to ``end``, wherever their other rows are.

    So each query of a part belongs to exactly one range of rows, whole.
    """
    codes = table["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    # Codes are numbered by first appearance.
    _, first = np.unique(codes, return_index=True)
    mine = np.flatnonzero((first >= start) & (first < end))
    rows = np.flatnonzero(np.isin(codes, mine))
    rows = rows[np.argsort(codes[rows], kind="stable")]
    sizes = np.bincount(codes, minlength=len(first))[mine]
    query_ids = table["query_id"].take(pa.array(first[mine])).to_pylist()
    return Candidates(table.take(pa.array(rows)), query_ids, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))


class JudgeNegatives:
    """An actor that holds the model; every call judges one unit and writes it."""

    def __init__(self, job: NegativesJob) -> None:
        self.job = job
        self.data, self.corpus = Dataset.open(job.dataset), Corpus.open(job.corpus)
        self.negatives = Artifact.open(job.negatives, "negatives")
        self.scorer = job.scoring.open() if job.scoring is not None else None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        unit = unit_of(batch)
        found = candidates_of(read_arrow(self.negatives.local(unit.part)), unit.start, unit.end)
        table = self._judge(found.undecided(), found.relabelled())
        name = self.job.name_of(unit)
        return write_unit(self.job.output, name, table.num_rows, lambda path: write_parquet(table, path))

    def _judge(self, found: Candidates, relabelled: dict[str, list[str]]) -> pa.Table:
        mined = self.scorer is None
        scores_M, positive_Q = _mined_scores(found, self.job.judge.name) if mined else self._score(found, relabelled)
        if positive_Q is not None:
            # Without a positive's score a query cannot be judged; it gets no verdict, which the driver counts.
            known_Q = np.isfinite(positive_Q)
            scores_M, found = scores_M[known_Q[found.query_M]], found.only(known_Q)
            positive_Q = positive_Q[known_Q]
        verdicts = self.job.judge.judge(ScoredCandidates(scores_M, found.offsets, positive_Q))
        return verdict_table(
            self.job.judge,
            found.table["query_id"].to_pylist(),
            found.table["passage_id"].to_pylist(),
            verdicts,
            self._truth(found),
        )

    def _score(self, found: Candidates, relabelled: dict[str, list[str]]) -> tuple[FloatArray, FloatArray | None]:
        """The model's scores of the candidates and, for dual encoders, of each query's best scored positive."""
        scoring, scorer = self.job.scoring, self.scorer
        assert scoring is not None
        assert scorer is not None
        positives: dict[str, list[str]] = {}
        if not scoring.is_cross_encoder:
            judged = positives_of(self.data, self.job.split, found.query_ids)
            positives = {one: [*judged.get(one, []), *relabelled.get(one, [])] for one in found.query_ids}
        owners = [at for at, query_id in enumerate(found.query_ids) for _ in positives.get(query_id, [])]
        positive_ids = [one for query_id in found.query_ids for one in positives.get(query_id, [])]
        passage_ids = found.table["passage_id"].to_pylist() + positive_ids
        unique, passage_P = np.unique(np.asarray(passage_ids, dtype=object), return_inverse=True)
        texts = self.corpus.texts(self.corpus.rows_of(unique.tolist()))
        query_P = np.concatenate([found.query_M, np.array(owners, dtype=np.int64)])
        queries = query_texts(self.data, self.job.split, found.query_ids)
        scores_P = scorer.score(queries, texts, query_P, passage_P.astype(np.int64))
        num = len(found.table)
        if scoring.is_cross_encoder:
            return scores_P, None
        best_Q = np.full(len(found.query_ids), -np.inf)
        np.maximum.at(best_Q, query_P[num:], scores_P[num:])
        return scores_P[:num], best_Q

    def _truth(self, found: Candidates) -> list[bool | None]:
        """Whether a candidate is known to be a false negative, for each; None if no noise was injected."""
        if not self._false_negatives:
            return [None] * len(found.table)
        pairs = zip(found.table["query_id"].to_pylist(), found.table["passage_id"].to_pylist(), strict=True)
        return [pair in self._false_negatives for pair in pairs]

    @cached_property
    def _false_negatives(self) -> set[tuple[str, str]]:
        return known_false_negatives(self.data, self.job.split)


def known_false_negatives(data: Dataset, split: str) -> set[tuple[str, str]]:
    """(query, passage) ids whose passage was planted among the negatives, or was replaced by a mismatched one."""
    # The data set is asked and not the candidates: a miner may have found such a passage by itself.
    planted = data.negatives(split)
    planted = planted.filter(pc.equal(planted["noise"], FALSE_NEGATIVE))
    replaced = data.qrels(split)
    replaced = replaced.filter(pc.is_valid(replaced["original_passage_id"]))
    pairs = [
        *zip(planted["query_id"].to_pylist(), planted["passage_id"].to_pylist(), strict=True),
        *zip(replaced["query_id"].to_pylist(), replaced["original_passage_id"].to_pylist(), strict=True),
    ]
    return set(pairs)


def _mined_scores(found: Candidates, judge: str) -> tuple[FloatArray, FloatArray]:
    """The miner's scores; -inf for the positive of a query that the miner did not retrieve."""
    if found.table["score"].null_count:
        at = int(np.flatnonzero(found.table["score"].is_null().to_numpy())[0])
        row = found.table.slice(at, 1).to_pylist()[0]
        raise DataError(
            f"judge {judge} was told to read the miner's scores, but {found.table['score'].null_count} of "
            f"{len(found.table)} candidates have none, the first is passage {row['passage_id']!r} of query "
            f"{row['query_id']!r} (miner {row['miner']}): set judge.scores to model"
        )
    best_Q = np.full(len(found.query_ids), -np.inf)
    given_M = found.table["positive_score"].to_numpy(zero_copy_only=False).astype(np.float64)
    np.maximum.at(best_Q, found.query_M, np.nan_to_num(given_M, nan=-np.inf))
    return found.table["score"].to_numpy().astype(np.float64), best_Q


def query_texts(data: Dataset, split: str, query_ids: list[str]) -> list[str]:
    """The texts of some queries, in the order given.

    Raises:
        DataError: one of them is not in the split.
    """
    queries = data.queries(split)
    rows = queries.filter(pc.is_in(queries["query_id"], value_set=pa.array(query_ids, type=pa.string())))
    texts = dict(zip(rows["query_id"].to_pylist(), rows["text"].to_pylist(), strict=True))
    missing = [query_id for query_id in query_ids if query_id not in texts]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(query_ids)} queries are not in split {split!r} of the data set at "
            f"{data.artifact.folder}, the first is {missing[0]!r}: give the data set that they were made with"
        )
    return [texts[query_id] for query_id in query_ids]


def positives_of(data: Dataset, split: str, query_ids: list[str]) -> dict[str, list[str]]:
    """The passages judged relevant for some queries."""
    qrels = data.qrels(split)
    wanted = pc.is_in(qrels["query_id"], value_set=pa.array(query_ids, type=pa.string()))
    rows = qrels.filter(pc.and_(wanted, pc.greater(qrels["relevance"], 0)))
    found: dict[str, list[str]] = defaultdict(list)
    for query_id, passage_id in zip(rows["query_id"].to_pylist(), rows["passage_id"].to_pylist(), strict=True):
        found[query_id].append(passage_id)
    return dict(found)


def verdict_table(
    judge: Judge, query_ids: list[str], passage_ids: list[str], verdicts: Verdicts, truth: list[bool | None]
) -> pa.Table:
    """Verdicts as the table that is written."""
    columns = [
        pa.array(query_ids, pa.string()),
        pa.array(passage_ids, pa.string()),
        pa.array([judge.name] * len(query_ids), pa.string()),
        pa.array(verdicts.score.astype(np.float32)),
        pa.array(verdicts.action.tolist(), pa.string()),
        pa.array(verdicts.weight.astype(np.float32)),
        pa.array(truth, pa.bool_()),
    ]
    return pa.Table.from_arrays(columns, schema=VERDICTS)
