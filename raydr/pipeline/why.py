"""All data on a query: its positives, its negatives with provenance, all verdicts.

Reads the named artefacts part by part, without Ray.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raydr.artefacts.places import Places
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow
from raydr.errors import DataError
from raydr.noise.judges.base import judge_class
from raydr.pages.query_record import ExplainedPassage, QueryRecord
from raydr.store.artifact import Artifact


def explain_query(places: Places, query_id: str, split: str = "train") -> QueryRecord:
    """Collect the data on a query from the artefacts of a working folder.

    Args:
        places: places of the working folder, whose named candidates and verdicts are read.
        query_id: id of the query.
        split: preferred split if several have the query.

    Raises:
        DataError: no split has the query.
    """
    data = dataset_of(places)
    passages = Corpus(places.open("corpus", "corpus"))
    split, query = _find(data, query_id, split)
    judged = [row for row in _rows(data.qrels(split), query_id) if row["relevance"] > 0]
    provenance: dict[str, list[dict[str, Any]]] = defaultdict(list)
    artifacts, others = artifacts_of(places, data)
    for name, row in _candidates(artifacts, data, split, query_id):
        provenance[row["passage_id"]].append({**row, "artifact": name})
    verdicts = _verdicts(artifacts, split, query_id)
    positive_ids = [row["passage_id"] for row in judged]
    negative_ids = sorted(
        provenance, key=lambda passage_id: (min(place["rank"] for place in provenance[passage_id]), passage_id)
    )
    shown_ids = [*positive_ids, *negative_ids]
    texts = passages.texts(passages.rows_of(shown_ids))
    shown = zip(shown_ids, texts.titles, texts.texts, strict=True)
    explained = [
        ExplainedPassage(passage_id, title, text, verdicts.get(passage_id, ())) for passage_id, title, text in shown
    ]
    positives = [replace(passage, judgment=row) for passage, row in zip(explained, judged, strict=False)]
    negatives = [replace(passage, provenance=provenance[passage.passage_id]) for passage in explained[len(judged) :]]
    answers = tuple(query["answers"] or ())
    return QueryRecord(query_id, split, query["text"], answers, tuple(positives), tuple(negatives), tuple(others))


def _find(data: Dataset, query_id: str, first: str) -> tuple[str, dict[str, Any]]:
    """Return the query's split and row; ``first`` is preferred if several splits have the query."""
    for split in sorted(data.splits, key=lambda name: name != first):
        for row in _rows(data.queries(split), query_id):
            return split, row
    raise DataError(
        f"no split of the data set at {data.artifact.folder} ({', '.join(data.splits)}) has a query {query_id!r}: "
        "see its queries, or the first column of the source, for ids"
    )


def _rows(table: pa.Table, query_id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.filter(pc.equal(table["query_id"], query_id)).to_pylist()
    return rows


def dataset_of(places: Places) -> Dataset:
    """Return the training data set: the noisy one if noise was injected."""
    noisy = places.pointer("dataset-noisy") is not None
    return Dataset(places.open("dataset-noisy" if noisy else "dataset", "dataset"))


def artifacts_of(places: Places, data: Dataset) -> tuple[dict[str, list[tuple[str, Artifact]]], list[str]]:
    """Return the named candidates and verdicts of a data set by kind, and the names of those of others.

    Copies of the data set without dropped pairs belong to it.
    """
    by_kind: dict[str, list[tuple[str, Artifact]]] = {"negatives": [], "verdicts": [], "dataset": []}
    seen: set[str] = set()
    for name in places.names():
        pointer = places.pointer(name)
        if pointer is None or pointer.kind not in by_kind or pointer.key in seen:
            continue
        seen.add(pointer.key)
        by_kind[pointer.kind].append((name, places.open(name, pointer.kind)))
    ours = {data.fingerprint}
    ours |= {
        artifact.fingerprint
        for _, artifact in by_kind.pop("dataset")
        if artifact.manifest.identity.inputs.get("dataset") in ours
    }
    matches = {
        kind: [(name, artifact) for name, artifact in those if artifact.manifest.identity.inputs["dataset"] in ours]
        for kind, those in by_kind.items()
    }
    taken = {name for those in matches.values() for name, _ in those}
    return matches, [name for those in by_kind.values() for name, _ in those if name not in taken]


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
) -> dict[str, list[dict[str, Any]]]:
    verdicts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, artifact in artifacts["verdicts"]:
        score_name = judge_class(artifact.manifest.identity.config["judge"]).score_name
        for part in artifact.parts(f"verdicts/{split}"):
            table = pq.read_table(artifact.local(part), filters=[("query_id", "==", query_id)], partitioning=None)
            for row in table.to_pylist():
                verdicts[row["passage_id"]].append({**row, "artifact": name, "score_name": score_name})
    return verdicts
