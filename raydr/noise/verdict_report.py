"""Summary of a judge's verdicts: counts, and quality where the truth is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.tables import VERDICTS, read_parquet
from raydr.noise.detection_report import report_detection
from raydr.noise.judges.base import FloatArray, Judge, Verdicts
from raydr.noise.judges.margin import MarginRule
from raydr.noise.judges.near_duplicate import NearDuplicate
from raydr.noise.judges.sieve import Sieve
from raydr.store.artifact import Artifact


def read_actions(verdicts: Artifact, split: str) -> pa.Table:
    """Read the columns query_id, passage_id and action of an artefact ``verdicts``."""
    names = verdicts.parts(f"verdicts/{split}")
    columns = ["query_id", "passage_id", "action"]
    return pa.concat_tables([read_parquet(verdicts.local(name), columns) for name in names])


def flagged_queries(actions: pa.Table) -> set[str]:
    """Return the queries with a pair or a candidate that is not kept."""
    return set(actions.filter(pc.not_equal(actions["action"], "keep"))["query_id"].to_pylist())


def summarize_verdicts(
    judge: Judge, parts: Iterable[pa.Table], probabilities: Sequence[FloatArray] | None = None
) -> dict[str, Any]:
    """Summarise the verdict tables of a judge; all verdicts of a query are in one table.

    Args:
        judge: judge of the verdicts.
        parts: tables ``verdicts``.
        probabilities: P(noise), an array for each table, if the judge's scores are no probabilities.

    Returns:
        ``verdicts``, ``queries``, a count for each action (``keep``, ``drop``, ...), ``flagged_share`` (not kept over
        all; for the sieve its sieve-out rate), ``queries_flagged`` (with a flag), ``queries_empty`` (with no negative
        kept or down-weighted). For a sieve with a keep-minimum also ``kept_by_minimum``; where the truth is known also
        ``detection``, the fields of :class:`raydr.noise.detection_report.DetectionReport`.
    """
    counts = {"verdicts": 0, "queries": 0, "queries_flagged": 0, "queries_empty": 0, "kept_by_minimum": 0}
    actions = {"keep": 0, "drop": 0, "down_weight": 0, "relabel": 0}
    truths, flags, scores, chances = [], [], [], []
    for at, table in enumerate(parts):
        if not table.num_rows:
            continue
        action_M = table["action"].to_numpy()
        score_M = table["score"].to_numpy()
        query_M = table["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        flagged_M, used_M = action_M != "keep", np.isin(action_M, ["keep", "down_weight"])
        num_queries = int(query_M.max()) + 1
        counts["verdicts"] += len(action_M)
        counts["queries"] += num_queries
        counts["queries_flagged"] += int(np.count_nonzero(np.bincount(query_M[flagged_M], minlength=num_queries)))
        counts["queries_empty"] += int((np.bincount(query_M[used_M], minlength=num_queries) == 0).sum())
        # Kept candidates with a positive suspicion, above the sieve's threshold, are kept by the keep-minimum.
        counts["kept_by_minimum"] += int(((score_M > 0.0) & ~flagged_M).sum())
        for name, count in zip(*np.unique(action_M, return_counts=True), strict=True):
            actions[str(name)] += int(count)
        known = table["truth"].is_valid().to_numpy()
        if known.any():
            truths.append(table["truth"].filter(pa.array(known)).to_numpy().astype(np.bool_))
            flags.append(flagged_M[known])
            scores.append(score_M[known])
            if probabilities is not None:
                chances.append(probabilities[at][known])
    summary: dict[str, Any] = {**counts, **actions}
    if not (isinstance(judge, Sieve) and judge.keep_minimum):
        del summary["kept_by_minimum"]
    summary["flagged_share"] = 1.0 - actions["keep"] / counts["verdicts"] if counts["verdicts"] else 0.0
    if truths:
        chances = scores if judge.score_is_probability and not chances else chances
        probability = np.concatenate(chances) if chances else None
        noisy, flagged, suspicion = (np.concatenate(arrays) for arrays in (truths, flags, scores))
        report = report_detection(noisy, flagged, suspicion, probability)
        summary["detection"] = asdict(report)
    return summary


#: Flagged share above which a comparison with annotated passages is doubtful, and minimum of candidates for a share. On
#: 250 docstrings with BM25's candidates the packaged MiniLM flags up to 9 %; its first layer alone at least 27 %.
_MOST_FLAGGED, _FEWEST_CANDIDATES = 0.2, 30


def reason_for_doubt(judge: type[Judge], info: Mapping[str, Any]) -> str:
    """Return why flags of candidates are likely to be false; empty without such a reason.

    Args:
        judge: class of the judge.
        info: manifest info of ``verdicts``.
    """
    compares = issubclass(judge, MarginRule | NearDuplicate)
    if not compares or info["verdicts"] < _FEWEST_CANDIDATES or info["flagged_share"] <= _MOST_FLAGGED:
        return ""
    return (
        f"it flags {info['flagged_share']:.0%} of the candidates, more than {_MOST_FLAGGED:.0%}: the model scores them "
        "about as high as the annotated passages. It is too weak for these texts, or many annotated passages are wrong"
    )


def verdict_table(
    judge: Judge, query_ids: list[str], passage_ids: list[str], verdicts: Verdicts, truth: list[bool | None]
) -> pa.Table:
    """Return the verdicts of a judge as a table ``verdicts``."""
    columns = [
        pa.array(query_ids, pa.string()),
        pa.array(passage_ids, pa.string()),
        pa.array([judge.name] * len(query_ids), pa.string()),
        pa.array(verdicts.score.astype(np.float32)),
        pa.array(verdicts.action.tolist(), pa.string()),
        pa.array(verdicts.weight.astype(np.float32)),
        pa.array(truth, pa.bool_()),
    ]
    return pa.Table.from_arrays(columns, schema=VERDICTS)
