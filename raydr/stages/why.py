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

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow
from raydr.errors import DataError
from raydr.noise.judges.base import judge_class
from raydr.store.artifact import MANIFEST, Artifact, Manifest
from raydr.store.folder import Folder


@dataclass(frozen=True)
class GivenVerdict:
    """What one judge said of one passage; ``score_name`` says what its score is, ``artifact`` names where."""

    judge: str
    score_name: str
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
    """One query with its positives and its negatives, these in the order of their best rank.

    ``of_other_data`` names the artefacts that were left out, since they were made of another data set.
    """

    query_id: str
    split: str
    text: str
    answers: tuple[str, ...]
    positives: tuple[ExplainedPassage, ...]
    negatives: tuple[ExplainedPassage, ...]
    of_other_data: tuple[str, ...] = ()


def explain_query(root: Folder, dataset: Folder, corpus: Folder, query_id: str, split: str = "train") -> QueryStory:
    """Collect what the artefacts in a working folder say of one query.

    Args:
        root: the working folder; the candidates and verdicts in it and in the rounds of its refresh are read.
        dataset: the data set that has the query.
        corpus: the passages.
        query_id: the query.
        split: which is meant if several splits have the query.

    Raises:
        DataError: no split has the query.
    """
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    split, query = _find(data, query_id, split)
    judged = [row for row in _rows(data.qrels(split), query_id) if row["relevance"] > 0]
    found: dict[str, list[Provenance]] = defaultdict(list)
    artifacts, others = _artifacts(root, data)
    for name, row in _candidates(artifacts, data, split, query_id):
        fields = {key: value for key, value in row.items() if key not in ("query_id", "passage_id")}
        found[row["passage_id"]].append(Provenance(artifact=name, **fields))
    verdicts = _verdicts(artifacts, split, query_id)
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
    answers = tuple(query["answers"] or ())
    return QueryStory(query_id, split, query["text"], answers, tuple(positives), tuple(negatives), tuple(others))


def _find(data: Dataset, query_id: str, first: str) -> tuple[str, dict[str, Any]]:
    """The split that has the query, and its row there; a query of several splits is shown as ``first`` has it."""
    for split in sorted(data.splits, key=lambda name: name != first):
        for row in _rows(data.queries(split), query_id):
            return split, row
    raise DataError(
        f"no split of the data set at {data.artifact.folder} ({', '.join(data.splits)}) has a query {query_id!r}: "
        "ids are in its queries, and in the first column of the source"
    )


def _rows(table: pa.Table, query_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.filter(pc.equal(table["query_id"], query_id)).to_pylist()
    return rows


def _artifacts(root: Folder, data: Dataset) -> tuple[dict[str, list[tuple[str, Artifact]]], list[str]]:
    """By kind the finished candidates and verdicts of a data set, with their names, and the names of those of others.

    To a data set belong its copies without the pairs that judges have dropped.
    """
    by_kind: dict[str, list[tuple[str, Artifact]]] = {"negatives": [], "verdicts": [], "dataset": []}
    for folder in ("negatives", "verdicts", "refresh"):
        for name in sorted(file for file in root.files(folder) if file.endswith(f"/{MANIFEST}")):
            place = name.removesuffix(f"/{MANIFEST}")
            kind = Manifest.model_validate(root.read_json(name)).identity.kind
            if kind in by_kind:
                by_kind[kind].append((place, Artifact.open(root / place, kind)))
    ours = {data.fingerprint}
    ours |= {one.fingerprint for _, one in by_kind.pop("dataset") if one.manifest.identity.inputs["dataset"] in ours}
    found = {
        kind: [(name, one) for name, one in those if one.manifest.identity.inputs["dataset"] in ours]
        for kind, those in by_kind.items()
    }
    taken = {name for those in found.values() for name, _ in those}
    return found, [name for those in by_kind.values() for name, _ in those if name not in taken]


def _candidates(
    artifacts: dict[str, list[tuple[str, Artifact]]], data: Dataset, split: str, query_id: str
) -> list[tuple[str, dict[str, Any]]]:
    own = [("dataset", row) for of in (data.negatives, data.dropped) for row in _rows(of(split), query_id)]
    mined = [
        (name, row)
        for name, artifact in artifacts["negatives"]
        for part in artifact.parts(f"negatives/{split}")
        for row in _rows(read_arrow(artifact.local(part)), query_id)
    ]
    return own + mined


def _verdicts(
    artifacts: dict[str, list[tuple[str, Artifact]]], split: str, query_id: str
) -> dict[str, list[GivenVerdict]]:
    given: dict[str, list[GivenVerdict]] = defaultdict(list)
    for name, artifact in artifacts["verdicts"]:
        score_name = judge_class(artifact.manifest.identity.config["judge"]).score_name
        for part in artifact.parts(f"verdicts/{split}"):
            table = pq.read_table(artifact.local(part), filters=[("query_id", "==", query_id)], partitioning=None)
            for row in table.to_pylist():
                fields = {key: value for key, value in row.items() if key not in ("query_id", "passage_id")}
                given[row["passage_id"]].append(GivenVerdict(artifact=name, score_name=score_name, **fields))
    return given
