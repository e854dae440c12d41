"""What an audit counts in one part of the verdicts; each call returns a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.data.corpus import Corpus, hash_strings
from raydr.data.dataset import Dataset
from raydr.data.schema import VERDICTS, read_arrow, read_parquet
from raydr.data.tables import of_queries
from raydr.noise.agreement import Agreement, AlignedVerdicts, align
from raydr.noise.false_negative_statistics import FalseNegativeStatistics
from raydr.noise.offenders import Offender, merge_offenders, worst_offenders
from raydr.stages.parts import write_table
from raydr.store.artifact import Artifact, Part
from raydr.store.folder import Folder

#: Verdicts shown of each judge.
NUM_OFFENDERS = 10


@dataclass(frozen=True)
class AuditInputs:
    """What is audited; the verdicts by judge."""

    split: str
    data: Dataset
    corpus: Corpus
    negatives: Artifact | None
    verdicts: dict[str, Artifact]

    def columns(self, judge: str, folder: str, columns: list[str] | None = None) -> list[pa.Table]:
        """The parts of one of the folders of a judge's verdicts."""
        found = self.verdicts[judge]
        return [read_parquet(found.local(name), columns) for name in found.parts(f"{folder}/{self.split}")]


@dataclass(frozen=True)
class AuditFindings:
    """Counts of one part of what was judged, or of all parts.

    Args:
        agreement: of the judges; None if there is no part.
        offenders: the worst ones, by judge.
        all_queries: of judges of negatives: false negatives by judge.
        trusted_queries: the same without the queries whose annotated pair is suspected.
        num_known, num_known_trusted: known false negatives, in all queries and in the trusted ones.
        written: the part that was written, if one was, by name.
    """

    agreement: Agreement | None
    offenders: dict[str, list[Offender]]
    all_queries: dict[str, FalseNegativeStatistics] = field(default_factory=dict)
    trusted_queries: dict[str, FalseNegativeStatistics] = field(default_factory=dict)
    num_known: int = 0
    num_known_trusted: int = 0
    written: dict[str, Part] = field(default_factory=dict)


def add_up(parts: Sequence[AuditFindings], judges: Sequence[str]) -> AuditFindings:
    """The findings of all parts: counts are added, and offenders are put in order."""
    none = FalseNegativeStatistics.none()
    agreements = [found.agreement for found in parts if found.agreement is not None]
    return AuditFindings(
        sum(agreements[1:], agreements[0]) if agreements else None,
        {judge: merge_offenders([found.offenders[judge] for found in parts], NUM_OFFENDERS) for judge in judges},
        {judge: sum((found.all_queries[judge] for found in parts if found.all_queries), none) for judge in judges},
        {judge: sum((found.trusted_queries[judge] for found in parts if found.all_queries), none) for judge in judges},
        sum(found.num_known for found in parts),
        sum(found.num_known_trusted for found in parts),
        {name: part for found in parts for name, part in found.written.items()},
    )


def suspected_queries(inputs: AuditInputs, judges: Sequence[str]) -> NDArray[np.uint64]:
    """Sorted hashes of the ids of the queries with an annotated pair that is flagged.

    Args:
        inputs: what is audited.
        judges: of pairs, each but the first after the one before it: of a pair the last one's word counts.
    """
    found, decided = [np.zeros(0, dtype=np.uint64)], np.zeros(0, dtype=np.uint64)
    for judge in reversed(judges):
        tables = inputs.columns(judge, "verdicts", ["query_id", "passage_id", "action"])
        pairs = [hash_strings(pc.binary_join_element_wise(one["query_id"], one["passage_id"], "\0")) for one in tables]
        for table, hashes in zip(tables, pairs, strict=True):
            flagged = pc.not_equal(table["action"], "keep").to_numpy() & ~np.isin(hashes, decided)
            found.append(hash_strings(table["query_id"].filter(pa.array(flagged))))
        decided = np.concatenate([decided, *pairs])
    return np.unique(np.concatenate(found))


def audit_pairs(inputs: AuditInputs, judges: list[str], judged: str) -> AuditFindings:
    """Agreement and worst offenders of one part of the verdicts on pairs.

    Args:
        inputs: what is audited.
        judges: names of the judges.
        judged: how the names of the verdicts on one part of the pairs begin.
    """
    aligned = _aligned(inputs, judges, judged)
    everything_M = np.ones(len(aligned.query_ids), dtype=np.bool_)
    offenders = {judge: worst_offenders(aligned, judge, NUM_OFFENDERS, everything_M) for judge in judges}
    return AuditFindings(Agreement.of(aligned), offenders)


