"""Everything that is known about one query: its positives, its negatives with their provenance, all verdicts.

Reads the artefacts of a working folder part by part; needs no Ray.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydr.artifacts import Artifact
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow
from raydr.errors import DataError
from raydr.storage import Folder
from raydr.workspace import finished


@dataclass(frozen=True)
class GivenVerdict:
    """What one judge said of one passage; ``artifact`` names where."""

    judge: str
    score: float
    action: str
    weight: float
    truth: bool | None
    artifact: str


@dataclass(frozen=True)
class Provenance:
    """Where a candidate comes from, and what was made of it in that artefact; as in the table ``negatives``."""

    artifact: str
    miner: str
    round: int
    rank: int
    score: float | None
    positive_score: float | None
    action: str
    weight: float
    noise: str | None


@dataclass(frozen=True)
class ExplainedPassage:
    """One passage and all that was said of it for the query.

    Args:
        passage_id, title, text: the passage.
        verdicts: of all judges, in the order of the artefacts' names.
        provenance: where it was proposed as a negative; empty for positives.
        relevance: as annotated; None for negatives.
        noise: how the annotation was made noisy on purpose; None if it was not.
        original_passage_id: what stood in its place before.
    """

    passage_id: str
    title: str
    text: str
    verdicts: tuple[GivenVerdict, ...]
    provenance: tuple[Provenance, ...] = ()
    relevance: int | None = None
    noise: str | None = None
    original_passage_id: str | None = None


@dataclass(frozen=True)
class QueryStory:
    """One query with its positives and its negatives, these in the order of their best rank."""

    query_id: str
    split: str
    text: str
    answers: tuple[str, ...]
    positives: tuple[ExplainedPassage, ...]
    negatives: tuple[ExplainedPassage, ...]


def explain_query(root: Folder, dataset: Folder, corpus: Folder, query_id: str) -> QueryStory:
    """Collect what the artefacts in a working folder say of one query.

    Args:
        root: the working folder; all that lies in its ``negatives`` and ``verdicts`` is read.
        dataset: the data set that has the query.
        corpus: the passages.
        query_id: the query.

    Raises:
        DataError: no split has the query.
    """
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    split, query = _find(data, query_id)
    judged = [row for row in _rows(data.qrels(split), query_id) if row["relevance"] > 0]
    found: dict[str, list[Provenance]] = defaultdict(list)
    for name, row in _candidates(root, data, split, query_id):
        fields = {key: value for key, value in row.items() if key not in ("query_id", "passage_id")}
        found[row["passage_id"]].append(Provenance(artifact=name, **fields))
    verdicts = _verdicts(root, split, query_id)
    positive_ids = [row["passage_id"] for row in judged]
    negative_ids = sorted(found, key=lambda one: (min(place.rank for place in found[one]), one))
    texts = passages.texts(passages.rows_of([*positive_ids, *negative_ids]))
    titles = dict(zip([*positive_ids, *negative_ids], texts.titles, strict=True))
    contents = dict(zip([*positive_ids, *negative_ids], texts.texts, strict=True))
    positives = [
        ExplainedPassage(
            row["passage_id"],
            titles[row["passage_id"]],
            contents[row["passage_id"]],
            tuple(verdicts.get(row["passage_id"], ())),
            relevance=row["relevance"],
            noise=row["noise"],
            original_passage_id=row["original_passage_id"],
        )
        for row in judged
    ]
    negatives = [
        ExplainedPassage(one, titles[one], contents[one], tuple(verdicts.get(one, ())), tuple(found[one]))
        for one in negative_ids
    ]
    return QueryStory(query_id, split, query["text"], tuple(query["answers"] or ()), tuple(positives), tuple(negatives))


def _find(data: Dataset, query_id: str) -> tuple[str, dict[str, Any]]:
    for split in data.splits:
        for row in _rows(data.queries(split), query_id):
            return split, row
    raise DataError(
        f"no split of the data set at {data.artifact.folder} ({', '.join(data.splits)}) has a query {query_id!r}: "
        "ids are in its queries, and in the first column of the source"
    )


def _rows(table: pa.Table, query_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.filter(pc.equal(table["query_id"], query_id)).to_pylist()
    return rows


def _artifacts(root: Folder, kind: str) -> list[tuple[str, Artifact]]:
    """The finished artefacts of a kind in the working folder, by name."""
    return [(f"{kind}/{name}", Artifact.open(root / kind / name, kind)) for name in finished(root, kind)]


def _candidates(root: Folder, data: Dataset, split: str, query_id: str) -> list[tuple[str, dict[str, Any]]]:
    own = [("dataset", row) for row in _rows(data.negatives(split), query_id)]
    mined = [
        (name, row)
        for name, artifact in _artifacts(root, "negatives")
        for part in artifact.parts(f"negatives/{split}")
        for row in _rows(read_arrow(artifact.local(part)), query_id)
    ]
    return own + mined


def _verdicts(root: Folder, split: str, query_id: str) -> dict[str, list[GivenVerdict]]:
    given: dict[str, list[GivenVerdict]] = defaultdict(list)
    for name, artifact in _artifacts(root, "verdicts"):
        for part in artifact.parts(f"verdicts/{split}"):
            table = pq.read_table(artifact.local(part), filters=[("query_id", "==", query_id)], partitioning=None)
            for row in table.to_pylist():
                fields = {key: value for key, value in row.items() if key not in ("query_id", "passage_id")}
                given[row["passage_id"]].append(GivenVerdict(artifact=name, **fields))
    return given
