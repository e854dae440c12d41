"""Cross-fitting: folds of a split's pairs, and the training data of a fold's model.

Artefact ``folds``: ``folds/SPLIT/part-00000.parquet`` (query_id, fold), a row for each query with a positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from raydr.artefacts.declaration import artefact
from raydr.console import show_summary
from raydr.data import Corpus, Dataset
from raydr.data.corpus import hash_strings
from raydr.data.tables import of_queries, read_parquet
from raydr.distributed.parts import write_table
from raydr.distributed.pool import Pool
from raydr.noise.folds import IntArray, assign_folds, trained_on
from raydr.seeding import stable_hash64
from raydr.store import Artifact, Building, Folder, Part


@dataclass(frozen=True)
class SplitPairs:
    """Annotated pairs of a split, in the order of its judgments.

    Args:
        qrels: rows of the judgments.
        text_N: hash of each query's text, equal for copies.
        content_N: hash of each passage's content.
        row_N: corpus row of each passage.
    """

    qrels: pa.Table
    text_N: NDArray[np.uint64]
    content_N: NDArray[np.uint64]
    row_N: IntArray

    @classmethod
    def of(cls, data: Dataset, corpus: Corpus, split: str) -> SplitPairs:
        """Read the pairs of a split."""
        judged, queries = data.qrels(split), data.queries(split)
        qrels = judged.filter(pc.greater(judged["relevance"], 0))
        place_N = pc.index_in(qrels["query_id"], value_set=queries["query_id"].combine_chunks()).to_numpy()
        rows = corpus.rows_of_column(qrels["passage_id"])
        return cls(qrels, hash_strings(queries["text"])[place_N], corpus.content_hashes(rows), rows)


@artefact("folds", version=2, rows=lambda of: of.dataset.rows(f"qrels/{of.split}"))
def cut_folds(
    making: Building, pool: Pool, dataset: Artifact, corpus: Artifact, *, split: str, num_folds: int, seed: int
) -> dict[str, Any]:
    """Assign the queries of a split to folds, see :func:`raydr.noise.folds.assign_folds`.

    Args:
        making: ``folds`` artefact to make.
        pool: pool for the work.
        dataset, corpus: data of the pairs.
        split: split of the pairs.
        num_folds: number of folds.
        seed: seed of the assignment.

    Raises:
        DataError: there are fewer queries than folds.
    """
    name = f"folds/{split}/part-00000.parquet"
    if name not in making.done:
        making.done[name] = pool.run(
            _cut_folds, making.folder, name, Dataset(dataset), Corpus(corpus), split, num_folds, seed
        )
    return {"split": split, "num_folds": num_folds, **making.done[name].counts}


def _cut_folds(output: Folder, name: str, data: Dataset, corpus: Corpus, split: str, num_folds: int, seed: int) -> Part:
    pairs = SplitPairs.of(data, corpus, split)
    query_ids = np.asarray(pairs.qrels["query_id"].to_pylist(), dtype=object)
    _, query_N = np.unique(pairs.text_N, return_inverse=True)
    _, passage_N = np.unique(pairs.content_N, return_inverse=True)
    order_N = np.array([stable_hash64("folds", seed, int(text)) for text in pairs.text_N], dtype=np.uint64)
    fold_N = assign_folds(query_N, passage_N, order_N, num_folds)
    ids, first = np.unique(query_ids, return_index=True)
    table = pa.table({"query_id": pa.array(ids.tolist(), pa.string()), "fold": fold_N[first]})
    counts = {f"fold_{fold}": int((fold_N == fold).sum()) for fold in range(num_folds)}
    return write_table(output, name, table, counts)


def fold_of_queries(folds: Artifact, split: str, query_ids: list[str]) -> IntArray:
    """Return the fold of each query, shape (N,)."""
    table = _read(folds, split)
    known = table["query_id"].combine_chunks()
    place_N = pc.index_in(pa.array(query_ids, pa.string()), value_set=known).to_numpy(zero_copy_only=False)
    return np.asarray(table["fold"].to_numpy()[place_N.astype(np.int64)], dtype=np.int64)


def fold_of_texts(folds: Artifact, data: Dataset, split: str) -> dict[str, int]:
    """Return the fold of each query by its text, which copies share."""
    table = _read(folds, split)
    fold_of = dict(zip(table["query_id"].to_pylist(), table["fold"].to_pylist(), strict=True))
    queries = data.queries(split)
    named = zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True)
    return {text: fold_of[query_id] for query_id, text in named if query_id in fold_of}


def _read(folds: Artifact, split: str) -> pa.Table:
    return pa.concat_tables([read_parquet(folds.local(name)) for name in folds.parts(f"folds/{split}")])


@artefact("dataset", rows=lambda of: of.dataset.rows(f"qrels/{of.split}"))
def leave_fold_out(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    folds: Artifact,
    kept: Artifact | None = None,
    *,
    split: str,
    fold: int,
) -> dict[str, Any]:
    """Make a ``dataset`` artefact with only the training pairs of a fold's model.

    Args:
        making: artefact to make.
        pool: pool for the work.
        dataset, corpus: data of the pairs.
        folds: fold of each query.
        kept: data set of the training pairs, if not all; passages of all pairs of the fold are excluded.
        split: split of the pairs.
        fold: excluded fold.
    """
    names = [f"{table}/{split}/part-00000.arrow" for table in ("queries", "qrels")]
    if not set(names) <= making.done.keys():
        made = pool.run(
            _leave_fold_out, making.folder, names, Dataset(dataset), Corpus(corpus), folds, kept, split, fold
        )
        making.done.update(made)
    judgments = making.done[names[1]]
    show_summary(
        f"pairs of {split} without fold {fold + 1}",
        {"left": f"{judgments.rows:,}", "left out": f"{judgments.counts['left_out']:,}"},
    )
    return {"fold": fold, "left_out": judgments.counts["left_out"], "num_queries": making.done[names[0]].rows}


def _leave_fold_out(
    output: Folder,
    names: list[str],
    data: Dataset,
    corpus: Corpus,
    folds: Artifact,
    kept: Artifact | None,
    split: str,
    fold: int,
) -> dict[str, Part]:
    every = SplitPairs.of(data, corpus, split)
    data = data if kept is None else Dataset(kept)
    pairs = every if kept is None else SplitPairs.of(data, corpus, split)
    both = [every, pairs]
    fold_N = np.concatenate(
        [fold_of_queries(folds, split, split_pairs.qrels["query_id"].to_pylist()) for split_pairs in both]
    )
    content_N = np.concatenate([split_pairs.content_N for split_pairs in both]).view(np.int64)
    used_N = trained_on(fold, fold_N, content_N)[len(every.content_N) :]
    qrels = pairs.qrels.filter(pa.array(used_N))
    queries = of_queries(data.queries(split), pc.unique(qrels["query_id"]))
    made = {
        names[0]: write_table(output, names[0], queries),
        names[1]: write_table(output, names[1], qrels, {"left_out": int((~used_N).sum())}),
    }
    dropped, name = of_queries(data.dropped(split), pc.unique(qrels["query_id"])), names[1].replace("qrels", "dropped")
    if len(dropped):
        made[name] = write_table(output, name, dropped)
    return made