def audit_negatives(
    inputs: AuditInputs,
    judges: list[str],
    judged: str,
    mined: str,
    suspected: NDArray[np.uint64],
    output: Folder,
    written: str,
) -> AuditFindings:
    """Agreement, false negatives and worst offenders of one part of the verdicts on candidates.

    Queries whose annotated pair is suspected are not searched for offenders, and agreement is not counted there: next
    to a mismatched positive all candidates look like positives.

    Args:
        inputs: what is audited.
        judges: names of the judges.
        judged: how the names of the verdicts on one part of the candidates begin; it holds whole queries.
        mined: the part of the candidates that the queries are in.
        suspected: as from :func:`suspected_queries`.
        output: the folder of the audit.
        written: name of the part to write: (query_id, judge, candidates, flagged, first_rank, suspected).
    """
    aligned = _aligned(inputs, judges, judged)
    query_ids, query_M = np.unique(np.asarray(aligned.query_ids, dtype=object), return_inverse=True)
    assert inputs.negatives is not None
    rank_M = _ranks(aligned, read_arrow(inputs.negatives.local(mined)))
    suspected_Q = np.isin(hash_strings(query_ids.tolist()), suspected)
    trusted_M = ~suspected_Q[query_M]
    everywhere: dict[str, FalseNegativeStatistics] = {}
    trusted: dict[str, FalseNegativeStatistics] = {}
    tables = []
    for at, judge in enumerate(judges):
        judged_M, flagged_M = aligned.judged_JM[at], aligned.flagged_JM[at]
        for found, among_M in ((everywhere, judged_M), (trusted, judged_M & trusted_M)):
            found[judge] = FalseNegativeStatistics.count(query_M[among_M], rank_M[among_M], flagged_M[among_M])
        tables.append(_by_query(judge, query_ids, query_M, rank_M, judged_M, flagged_M, suspected_Q))
    known_M = np.array([truth is True for truth in aligned.truth_M], dtype=np.bool_)
    return AuditFindings(
        Agreement.of(aligned, trusted_M),
        {judge: worst_offenders(aligned, judge, NUM_OFFENDERS, trusted_M) for judge in judges},
        everywhere,
        trusted,
        int(known_M.sum()),
        int((known_M & trusted_M).sum()),
        {written: write_table(output, written, pa.concat_tables(tables))},
    )


def _aligned(inputs: AuditInputs, judges: list[str], judged: str) -> AlignedVerdicts:
    tables = []
    for judge in judges:
        opened = inputs.verdicts[judge]
        mine = [read_parquet(opened.local(name)) for name in opened.parts() if name.startswith(judged)]
        tables.append(pa.concat_tables(mine) if mine else VERDICTS.empty_table())
    return align(judges, tables)


def _ranks(aligned: AlignedVerdicts, mined: pa.Table) -> NDArray[np.int64]:
    """The best rank of each candidate."""
    mined = of_queries(mined, sorted(set(aligned.query_ids)))
    ranks: dict[tuple[str, str], int] = {}
    columns = (mined[name].to_pylist() for name in ("query_id", "passage_id", "rank"))
    for query_id, passage_id, rank in zip(*columns, strict=True):
        ranks[query_id, passage_id] = min(rank, ranks.get((query_id, passage_id), rank))
    pairs = zip(aligned.query_ids, aligned.passage_ids, strict=True)
    return np.array([ranks[pair] for pair in pairs], dtype=np.int64)


def _by_query(
    judge: str,
    query_ids: NDArray[np.object_],
    query_M: NDArray[np.int64],
    rank_M: NDArray[np.int64],
    judged_M: NDArray[np.bool_],
    flagged_M: NDArray[np.bool_],
    suspected_Q: NDArray[np.bool_],
) -> pa.Table:
    num_queries = len(query_ids)
    candidates_Q = np.bincount(query_M[judged_M], minlength=num_queries)
    number_Q = np.bincount(query_M[flagged_M], minlength=num_queries)
    first_Q = np.full(num_queries, np.iinfo(np.int64).max)
    np.minimum.at(first_Q, query_M[flagged_M], rank_M[flagged_M])
    table = pa.table(
        {
            "query_id": pa.array(query_ids, pa.string()),
            "judge": pa.array([judge] * num_queries, pa.string()),
            "candidates": pa.array(candidates_Q, pa.int64()),
            "flagged": pa.array(number_Q, pa.int64()),
            "first_rank": pa.array(first_Q, pa.int64(), mask=number_Q == 0),
            "suspected": pa.array(suspected_Q),
        }
    )
    return table.filter(pa.array(candidates_Q > 0))
