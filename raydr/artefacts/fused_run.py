"""Fusion of several systems' runs. Makes a ``run``, and its weights.

Artefact ``fusion_weights``::

    tried.json     mean of the measure on the dev split, by mixture

The manifest holds the chosen weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.run import Run, by_query, check_queries, part_name, rank_rows
from raydr.console import show_summary, warn
from raydr.data import Dataset
from raydr.data.tables import read_arrow, relevance_by_query
from raydr.distributed.parts import RowRange, as_json, make_parts, row_ranges, total_counts, write_contents, write_table
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.evaluation.config import FUSED, FuseConfig
from raydr.evaluation.fusion import Evidence, FloatArray, Ranked, choose_weights, equal_weights, mixtures
from raydr.store import Artifact, Building, Folder, Part

WEIGHTS = "fusion_weights"
#: Queries in a part of the run, whose rows of all runs are held at once.
QUERIES_PER_PART = 5_000
_TRIED = "tried.json"


def fusion_weights(context: Context, settings: FuseConfig, runs: Mapping[str, Node]) -> Node:
    """Return the node of fusion weights chosen on the dev split.

    Args:
        context: config.
        settings: settings of the fusion.
        runs: runs over the dev split, by system.
    """
    split = context.config.data.dev_split
    label, dataset = f"{context.place}fusion-weights", declare_dataset(context)
    return choose_fusion_weights.node(label, dataset=dataset, runs=runs, settings=settings.in_use(), split=split)


def fused(context: Context, settings: FuseConfig, runs: Mapping[str, Node], weights: Node | None, split: str) -> Node:
    """Return the node of the fused run.

    Args:
        context: config.
        settings: settings of the fusion.
        runs: runs over the split, by system.
        weights: weights chosen on dev; None if the settings hold them.
        split: split of the runs.
    """
    # The measure only affects the choice of weights.
    settings = settings.in_use().model_copy(update={"measure": FuseConfig().measure})
    label, dataset = context.label("fuse", split), declare_dataset(context)
    return fuse.node(label, dataset=dataset, runs=runs, weights=weights, settings=settings, split=split)


@artefact(WEIGHTS, rows=lambda of: of.dataset.rows(f"queries/{of.split}") * len(of.settings.systems))
def choose_fusion_weights(
    making: Building, pool: Pool, dataset: Artifact, runs: Mapping[str, Artifact], *, settings: FuseConfig, split: str
) -> dict[str, Any]:
    """Choose the weights of the systems by the judgments of the dev split.

    Args:
        making: ``fusion_weights`` artefact to make.
        pool: pool for the work.
        dataset: data set with the judgments.
        runs: runs over the dev split, by system.
        settings: settings of the fusion, with the measure.
        split: the dev split.

    Raises:
        DataError: the split has no judgments, or a run has no query of it.
    """
    opened = {system: Run(run) for system, run in runs.items()}
    parts, chosen = pool.run(_choose, making.folder, Dataset(dataset), opened, settings, split)
    making.done.update(parts)
    show_summary(
        f"weights of the fusion, by {settings.measure} on {split}",
        {
            **{system: f"{weight:.1f}" for system, weight in zip(opened, chosen["weights"], strict=True)},
            settings.measure: f"{chosen['value']:.4f}",
            "each alone": ", ".join(f"{system} {value:.4f}" for system, value in chosen["alone"].items()),
        },
    )
    return dict(chosen)


@artefact("run", rows=lambda of: of.dataset.rows(f"queries/{of.split}") * len(of.settings.systems))
def fuse(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    runs: Mapping[str, Artifact],
    weights: Artifact | None = None,
    *,
    settings: FuseConfig,
    split: str,
) -> dict[str, Any]:
    """Fuse runs over the same queries to the depth of the deepest, see :mod:`raydr.evaluation.fusion`.

    Args:
        making: ``run`` artefact to make.
        pool: pool for the parts.
        dataset: data set of the queries.
        runs: runs by system.
        weights: ``fusion_weights`` artefact; None if the settings hold the weights.
        settings: settings of the fusion.
        split: split of the runs.

    Raises:
        DataError: a run has no query of the split.
    """
    systems = {system: Run(run) for system, run in runs.items()}
    stated = weights.info["weights"] if weights is not None else settings.weights
    weights_S = equal_weights(len(systems)) if stated == "equal" else np.asarray(stated, dtype=np.float64)
    depth = max(int(run.info.get("top_k") or 0) for run in runs.values()) or 1000
    sizes = dataset.sizes(f"queries/{split}")
    calls = {
        part_name(number): (dataset, systems, settings, weights_S, depth, rows)
        for number, rows in enumerate(row_ranges(sizes, QUERIES_PER_PART))
    }
    make_parts(making, pool, _fuse_part, calls, "fuse")
    num_queries, counts = sum(sizes.values()), total_counts(making, calls)
    for number, (system, run) in enumerate(systems.items()):
        check_queries(run, system, counts[f"run {number}"], split)
        missing = num_queries - counts[f"run {number}"]
        if missing:
            warn(f"{system}: {missing:,} of {num_queries:,} queries have no result in its run; the other runs decide")
    shown = dict(zip(systems, weights_S.tolist(), strict=True))
    facts = {system: f"{weight:.2f}" for system, weight in shown.items()}
    show_summary(f"fused on {split} by {settings.by}", facts)
    return {"system": FUSED, "split": split, "top_k": depth, "num_queries": num_queries, "weights": shown}


def _evidence(lists: Sequence[Mapping[str, Ranked]], settings: FuseConfig, query_ids: list[str]) -> dict[str, Evidence]:
    """Return the evidence of the lists of runs on queries."""
    return {
        query_id: Evidence.of([ranking.get(query_id) for ranking in lists], settings.by, settings.rank_offset)
        for query_id in query_ids
    }


def _lists(run: Run, query_ids: list[str]) -> dict[str, Ranked]:
    ranked: dict[str, Ranked] = {}
    for mine in run.of_queries(query_ids):
        for query_id, rows in by_query(mine).items():
            ranked[query_id] = Ranked(rows["passage_id"].to_pylist(), rows["score"].to_numpy())
    return ranked


def _choose(
    folder: Folder, data: Dataset, runs: Mapping[str, Run], settings: FuseConfig, split: str
) -> tuple[dict[str, Part], dict[str, Any]]:
    qrels = relevance_by_query(data.judgments(split))
    if not qrels:
        raise DataError(
            f"split {split!r} of the data set at {data.artifact.folder} has no judgments to choose weights by: set "
            "fuse.weights to equal, or to numbers"
        )
    query_ids = sorted(qrels)
    lists = {system: _lists(run, query_ids) for system, run in runs.items()}
    for system, run in runs.items():
        check_queries(run, system, len(lists[system]), split)
    grid_NS = mixtures(len(runs))

    def means_of(systems: Sequence[str], grid: FloatArray) -> tuple[FloatArray, list[float]]:
        evidence = _evidence([lists[system] for system in systems], settings, query_ids)
        return choose_weights(evidence, qrels, settings.measure, grid)

    best_S, means = means_of(list(runs), grid_NS)
    tried = [{"weights": weights, "mean": mean} for weights, mean in zip(grid_NS.tolist(), means, strict=True)]
    # A mixture with the weight 1 ranks the passages of the other systems too.
    alone = {system: means_of([system], np.ones((1, 1)))[1][0] for system in runs}
    chosen = {"split": split, "systems": list(runs), "weights": best_S.tolist(), "value": max(means), "alone": alone}
    return write_contents(folder, {_TRIED: as_json({"measure": settings.measure, "tried": tried})}), chosen


def _fuse_part(
    folder: Folder,
    name: str,
    dataset: Artifact,
    runs: Mapping[str, Run],
    settings: FuseConfig,
    weights_S: FloatArray,
    depth: int,
    rows: RowRange,
) -> Mapping[str, Part]:
    query_ids = rows.of(read_arrow(dataset.local(rows.part)))["query_id"].to_pylist()
    lists = [_lists(run, query_ids) for run in runs.values()]
    evidence = _evidence(lists, settings, query_ids)
    best = {
        query_id: query_evidence.best(weights_S, depth)
        for query_id, query_evidence in evidence.items()
        if query_evidence.passage_ids
    }
    owners = np.repeat(np.asarray(list(best), dtype=object), [len(ids) for ids, _ in best.values()])
    fused = rank_rows(
        pa.array(owners, pa.string()),
        pa.array([passage_id for ids, _ in best.values() for passage_id in ids], pa.string()),
        pa.array(np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in best.values())])),
    )
    # The name of a system need not be valid as the name of a count.
    counts = {f"run {number}": len(ranking) for number, ranking in enumerate(lists)}
    return {name: write_table(folder, name, fused, counts)}
