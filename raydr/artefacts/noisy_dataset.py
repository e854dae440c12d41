"""Data set with injected noise in its training split, and the truth in its columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts.declaration import artefact
from raydr.console import show_summary
from raydr.data import Corpus, Dataset
from raydr.data.config import NoiseInjectionConfig
from raydr.data.noise_injection import (
    CleanSplit,
    inject_false_negatives,
    inject_judged,
    inject_mismatched,
    inject_near,
)
from raydr.data.rows import join_passage
from raydr.distributed.parts import copy_part, write_table
from raydr.distributed.pool import Pool
from raydr.negatives.bm25 import index_texts
from raydr.negatives.config import BM25Config
from raydr.store import Artifact, Building, Folder, Part

#: Effect on judgments, by kind of noise; other kinds replace them.
_CHANGES = {"judged": "taken as right", "false_negatives": "planted as negatives"}
#: Kinds of noise that need only the judgments.
_INJECTIONS = {"mismatched": inject_mismatched, "judged": inject_judged, "false_negatives": inject_false_negatives}
#: Rows of a part of the rewritten tables.
_PART_ROWS = 100_000
#: Queries of a BM25 search.
_BLOCK_QUERIES = 2000


@artefact("dataset", version=2, rows=lambda of: of.dataset.rows(f"qrels/{of.split}"))
def inject_noise(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    *,
    settings: NoiseInjectionConfig,
    split: str,
    seed: int,
) -> dict[str, Any]:
    """Copy a data set and inject noise into its training split.

    BM25 ranks near passages, since a data set depends on no model. Queries and the other splits are copied. The columns
    ``noise`` and ``original_passage_id`` hold the truth, see :mod:`raydr.data.noise_injection`. Share 0 changes no
    table.

    Args:
        making: data set to make.
        pool: pool for the work.
        dataset: data set without injected noise.
        corpus: its corpus.
        settings: kind and share of the noise.
        split: training split.
        seed: seed of the noisy queries and their passages.

    Returns:
        ``noise``, ``share`` and ``split`` of the settings, ``eligible_queries``, ``noisy_queries`` and ``noisy_rows``.

    Raises:
        DataError: the split does not exist, has injected noise, or has no pair that this noise can change.
    """
    data = Dataset(dataset)
    done = sorted(making.done)
    parts, counts = pool.run(_make, settings, seed, split, data, Corpus(corpus), making.folder, done)
    making.done.update(parts)
    facts = {
        "share asked for": f"{settings.share:.1%}",
        "queries that could be made noisy": f"{counts['eligible_queries']:,}",
        "queries made noisy": f"{counts['noisy_queries']:,}",
        "judgments " + _CHANGES.get(settings.kind, "replaced"): f"{counts['noisy_rows']:,}",
    }
    show_summary(f"noise injected into {split}: {settings.kind}", facts)
    return {"noise": settings.kind, "share": settings.share, "split": split, **counts}


def _make(
    settings: NoiseInjectionConfig,
    seed: int,
    split: str,
    data: Dataset,
    corpus: Corpus,
    output: Folder,
    done: list[str],
) -> tuple[dict[str, Part], dict[str, int]]:
    """Copy unchanged parts and write the noisy tables; return parts and counts."""
    qrels = data.qrels(split)
    passage_ids = list(dict.fromkeys(qrels["passage_id"].to_pylist()))
    hashes = corpus.content_hashes(corpus.rows_of(passage_ids)).tolist()
    clean = CleanSplit(
        qrels,
        data.negatives(split),
        dict(zip(passage_ids, hashes, strict=True)),
        data.dropped(split),
        data.query_partitions(split, qrels["query_id"].unique().to_pylist()),
    )
    if settings.kind == "near":
        ranked = _ranked(clean, data.queries(split), corpus, settings.ranks[1])
        injected = inject_near(clean, settings.share, seed, ranked, settings.ranks)
    else:
        injected = _INJECTIONS[settings.kind](clean, settings.share, seed)
    parts: dict[str, Part] = {}
    changed = (f"qrels/{split}/", f"negatives/{split}/")
    for name in data.artifact.parts():
        if name not in done and not name.startswith(changed):
            parts |= copy_part(output, name, data.artifact)
    for prefix, table in zip(changed, (injected.qrels, injected.negatives), strict=True):
        for at, start in enumerate(range(0, len(table), _PART_ROWS)):
            name = f"{prefix}part-{at:05d}.arrow"
            parts[name] = write_table(output, name, table.slice(start, _PART_ROWS))
    return parts, {
        "eligible_queries": injected.num_eligible_queries,
        "noisy_queries": injected.num_noisy_queries,
        "noisy_rows": injected.num_noisy_rows,
    }


def _ranked(clean: CleanSplit, queries: pa.Table, corpus: Corpus, depth: int) -> dict[str, list[str]]:
    """Return the best positives for each query by BM25, within its partition.

    Their number is ``depth`` plus the number of excluded passages.
    """
    passage_ids = np.array(clean.pools.get("", []), dtype=object)
    texts = corpus.texts(corpus.rows_of(passage_ids.tolist()))
    index = index_texts(map(join_passage, texts.titles, texts.texts), BM25Config())
    if index is None:
        return {}
    ranked: dict[str, list[str]] = {}
    partitions = queries["partition"].fill_null("")
    for partition in partitions.unique().to_pylist():
        own = np.array(clean.pools.get(partition, []), dtype=object)
        # Both are sorted.
        among = np.searchsorted(passage_ids, own) if partition else None
        of_partition = queries.filter(pc.equal(partitions, partition))
        for block in of_partition.select(["query_id", "text"]).to_batches(max_chunksize=_BLOCK_QUERIES):
            depths = [depth + len(clean.excluded[query_id]) for query_id in block["query_id"].to_pylist()]
            hits = index.search(block["text"].to_pylist(), max(depths), among)
            for query_id, most, of_query in zip(block["query_id"].to_pylist(), depths, hits, strict=True):
                ranked[query_id] = passage_ids[of_query.rows[:most]].tolist()
    return ranked
