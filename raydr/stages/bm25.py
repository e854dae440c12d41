"""BM25 as a first-stage baseline: index a corpus, search the queries of a split.

Artefact ``bm25``::

    index/data.csc.index.npy ...    the files of bm25s, memory-mapped by every searcher

The index is built by one task in the memory of one node, see :mod:`raydr.negatives.bm25` for the sizes. For tens
of millions of passages bring a run from Lucene instead: :func:`raydr.stages.runs.import_trec_run`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow
from raydr.errors import DataError
from raydr.negatives.bm25 import INDEX_FILES, Analyzer, BM25Index, TokenizedTexts, build_index, join_passage
from raydr.negatives.config import BM25Config
from raydr.runtime.console import say
from raydr.stages.runs import KIND, part_name, rank_rows, write_run_part
from raydr.stages.tasks import fetch, results, wait_for
from raydr.store.artifact import Artifact, Identity, Part, begin, record_part
from raydr.store.folder import Folder, write_part

#: Raised when another index comes out of the same settings. 2: words keep their combining marks.
VERSION = 2

#: Queries in one part of the run, and in one task: fixed, so that the parts do not depend on the cluster.
QUERIES_PER_PART = 2000


def bm25(config: RunConfig, corpus: Folder, output: Folder, overwrite: bool = False) -> Artifact:
    """Index a corpus for BM25: its parts are cut into terms in parallel, one task builds the index.

    Raises:
        DataError: no passage has a term.
    """
    import ray

    opened = Corpus.open(corpus)
    identity = Identity(
        kind="bm25", version=VERSION, config=config.bm25.fingerprint_settings(), inputs={"corpus": opened.fingerprint}
    )
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"bm25 {output}: already there with the same fingerprint, reused")
            return state
        tokenize = ray.remote(num_cpus=1)(_tokenize_part)
        tokenized = [tokenize.remote(corpus, at, config.bm25) for at in range(len(opened.part_names))]
        for _ in wait_for(tokenized, "bm25: cut into terms", "parts"):
            pass
        say(f"bm25: indexing {len(opened):,} passages")
        built = fetch(ray.remote(num_cpus=1)(_build).remote(tokenized, config.bm25, output))
        state.done.update({name: Part.model_validate(part) for name, part in built["parts"].items()})
        info = {"num_passages": len(opened), "num_terms": built["num_terms"]}
        return state.finish(info, run_config=config.model_dump(mode="json"))


def search_bm25(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    bm25: Folder,
    output: Folder,
    overwrite: bool = False,
) -> Artifact:
    """Search every query of a split and write a ``run`` with the best ``search.top_k`` passages of each.

    Queries without a term that the corpus has get no rows; evaluation counts them and scores them 0.

    Raises:
        DataError: the index was made for another corpus.
    """
    import ray

    index = Artifact.open(bm25, "bm25")
    opened = Dataset.open(dataset)
    corpus_fingerprint = Corpus.open(corpus).fingerprint
    if index.manifest.identity.inputs["corpus"] != corpus_fingerprint:
        raise DataError(f"the BM25 index at {bm25} was not made from the corpus at {corpus}: run bm25 for this corpus")
    identity = Identity(
        kind=KIND,
        config={"split": split, "top_k": config.search.top_k},
        inputs={"dataset": opened.fingerprint, "bm25": index.fingerprint},
    )
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"run {output}: already there with the same fingerprint, reused")
            return state
        portions = list(_portions(opened, split))
        search = ray.remote(num_cpus=1)(_search_part)
        names = [part_name(number) for number in range(len(portions))]
        pending = [
            search.remote(dataset, corpus, bm25, config.search.top_k, portion, output, name)
            for name, portion in zip(names, portions, strict=True)
            if name not in state.done
        ]
        for name, part in results(pending, "bm25: search", "parts"):
            state.done[name] = Part.model_validate(part)
        info = {
            "system": "bm25",
            "split": split,
            "top_k": config.search.top_k,
            "num_queries": sum(stop - start for _, start, stop in portions),
        }
        return state.finish(info, run_config=config.model_dump(mode="json"))


def _portions(dataset: Dataset, split: str) -> Iterator[tuple[str, int, int]]:
    """(part of the queries, first row, row after the last) of each task."""
    if split not in dataset.splits:
        dataset.queries(split)
    for name in dataset.artifact.parts(f"queries/{split}"):
        rows = dataset.artifact.manifest.parts[name].rows
        for start in range(0, rows, QUERIES_PER_PART):
            yield name, start, min(start + QUERIES_PER_PART, rows)


def _tokenize_part(corpus: Folder, part: int, config: BM25Config) -> TokenizedTexts:
    table = Corpus.open(corpus).part(part)
    texts = (
        join_passage(title, text)
        for title, text in zip(table["title"].to_pylist(), table["text"].to_pylist(), strict=True)
    )
    return Analyzer(config).tokenize(texts)


def _build(tokenized: list[Any], config: BM25Config, output: Folder) -> dict[str, Any]:
    """Index the parts, fetched one after the other, and publish the files."""
    with tempfile.TemporaryDirectory(prefix="raydr-bm25-") as scratch:
        num_terms = build_index((fetch(reference) for reference in tokenized), config, scratch)
        parts = {}
        for file in INDEX_FILES:
            name, made = f"index/{file}", Path(scratch) / file
            parts[name] = write_part(output, name, 0, _mover(made))
            record_part(output, name, parts[name])
    return {"parts": parts, "num_terms": num_terms}


def _mover(made: Path) -> Callable[[str], None]:
    def move(path: str) -> None:
        shutil.move(made, path)

    return move


#: The index that this worker process searched last: the next task of the same index finds it open and compiled.
_opened: dict[str, BM25Index] = {}


def _open_index(folder: Folder) -> BM25Index:
    artifact = Artifact.open(folder, "bm25")
    if artifact.fingerprint not in _opened:
        _opened.clear()
        paths = {file: artifact.local(f"index/{file}") for file in INDEX_FILES}
        _opened[artifact.fingerprint] = BM25Index(paths, BM25Config.model_validate(artifact.manifest.identity.config))
    return _opened[artifact.fingerprint]


def _search_part(
    dataset: Folder, corpus: Folder, bm25: Folder, top_k: int, portion: tuple[str, int, int], output: Folder, name: str
) -> tuple[str, dict[str, Any]]:
    part, start, stop = portion
    queries = read_arrow(Artifact.open(dataset, "dataset").local(part)).slice(start, stop - start)
    hits = _open_index(bm25).search(queries["text"].to_pylist(), top_k)
    counts = [len(one.rows) for one in hits]
    rows = np.concatenate([one.rows for one in hits])
    ranked = rank_rows(
        pa.array(np.repeat(np.asarray(queries["query_id"].to_pylist(), dtype=object), counts), type=pa.string()),
        pa.array(Corpus.open(corpus).ids(rows), type=pa.string()),
        pa.array(np.concatenate([one.scores for one in hits])),
    )
    record = write_run_part(output, name, ranked)
    record_part(output, name, record)
    return name, record
