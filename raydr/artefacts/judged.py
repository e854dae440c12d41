"""Verdicts read with the probability of wrong labels, and applied: judged negatives, data sets with fewer pairs.

Inputs are not modified.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_data
from raydr.console import show_summary, warn
from raydr.data import Dataset
from raydr.data.tables import pairs_of, read_arrow, read_parquet, to_table
from raydr.distributed.parts import copy_part, make_parts, total_counts, write_table
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.noise.chain import STRENGTH, judge_negatives, split_pairs
from raydr.noise.evidence import Edge, evidence
from raydr.noise.judges.base import BoolArray, FloatArray, SecondJudge, judge_class
from raydr.store import Artifact, Building, Folder, Part

#: Folders of the parts of ``verdicts``: verdicts, measures, basis of the decisions.
VERDICTS, MEASURES, DETECTION = "verdicts", "measures", "detection"
#: Tables by part name.
Tables = dict[str, pa.Table]


def read_verdicts(artifact: Artifact, split: str, of_part: int | None = None) -> tuple[Tables, FloatArray | None]:
    """Read the verdicts of a judge on a split.

    Args:
        artifact: ``verdicts`` artefact.
        split: judged split.
        of_part: index of a judged part whose verdicts are read; None: all.

    Returns:
        Tables by part name, and P(wrong label) of all rows; None if the judge gives none.
    """

    def read(folder: str) -> Tables:
        start = f"{folder}/{split}/part-" + (f"{of_part:05d}-" if of_part is not None else "")
        names = [name for name in artifact.parts(f"{folder}/{split}") if name.startswith(start)]
        return {name: read_parquet(artifact.local(name)) for name in names}

    tables, rests_on = read(VERDICTS), [*read(DETECTION).values()]
    if judge_class(artifact.manifest.identity.config["judge"]).score_is_probability:
        scores = [table["score"].to_numpy() for table in tables.values()]
        return tables, np.concatenate([np.zeros(0), *scores]).astype(np.float64)
    if rests_on and "probability" in rests_on[0].column_names:
        return tables, pa.concat_tables(rests_on)["probability"].to_numpy()
    return tables, None


@dataclass(frozen=True)
class Earlier:
    """Verdicts of an earlier judge of a chain; picklable.

    Args:
        verdicts: verdicts of the earlier judge.
        split: judged split.
        edge: edge of all its verdicts; None if it gives probabilities.
        threshold: log-odds of a wrong label that count as 0.
    """

    verdicts: Artifact
    split: str
    edge: Edge | None = None
    threshold: float = 0.0

    def read(self, of_part: int | None = None) -> tuple[Tables, FloatArray]:
        """Return the verdicts by part, and the log-odds of wrong labels of all rows; see :func:`read_verdicts`."""
        tables, probability_N = read_verdicts(self.verdicts, self.split, of_part)
        if not any(map(len, tables.values())):
            return tables, np.zeros(0)
        together = pa.concat_tables(tables.values())
        return tables, evidence(together["score"].to_numpy(), _flagged(together), probability_N, self.edge)

    def suspected(self, judge: SecondJudge, of_part: int) -> dict[tuple[str, str], float]:
        """Return P(wrong label) of the (query, passage) ids of a part that a later judge reads.

        Args:
            judge: later judge.
            of_part: index of the part.
        """
        from scipy.special import expit

        tables, evidence_N = self.read(of_part)
        if not tables:
            return {}
        rows = judge.choose(evidence_N)
        doubtful = pa.concat_tables(tables.values()).take(pa.array(rows))
        return dict(zip(pairs_of(doubtful), expit(evidence_N[rows] - self.threshold).tolist(), strict=True))


def open_earlier(verdicts: Artifact, split: str) -> Earlier:
    """Read what later judges need of all verdicts on a split."""
    tables, probability_N = read_verdicts(verdicts, split)
    if probability_N is not None or not any(map(len, tables.values())):
        return Earlier(verdicts, split)
    together = pa.concat_tables(table.select(["score", "action"]) for table in tables.values())
    return Earlier(verdicts, split, Edge.of(together["score"].to_numpy(), _flagged(together)))


def _flagged(verdicts: pa.Table) -> BoolArray:
    return np.asarray(pc.not_equal(verdicts["action"], "keep").to_numpy())


#: Miner of the pairs that judges drop, in the table ``dropped``.
DROPPED_PAIR = "pair"
_PAIR = ["query_id", "passage_id"]
#: Further judgments of a data set.
_ASIDE = ("dropped", "trusted")


def judged(context: Context, negatives: Node, verdicts: Mapping[str, Node], split: str) -> Node:
    """Return the node of the candidates with the actions and weights of the verdicts, by judge."""
    label = f"{context.place}judged-{'+'.join(verdicts)}-{split}"
    dataset = negatives.inputs["dataset"]
    return apply_verdicts.node(label, negatives=negatives, dataset=dataset, verdicts=verdicts, split=split)


def filtered(context: Context, verdicts: Mapping[str, Node], split: str) -> Node:
    """Return the node of the data set without the pairs of a split that judges drop."""
    label = f"{context.place}pairs-{'+'.join(verdicts)}-{split}"
    return filter_pairs.node(label, **declare_data(context), verdicts=verdicts, split=split)


def known_clean(context: Context, split: str) -> Node:
    """Return the node of the data set without the pairs of a split that were made noisy on purpose."""
    label = f"{context.place}pairs-truth-{split}"
    return clean_only.node(label, **declare_data(context), split=split)


@artefact("negatives", rows=lambda of: of.negatives.rows(f"negatives/{of.split}"))
def apply_verdicts(
    making: Building,
    pool: Pool,
    negatives: Artifact,
    verdicts: Mapping[str, Artifact],
    dataset: Artifact | None = None,
    *,
    split: str,
) -> dict[str, Any]:
    """Make a ``negatives`` artefact with the actions and weights of the verdicts.

    All rows stay, with their provenance: training excludes a dropped candidate from its query's negatives, in-batch
    negatives included; relabelled candidates become positives. The strongest action of several judges wins, see
    :data:`raydr.noise.chain.STRENGTH`; a later judge of a chain overrides the earlier one.

    Args:
        making: artefact to make.
        pool: pool for the parts.
        negatives: judged negatives; their own actions count as a further verdict.
        verdicts: verdicts on these negatives, by judge.
        dataset: data set of the negatives.
        split: judged split.
    """
    calls = _calls(negatives, f"negatives/{split}", list(verdicts.values()), split)
    make_parts(making, pool, _apply_to_part, calls, "apply verdicts")
    _copy_parts(making, pool, negatives, [name for name in negatives.parts() if name not in calls])
    totals = total_counts(making, calls)
    counts = {name: totals[name] for name in (*STRENGTH, "queries_empty")}
    show_summary(
        f"negatives judged by {', '.join(verdicts)}",
        {name.replace("_", " "): f"{count:,}" for name, count in counts.items()},
    )
    if counts["queries_empty"]:
        warn(f"{counts['queries_empty']:,} queries have no negative left: training uses random passages for them")
    return {**negatives.info, "judges": list(verdicts), **counts}


@artefact("dataset", version=2, rows=lambda of: of.dataset.rows(f"qrels/{of.split}"))
def filter_pairs(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    verdicts: Mapping[str, Artifact],
    corpus: Artifact | None = None,
    *,
    split: str,
) -> dict[str, Any]:
    """Make a ``dataset`` artefact without the pairs of a split that judges drop.

    Dropped pairs are stored as ``dropped``: a query with another positive does not use the passage as a negative. Pairs
    that people call right are kept and also stored as ``trusted``, so that detection in training does not flag them.
    Queries whose pairs are all dropped stay in the data set, but are not trained on.

    Args:
        making: artefact to make.
        pool: pool for the parts.
        dataset: judged data set.
        verdicts: verdicts on its pairs, by judge.
        corpus: corpus of its passages.
        split: judged split.
    """
    title = f"pairs judged by {', '.join(verdicts)}"
    return _filter(making, pool, dataset, list(verdicts.values()), split, title)


@artefact("dataset", rows=lambda of: of.dataset.rows(f"qrels/{of.split}"))
def clean_only(
    making: Building, pool: Pool, dataset: Artifact, corpus: Artifact | None = None, *, split: str
) -> dict[str, Any]:
    """Make a ``dataset`` artefact without the pairs of a split that were made noisy on purpose.

    It is the upper bound for detection of mismatched pairs (the papers' "clean only").

    Raises:
        DataError: no noise was injected into the split.
    """
    noise = Dataset(dataset).qrels(split)["noise"]
    if noise.null_count == len(noise):
        raise DataError(
            f"no pair of split {split!r} of {dataset.folder} was made noisy on purpose: the wrong pairs are unknown"
        )
    return _filter(making, pool, dataset, None, split, "only pairs known to be clean")


def _filter(
    making: Building, pool: Pool, dataset: Artifact, verdicts: list[Artifact] | None, split: str, title: str
) -> dict[str, Any]:
    calls = _calls(dataset, f"qrels/{split}", verdicts, split)
    make_parts(making, pool, _filter_part, calls, "filter pairs")
    changed = tuple(f"{folder}/{split}/" for folder in ("qrels", *_ASIDE))
    _copy_parts(making, pool, dataset, [name for name in dataset.parts() if not name.startswith(changed)])
    before = dataset.rows(f"qrels/{split}")
    after = sum(making.done[name].rows for name in calls)
    if not after:
        warn(f"no judgment of split {split!r} is left")
    facts = {"judgments before": f"{before:,}", "dropped": f"{before - after:,}", "left": f"{after:,}"}
    show_summary(f"{split}: {title}", facts)
    return {**dataset.info, "judgments_before": before, "judgments_after": after}


def _calls(
    judged: Artifact, under: str, verdicts: list[Artifact] | None, split: str
) -> dict[str, tuple[Artifact, list[Artifact] | None, str]]:
    """Return the arguments for each part: judged artefact, verdicts, and prefix of the verdicts' part names."""
    names = enumerate(judged.parts(under))
    return {name: (judged, verdicts, f"{VERDICTS}/{split}/part-{at:05d}-") for at, name in names}


def _verdict_tables(verdicts: list[Artifact], prefix: str) -> list[pa.Table]:
    """Return the verdicts of all judges on a part."""
    return [
        read_parquet(artifact.local(name))
        for artifact in verdicts
        for name in artifact.parts()
        if name.startswith(prefix)
    ]


def _in_place_of(verdicts: list[Artifact]) -> dict[str, str]:
    """Return the judges that override an earlier judge, with its name."""
    return {artifact.info["judge"]: artifact.info["after"] for artifact in verdicts if "after" in artifact.info}


def _apply_to_part(
    output: Folder, name: str, negatives: Artifact, verdicts: list[Artifact], prefix: str
) -> Mapping[str, Part]:
    tables, mined = _verdict_tables(verdicts, prefix), read_arrow(negatives.local(name))
    judged = judge_negatives(mined, tables, _in_place_of(verdicts))
    query_ids, actions = judged["query_id"].to_pylist(), judged["action"].to_pylist()
    used = {query_id for query_id, action in zip(query_ids, actions, strict=True) if action in ("keep", "down_weight")}
    counts: dict[str, int] = {action: actions.count(action) for action in STRENGTH}
    counts["queries_empty"] = len(set(query_ids)) - len(used)
    return {name: write_table(output, name, judged, counts)}


def _filter_part(
    output: Folder, name: str, dataset: Artifact, verdicts: list[Artifact] | None, prefix: str
) -> Mapping[str, Part]:
    """Write the kept judgments of a part, and those dropped or trusted, now or before."""
    qrels = read_arrow(dataset.local(name))
    names = {folder: name.replace("qrels/", f"{folder}/", 1) for folder in _ASIDE}
    beside = {
        folder: [read_arrow(dataset.local(part))] if part in dataset.manifest.parts else []
        for folder, part in names.items()
    }
    if verdicts is None:
        left = qrels.filter(qrels["noise"].is_null())
    else:
        left, pairs, trusted = split_pairs(qrels, _verdict_tables(verdicts, prefix), _in_place_of(verdicts))
        beside["trusted"].append(trusted)
        gone = to_table("dropped", ({**row, "miner": DROPPED_PAIR} for row in pairs.select(_PAIR).to_pylist()))
        beside["dropped"].append(gone)
    made = {
        names[folder]: write_table(output, names[folder], pa.concat_tables(tables))
        for folder, tables in beside.items()
        if sum(map(len, tables))
    }
    # Judgments come last: without them a resume makes all three again.
    return made | {name: write_table(output, name, left)}


def _copy_parts(making: Building, pool: Pool, source: Artifact, names: Sequence[str]) -> None:
    make_parts(making, pool, copy_part, dict.fromkeys(names, (source,)), "copy")
