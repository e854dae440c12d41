"""Hard negatives out of a run, or out of what came with the data, with their provenance.

Artefact ``negatives``::

    negatives/SPLIT/part-*.arrow    negatives(query_id, passage_id, miner, round, rank, score, ...)

One part for each part of the run. ``rank`` and ``score`` are those of the run, before anything was dropped;
``positive_score`` is that of the query's best ranked positive, null if the run has none of them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import RANDOM_MINER, read_arrow, to_table, write_arrow
from raydr.errors import ConfigError, DataError
from raydr.negatives.config import NegativesConfig
from raydr.negatives.mining import Kept, MiningCounts, keep_negatives
from raydr.runtime.console import say, show_summary, warn
from raydr.stages.runs import Run
from raydr.stages.tasks import results
from raydr.store.artifact import Artifact, Identity, Part, begin, record_part
from raydr.store.folder import Folder, write_part

#: The miner that takes the negatives that came with the data set.
SOURCE = "source"


def mine(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    run: Folder | None,
    output: Folder,
    miner: str,
    round: int = 0,
    overwrite: bool = False,
) -> Artifact:
    """Keep the candidates that are neither a known positive nor a copy of one.

    Args:
        config: ``negatives.first_rank`` and ``negatives.depth`` are the window that is kept, counted over what is left
            after dropping.
        split: the split whose queries the run answers.
        dataset: judgments, and for the miner ``source`` the candidates.
        corpus: the passages.
        run: the ranked candidates; None for the miner ``source``.
        output: where the artefact goes.
        miner: who proposed the candidates: ``bm25``, ``ann``, ... or ``source``; kept in each row.
        round: refresh round; kept in each row.
        overwrite: replace what is at ``output``.

    Raises:
        ConfigError: the config has no section ``negatives``, or run and miner do not fit.
        DataError: the run has queries that the split has not, or passages that the corpus has not.
    """
    import ray

    settings = config.negatives
    if settings is None:
        raise ConfigError("mining needs a section negatives in the config, for example negatives: {depth: 30}")
    if (run is None) != (miner == SOURCE):
        raise ConfigError(f"miner {miner!r} {'needs a run' if run is None else 'takes no run'}")
    data = Dataset.open(dataset)
    candidates = Run.open(run) if run is not None else None
    identity = Identity(
        kind="negatives",
        config={
            "split": split,
            "miner": miner,
            "round": round,
            "first_rank": settings.first_rank,
            "depth": settings.depth,
        },
        inputs={"dataset": data.fingerprint} | ({"run": candidates.fingerprint} if candidates else {}),
    )
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"negatives {output}: already there with the same fingerprint, reused")
            return state
        num_queries = data.queries(split).num_rows
        sources = candidates.part_names if candidates else data.artifact.parts(f"queries/{split}")
        job = ray.remote(num_cpus=1)(_mine_part)
        # Counts are not stored with the parts, so a resumed run makes its (few, cheap) parts again.
        pending = [
            job.remote(settings, split, dataset, corpus, run, source, output, _part(split, at), miner, round)
            for at, source in enumerate(sources)
        ]
        totals = MiningCounts()
        for name, part, counts in results(pending, f"mine: {miner}", "parts"):
            state.done[name] = Part.model_validate(part)
            totals.add(counts)
        # Queries that the run has no row for have no negatives either.
        totals.queries_without_negatives += num_queries - totals.queries
        totals.queries = num_queries
        info = {"miner": miner, "round": round, "split": split, **asdict(totals)}
        made = state.finish(info, run_config=config.model_dump(mode="json"))
    _report(totals, settings, miner, output)
    return made


def _part(split: str, number: int) -> str:
    return f"negatives/{split}/part-{number:05d}.arrow"


def _report(totals: MiningCounts, settings: NegativesConfig, miner: str, output: Folder) -> None:
    show_summary(
        f"negatives mined by {miner}",
        {name.replace("_", " "): f"{value:,}" for name, value in asdict(totals).items()} | {"at": str(output)},
    )
    if totals.queries_without_negatives:
        warn(
            f"{totals.queries_without_negatives} of {totals.queries} queries have no mined negative: "
            f"lower negatives.first_rank ({settings.first_rank}) or search deeper (search.top_k)"
        )


def _mine_part(
    settings: NegativesConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    run: Folder | None,
    source: str,
    output: Folder,
    name: str,
    miner: str,
    round: int,
) -> tuple[str, dict[str, Any], MiningCounts]:
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    table = (
        _source_candidates(data, split, source)
        if run is None
        else _run_candidates(Run.open(run), source, data, split, miner, round)
    )
    positions: dict[str, list[int]] = defaultdict(list)
    if run is None:
        positions.update({query_id: [] for query_id in _query_ids(data, source)})
    for at, query_id in enumerate(table["query_id"].to_pylist()):
        positions[query_id].append(at)
    positives = _positives(data, split, list(positions))
    passage_ids, scores = table["passage_id"].to_pylist(), table["score"].to_pylist()
    hashes = passages.content_hashes(passages.rows_of(passage_ids))
    counts = MiningCounts()
    kept_rows: list[int] = []
    positive_scores: list[float | None] = []
    for query_id, rows in positions.items():
        known = positives.get(query_id, [])
        kept = _keep(passages, passage_ids, hashes, rows, known, settings)
        counts.count(kept, settings.depth)
        kept_rows.extend(rows[at] for at in kept.positions)
        found = (scores[at] for at in rows if passage_ids[at] in known)
        positive_scores.extend([next(found, None)] * len(kept.positions))
    mined = table.take(pa.array(kept_rows, type=pa.int64()))
    if run is not None:
        mined = _with_positive_scores(mined, positive_scores)
    record = write_part(output, name, mined.num_rows, lambda path: write_arrow(mined, path))
    record_part(output, name, record)
    return name, record, counts


def _with_positive_scores(mined: pa.Table, scores: list[float | None]) -> pa.Table:
    at = mined.schema.get_field_index("positive_score")
    return mined.set_column(at, mined.schema.field(at), pa.array(scores, type=pa.float32()))


def _keep(
    corpus: Corpus,
    passage_ids: list[str],
    hashes: np.ndarray,
    rows: list[int],
    positives: list[str],
    settings: NegativesConfig,
) -> Kept:
    return keep_negatives(
        [passage_ids[at] for at in rows],
        hashes[rows],
        set(positives),
        corpus.content_hashes(corpus.rows_of(positives)),
        settings.first_rank,
        settings.depth,
    )


def _run_candidates(run: Run, part: str, data: Dataset, split: str, miner: str, round: int) -> pa.Table:
    ranked = run.part(part)
    known = set(data.queries(split)["query_id"].to_pylist())
    unknown = [query_id for query_id in pc.unique(ranked["query_id"]).to_pylist() if query_id not in known]
    if unknown:
        raise DataError(
            f"the run at {run.artifact.folder} has {len(unknown)} queries in {part} that split {split!r} has not, the "
            f"first is {unknown[0]!r}: give the split that was searched"
        )
    return to_table("negatives", ({**row, "miner": miner, "round": round} for row in ranked.to_pylist()))


def _query_ids(data: Dataset, part: str) -> list[str]:
    ids: list[str] = read_arrow(data.artifact.local(part))["query_id"].to_pylist()
    return ids


def _source_candidates(data: Dataset, split: str, part: str) -> pa.Table:
    """The data set's own negatives of the queries of one part, in order of query and rank; random ones come last."""
    table = data.negatives(split)
    mine = table.filter(pc.is_in(table["query_id"], value_set=pa.array(_query_ids(data, part), type=pa.string())))
    mine = mine.append_column("random", pc.equal(mine["miner"], RANDOM_MINER))
    order = [("query_id", "ascending"), ("random", "ascending"), ("rank", "ascending")]
    return mine.sort_by(order).drop_columns(["random"])


def _positives(data: Dataset, split: str, query_ids: list[str]) -> dict[str, list[str]]:
    qrels = data.qrels(split)
    wanted = pc.and_(
        pc.is_in(qrels["query_id"], value_set=pa.array(query_ids, type=pa.string())),
        pc.greater(qrels["relevance"], 0),
    )
    found: dict[str, list[str]] = defaultdict(list)
    for row in qrels.filter(wanted).select(["query_id", "passage_id"]).to_pylist():
        found[row["query_id"]].append(row["passage_id"])
    return found
