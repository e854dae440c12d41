"""A copy of a data set whose training split is noisy on purpose, with the truth in its columns."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from raydr.data.config import NoiseInjectionConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import inject_false_negatives, inject_mismatched
from raydr.data.schema import write_arrow
from raydr.runtime.console import show_summary
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact, Building, Part, write_and_record
from raydr.store.folder import Folder

#: Rows of one part of the tables that are written anew.
_PART_ROWS = 100_000


@dataclass(frozen=True)
class _Made:
    """What the worker did."""

    parts: dict[str, Part]
    eligible_queries: int
    noisy_queries: int
    noisy_rows: int


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

    Nothing else changes: queries, the other splits and what else the data set holds are copied. What was replaced
    or planted is said by the columns ``noise`` and ``original_passage_id``, see
    :mod:`raydr.data.noise_injection`. With share 0 all tables are as they were.

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
    Dataset(dataset).require_corpus(corpus)
    made: _Made = pool.run(_make, settings, seed, split, dataset, corpus, making.folder, sorted(making.done))
    making.done.update(made.parts)
    show_summary(
        f"noise injected into {split}: {settings.kind}",
        {
            "share asked for": f"{settings.share:.1%}",
            "queries that could be made noisy": f"{made.eligible_queries:,}",
            "queries made noisy": f"{made.noisy_queries:,}",
            "judgments " + ("replaced" if settings.kind == "mismatched" else "planted as negatives"): (
                f"{made.noisy_rows:,}"
            ),
            "at": str(making.folder),
        },
    )
    counts = {name: value for name, value in asdict(made).items() if name != "parts"}
    return {"noise": settings.kind, "share": settings.share, "split": split, **counts}


def _make(
    settings: NoiseInjectionConfig,
    seed: int,
    split: str,
    dataset: Artifact,
    corpus: Artifact,
    output: Folder,
    done: list[str],
) -> _Made:
    """Copy what stays, write what changes. The new tables are cheap, so a resume writes them again."""
    data, passages = Dataset(dataset), Corpus(corpus)
    qrels, negatives = data.qrels(split), data.negatives(split)
    positives = list(dict.fromkeys(qrels["passage_id"].to_pylist()))
    hashes = passages.content_hashes(passages.rows_of(positives)).tolist()
    inject = inject_mismatched if settings.kind == "mismatched" else inject_false_negatives
    injected = inject(qrels, negatives, dict(zip(positives, hashes, strict=True)), settings.share, seed)
    parts: dict[str, Part] = {}
    changed = (f"qrels/{split}/", f"negatives/{split}/")
    for name in data.artifact.parts():
        if name not in done and not name.startswith(changed):
            rows = data.artifact.manifest.parts[name].rows
            parts[name] = write_and_record(output, name, rows, partial(_copy, data.artifact.local(name)))
    for prefix, table in zip(changed, (injected.qrels, injected.negatives), strict=True):
        for at, start in enumerate(range(0, len(table), _PART_ROWS)):
            piece = table.slice(start, _PART_ROWS)
            name = f"{prefix}part-{at:05d}.arrow"
            parts[name] = write_and_record(output, name, len(piece), partial(write_arrow, piece))
    return _Made(parts, injected.num_eligible_queries, injected.num_noisy_queries, injected.num_noisy_rows)


def _copy(source: str, path: str) -> None:
    shutil.copyfile(source, path)
