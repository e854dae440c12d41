"""A prepared data set: queries, judgments and source negatives by split, on top of a corpus.

Artefact ``dataset``::

    queries/SPLIT/part-*.arrow    queries(query_id, text, answers, partition, category); queries/SPLIT/PARTITION/... for
                                  queries with a partition
    qrels/SPLIT/part-*.arrow      qrels(query_id, passage_id, relevance, noise, original_passage_id, source, line)
    absent/SPLIT/part-*.arrow     judgments of passages that are not in the corpus
    negatives/SPLIT/part-*.arrow  negatives(...) that came with the data
    dropped/SPLIT/part-*.arrow    negatives(...): pairs that are never negatives: dropped by judges, a query and the
                                  passage with its id, or a positive of the same text under another query id
    trusted/SPLIT/part-*.arrow    judgments that people have confirmed

Artefact ``negatives`` (mined or judged) has the folder ``negatives`` alone.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.noise_injection import FALSE_NEGATIVE
from raydr.data.parts import ArtifactView, partition_of
from raydr.data.tables import BY_NAME, SplitTables, of_queries, pairs_of, passages_by_query, read_arrow, relevant
from raydr.errors import DataError
from raydr.store import Artifact
from raydr.store.folder import side_by_side


class Dataset(ArtifactView):
    """Read access to a ``dataset`` artefact."""

    kind = "dataset"

    @property
    def corpus_fingerprint(self) -> str:
        return self.artifact.manifest.identity.inputs["corpus"]

    def require_corpus(self, corpus: Artifact) -> None:
        """Check that the data set was prepared with a corpus.

        Raises:
            DataError: it was prepared with another corpus.
        """
        if self.corpus_fingerprint != corpus.fingerprint:
            raise DataError(
                f"the data set at {self.artifact.folder} was prepared with corpus {self.corpus_fingerprint}, the "
                f"corpus at {corpus.folder} is {corpus.fingerprint}: give the corpus that was made with it"
            )

    @property
    def splits(self) -> list[str]:
        return sorted({name.split("/")[1] for name in self.artifact.parts("queries")})

    def require_split(self, split: str) -> None:
        """Check that the data set has a split.

        Raises:
            DataError: the data set has no such split.
        """
        if split not in self.splits:
            raise DataError(
                f"the data set at {self.artifact.folder} has no split {split!r}; it has {', '.join(self.splits)}"
            )

    def queries(self, split: str) -> pa.Table:
        return self._table("queries", split)

    def partitions(self, split: str) -> set[str]:
        """Return the partitions of a split's queries."""
        return {partition_of(part) for part in self.artifact.parts(f"queries/{split}")} - {""}

    def query_partitions(self, split: str, query_ids: Collection[str]) -> dict[str, str]:
        """Return the partition of each of some queries; queries without a partition are left out."""
        if not self.partitions(split):
            return {}
        table = of_queries(self.queries(split).select(["query_id", "partition"]).drop_null(), query_ids)
        return dict(zip(table["query_id"].to_pylist(), table["partition"].to_pylist(), strict=True))

    def qrels(self, split: str) -> pa.Table:
        """Return the judgments of passages that are in the corpus."""
        return self._table("qrels", split)

    def absent(self, split: str) -> pa.Table:
        """Return the judgments of passages that are not in the corpus, or in another partition than their query."""
        return read_split(self.artifact, "absent", split)

    def judgments(self, split: str) -> pa.Table:
        """Return all judgments that came with the data, for evaluation."""
        return pa.concat_tables([self.qrels(split), self.absent(split)])

    def negatives(self, split: str) -> pa.Table:
        """Return the negatives that came with the data; empty if there are none."""
        return read_split(self.artifact, "negatives", split)

    def dropped(self, split: str) -> pa.Table:
        """Return the pairs that are never negatives, with the action ``drop``; empty if there are none."""
        return read_split(self.artifact, "dropped", split)

    def trusted(self, split: str) -> pa.Table:
        """Return the pairs that people have confirmed; empty if there are none."""
        return read_split(self.artifact, "trusted", split)

    def training_tables(self, split: str, mined: Artifact | None = None) -> SplitTables:
        """Return queries, judgments and candidate negatives, and the pairs that must never be negatives.

        Args:
            split: split to read.
            mined: ``negatives`` artefact that replaces the data set's own candidates.
        """
        own = ("queries", "qrels", "dropped", *(["negatives"] if mined is None else []))
        side_by_side(self.artifact.local, [name for table in own for name in self.artifact.parts(f"{table}/{split}")])
        candidates = self.negatives(split) if mined is None else read_split(mined, "negatives", split)
        return self.queries(split), self.qrels(split), pa.concat_tables([candidates, self.dropped(split)])

    def _table(self, name: str, split: str) -> pa.Table:
        self.require_split(split)
        return read_split(self.artifact, name, split)


def read_split(artifact: Artifact, name: str, split: str) -> pa.Table:
    """Map all parts of a split's table, concatenated."""
    parts = side_by_side(lambda part: read_arrow(artifact.local(part)), artifact.parts(f"{name}/{split}"))
    return pa.concat_tables(parts) if parts else BY_NAME[name].empty_table()


def query_texts(data: Dataset, split: str, query_ids: list[str]) -> list[str]:
    """Return the texts of some queries, in their order.

    Raises:
        DataError: a query is not in the split.
    """
    rows = of_queries(data.queries(split), query_ids)
    texts = dict(zip(rows["query_id"].to_pylist(), rows["text"].to_pylist(), strict=True))
    missing = [query_id for query_id in query_ids if query_id not in texts]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(query_ids)} queries are not in split {split!r} of the data set at "
            f"{data.artifact.folder}, the first is {missing[0]!r}: give the data set that they were made with"
        )
    return [texts[query_id] for query_id in query_ids]


def positives_of(data: Dataset, split: str, query_ids: list[str]) -> dict[str, list[str]]:
    """Return the passages judged relevant for some queries."""
    return passages_by_query(relevant(of_queries(data.qrels(split), query_ids)))


def never_negatives_of(data: Dataset, split: str, query_ids: list[str]) -> dict[str, list[str]]:
    """Return the passages that are never negatives of some queries: judged relevant, or dropped."""
    known = positives_of(data, split, query_ids)
    dropped = passages_by_query(of_queries(data.dropped(split), query_ids))
    return {
        query_id: [*known.get(query_id, []), *dropped.get(query_id, [])] for query_id in known.keys() | dropped.keys()
    }


def known_false_negatives(data: Dataset, split: str) -> set[tuple[str, str]]:
    """Return (query, passage) ids whose passage was planted among the negatives or replaced by a mismatched passage."""
    # The data set decides, not the candidates: a miner may propose such a passage by itself.
    planted, replaced = data.negatives(split), data.qrels(split)
    planted = planted.filter(pc.equal(planted["noise"], FALSE_NEGATIVE))
    replaced = replaced.filter(pc.is_valid(replaced["original_passage_id"]))
    return {*pairs_of(planted), *pairs_of(replaced, "original_passage_id")}
