"""What the browser of queries shows of an evaluation: measures by query, and what each system found."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from raydr.artefacts.evaluation import PER_QUERY
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run, by_query
from raydr.data.annotations import positives_of, query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_parquet
from raydr.data.tables import of_queries
from raydr.pages.evaluation import telling_measure
from raydr.pages.html import BrowsedQuery, QueryBrowser, measure_name
from raydr.store.artifact import Artifact
from raydr.store.manifest import MANIFEST

#: Queries on a page, those on which systems differ most; passages of each system, and characters of a passage.
NUM_QUERIES, TOP, TEXT = 300, 5, 300


def browse(places: Places, evaluation: Artifact) -> QueryBrowser | None:
    """What an evaluation's systems found; None if something that it was made from is gone.

    Args:
        places: of its working folder.
        evaluation: the artefact.
    """
    identity = evaluation.manifest.identity
    systems, split = list(identity.config["systems"]), str(identity.config["split"])
    roles = {"dataset": "dataset", "corpus": "corpus", **{f"runs/{system}": "run" for system in systems}}
    folders = {role: places.folder(kind, identity.inputs[role]) for role, kind in roles.items()}
    if not all(folder.exists(MANIFEST) for folder in folders.values()):
        return None
    opened = {role: Artifact.open(folder, roles[role]) for role, folder in folders.items()}
    data, corpus = Dataset(opened["dataset"]), Corpus(opened["corpus"])
    values = read_parquet(evaluation.local(PER_QUERY))
    names = values["measure"].unique().to_pylist()
    measure = telling_measure(names)
    table = values.filter(pc.equal(values["measure"], measure)).to_pandas()
    table = table.pivot(index="query_id", columns="system", values="value")
    table = table[systems].dropna()
    spread = table.max(axis=1) - table.min(axis=1)
    chosen = table.iloc[np.argsort(-spread.to_numpy(), kind="stable")[:NUM_QUERIES]]
    ids = [str(query_id) for query_id in chosen.index]
    top_of_system = {system: _top(Run(opened[f"runs/{system}"]), ids) for system in systems}
    passages = sorted(
        {passage_id for of_query in top_of_system.values() for top in of_query.values() for passage_id in top}
    )
    rows = corpus.find(passages)
    texts = corpus.texts(rows)
    positives = positives_of(data, split, ids)
    queries = []
    for query_id, text in zip(ids, query_texts(data, split, ids), strict=True):
        measured = [round(value, 4) for value in chosen.loc[query_id]]
        queries.append(
            BrowsedQuery(text, positives.get(query_id, []), measured, [of[query_id] for of in top_of_system.values()])
        )
    begun = {
        passage_id: (title, text[:TEXT] + ("…" if len(text) > TEXT else ""))
        for passage_id, title, text in zip(passages, texts.titles, texts.texts, strict=True)
    }
    return QueryBrowser(systems, measure_name(measure), queries, len(table), begun)


def _top(run: Run, query_ids: list[str]) -> dict[str, list[str]]:
    """The best passages of some queries; none for those that the run has not."""
    top: dict[str, list[str]] = {query_id: [] for query_id in query_ids}
    for part in run.parts():
        rows = of_queries(part.filter(pc.less_equal(part["rank"], TOP)), query_ids)
        if len(rows):
            top |= {query_id: ranking["passage_id"].to_pylist() for query_id, ranking in by_query(rows).items()}
    return top
