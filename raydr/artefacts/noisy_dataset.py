"""A copy of a data set whose training split is noisy on purpose, with the truth in its columns."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from raydr.artefacts.declaration import artefact
from raydr.console import show_summary
from raydr.data.config import NoiseInjectionConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import inject_false_negatives, inject_mismatched, inject_near
from raydr.data.tables import passages_by_query, relevant
from raydr.distributed.parts import copy_part, write_table
from raydr.distributed.pool import Pool
from raydr.negatives.bm25 import INDEX_FILES, BM25Index, CorpusStatistics, build_shard
from raydr.negatives.config import BM25Config
from raydr.negatives.terms import Analyzer, join_passage
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder
from raydr.store.manifest import Part

#: Rows of one part of the tables that are written anew.
_PART_ROWS = 100_000


@artefact("dataset", rows=lambda of: of.dataset.rows(f"qrels/{of.split}"))
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
    """Make a ``dataset`` artefact like ``dataset`` with noise in its training split.

    Near passages are BM25's, since a data set depends on no model. Nothing else changes: queries, the other splits and
    what else the data set holds are copied. What was replaced or planted is said by the columns ``noise`` and
    ``original_passage_id``, see :mod:`raydr.data.noise_injection`. With share 0 all tables are as they were.

    Args:
        making: the noisy data set.
        pool: where it is made.
        dataset: a data set without injected noise.
        corpus: the corpus it was made with.
        settings: which noise, and how much.
        split: the training split.
        seed: decides which queries become noisy, and how.

    Returns:
        ``noise``, ``share`` and ``split`` as asked for, ``eligible_queries``, ``noisy_queries`` and ``noisy_rows``.

    Raises:
        DataError: the data set has no such split, injected noise already, was made with another corpus, or
            nothing that this kind of noise can be made of.
    """
    data = Dataset(dataset)
    data.require_corpus(corpus)
    done = sorted(making.done)
    parts, counts = pool.run(_make, settings, seed, split, data, Corpus(corpus), making.folder, done)
    making.done.update(parts)
    facts = {
        "share asked for": f"{settings.share:.1%}",
        "queries that could be made noisy": f"{counts['eligible_queries']:,}",
        "queries made noisy": f"{counts['noisy_queries']:,}",
        "judgments "
        + ("planted as negatives" if settings.kind == "false_negatives" else "replaced"): f"{counts['noisy_rows']:,}",
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
    """Copy what stays, write what changes; returns parts and counts. A resume writes the new tables again: cheap."""
    qrels, negatives = data.qrels(split), data.negatives(split)
    positives = list(dict.fromkeys(qrels["passage_id"].to_pylist()))
    hashes = corpus.content_hashes(corpus.rows_of(positives)).tolist()
    inject = inject_mismatched if settings.kind == "mismatched" else inject_false_negatives
    if settings.kind == "near":
        inject = partial(inject_near, ranked=_ranked(data, corpus, split, settings.ranks[1]), ranks=settings.ranks)
    injected = inject(qrels, negatives, dict(zip(positives, hashes, strict=True)), settings.share, seed)
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


def _ranked(data: Dataset, corpus: Corpus, split: str, depth: int) -> dict[str, list[str]]:
    """Return the best positives of the split for each of its queries by BM25, enough to leave out the query's own."""
    qrels, queries = data.qrels(split), data.queries(split)
    passage_ids = sorted({passage_id for own in passages_by_query(relevant(qrels)).values() for passage_id in own})
    texts = corpus.texts(corpus.rows_of(passage_ids))
    settings = BM25Config()
    terms = Analyzer(settings).count(map(join_passage, texts.titles, texts.texts))
    statistics = CorpusStatistics(len(terms.sizes), terms.num_tokens, [terms.frequencies()])
    known = [passages_by_query(table) for table in (qrels, data.negatives(split))]
    most_known = sum(max(map(len, passages.values()), default=0) for passages in known)
    with tempfile.TemporaryDirectory(prefix="raydr-bm25-") as scratch:
        build_shard([lambda: terms], statistics, settings, scratch)
        index = BM25Index([{name: str(Path(scratch) / name) for name in INDEX_FILES}], [0], settings)
        hits = index.search(queries["text"].to_pylist(), depth + most_known)
    return {
        query_id: [passage_ids[row] for row in of_query.rows.tolist()]
        for query_id, of_query in zip(queries["query_id"].to_pylist(), hits, strict=True)
    }
