"""A prepared data set: queries, judgments and source negatives by split, on top of a corpus.

Artefact ``dataset``::

    queries/SPLIT/part-*.arrow    queries(query_id, text, answers, partition, category); queries/SPLIT/PARTITION/... of
                                  those that have a partition
    qrels/SPLIT/part-*.arrow      qrels(query_id, passage_id, relevance, noise, original_passage_id)
    absent/SPLIT/part-*.arrow     judgments of passages that a search cannot find, as they are not in the corpus
    negatives/SPLIT/part-*.arrow  negatives(...), where the source has hard negatives of its own
    dropped/SPLIT/part-*.arrow    the pairs that judges have dropped, like negatives: these they never are either
    trusted/SPLIT/part-*.arrow    those of the judgments that people have called right

Artefact ``negatives`` (mined or judged) has the last folder alone.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from raydr.data.opened import Opened
from raydr.data.partitions import partition_of
from raydr.data.schema import BY_NAME, SplitTables, read_arrow
from raydr.data.tables import of_queries
from raydr.errors import DataError
from raydr.store.artifact import Artifact
from raydr.store.folder import side_by_side


class Dataset(Opened):
    """Read access to a ``dataset`` artefact."""

    kind = "dataset"

    @property
    def corpus_fingerprint(self) -> str:
        return self.artifact.manifest.identity.inputs["corpus"]

    def require_corpus(self, corpus: Artifact) -> None:
        """Refuse another corpus than that of the data set.

        Raises:
            DataError: it is another.
        """
        if self.corpus_fingerprint != corpus.fingerprint:
            raise DataError(
                f"the data set at {self.artifact.folder} was prepared with corpus {self.corpus_fingerprint}, the "
                f"corpus at {corpus.folder} is {corpus.fingerprint}: give the corpus that was made with it"
            )

    @property
    def splits(self) -> list[str]:
        return sorted({name.split("/")[1] for name in self.artifact.parts("queries")})

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
        """Return all judgments that came with the data: those of evaluation."""
        return pa.concat_tables([self.qrels(split), self.absent(split)])

    def negatives(self, split: str) -> pa.Table:
        """Return the negatives that came with the data; empty if it has none."""
        return read_split(self.artifact, "negatives", split)

    def dropped(self, split: str) -> pa.Table:
        """Return the pairs that judges dropped, as negatives with the action ``drop``; empty if none did."""
        return read_split(self.artifact, "dropped", split)

    def trusted(self, split: str) -> pa.Table:
        """Return the pairs that people have confirmed; empty if there are none."""
        return read_split(self.artifact, "trusted", split)

    def training_tables(self, split: str, mined: Artifact | None = None) -> SplitTables:
        """Return queries, judgments and candidate negatives, and the pairs that must never be negatives.

        Args:
            split: the split.
            mined: a ``negatives`` artefact that takes the place of the data set's own candidates.
        """
        own = ("queries", "qrels", "dropped", *(["negatives"] if mined is None else []))
        side_by_side(self.artifact.local, [name for table in own for name in self.artifact.parts(f"{table}/{split}")])
        candidates = self.negatives(split) if mined is None else read_split(mined, "negatives", split)
        return self.queries(split), self.qrels(split), pa.concat_tables([candidates, self.dropped(split)])

    def _table(self, name: str, split: str) -> pa.Table:
        if split not in self.splits:
            raise DataError(
                f"the data set at {self.artifact.folder} has no split {split!r}; it has {', '.join(self.splits)}"
            )
        return read_split(self.artifact, name, split)


def read_split(artifact: Artifact, name: str, split: str) -> pa.Table:
    """Map all parts of a table of a split, put together."""
    parts = side_by_side(lambda part: read_arrow(artifact.local(part)), artifact.parts(f"{name}/{split}"))
    return pa.concat_tables(parts) if parts else BY_NAME[name].empty_table()
