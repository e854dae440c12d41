"""Retrieval measures against relevance judgments, a value for each query, equal to trec_eval's.

trec_eval ignores the rank column of a run: it sorts by score, and equal scores by passage id in descending order. Runs
of raydr are written in this order (:mod:`raydr.artefacts.run`). Here −rank serves as the score, so that values match
the run's ranking, and trec_eval's on the exported file.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import ir_measures
from pydantic import AfterValidator

from raydr.errors import ConfigError, DataError

#: query id → passage id → relevance.
Qrels = Mapping[str, Mapping[str, int]]
#: query id → passage ids, best first.
Ranking = Mapping[str, Sequence[str]]

_CUT_OFF = re.compile(r"(?P<name>R|Recall|Success)(?:\([^)]*\))?@(?P<k>\d+)")
#: Measures recognised without importing ir-measures, which is slow to import.
_COMMON = re.compile(r"(R|P|RR|nDCG|Success)@[1-9]\d{0,5}|AP|RR|nDCG")
_LONG_NAMES = {"R": "recall", "Recall": "recall", "Success": "success"}


def parse_measures(names: Sequence[str], setting: str = "evaluate.measures") -> dict[str, Any]:
    """Parse names in ir-measures' notation; return the measures keyed by :func:`label`.

    Args:
        names: names of the measures.
        setting: their place in the config, for the error.

    Raises:
        ConfigError: a name is no measure; the message names it.

    >>> list(parse_measures(["R@20", "nDCG@10", "AP"]))
    ['recall@20', 'nDCG@10', 'AP']
    """
    parsed: dict[str, Any] = {}
    for name in names:
        try:
            measure = _parse(name)
        except ValueError as error:
            raise ConfigError(f"{setting}: {error}") from None
        parsed[label(str(measure))] = measure
    return parsed


def check_measure(name: str) -> str:
    """Check the name of a measure when a config is read.

    Raises:
        ValueError: the name is no measure.
    """
    if not _COMMON.fullmatch(name):
        _parse(name)
    return name


#: Setting that names a measure.
MeasureName = Annotated[str, AfterValidator(check_measure)]


def _parse(name: str) -> Any:
    try:
        measure = ir_measures.parse_measure(name)
        measure.validate_params()
        if "cutoff" in measure.params and measure["cutoff"] < 1:
            # trec_eval would end the process.
            raise ValueError("the cut-off must be at least 1")
        # ir-measures parses measures of packages that are not installed.
        list(ir_measures.iter_calc([measure], {"q": {"p": 1}}, {"q": {"p": 1.0}}))
    except (ValueError, NameError, AssertionError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"{name!r} is not a measure that ir-measures computes here ({error}); "
            "examples: R@20, RR@10, nDCG@10, AP, Success@5"
        ) from None
    except subprocess.SubprocessError:
        raise ValueError(
            f"{name!r} is computed by gdeval alone, which takes numbers as ids of queries and grades from 0 to 4; "
            "examples of others: R@20, RR@10, nDCG@10, AP, Success@5"
        ) from None
    return measure


def label(measure: str) -> str:
    """Return the display name of a measure; a recall always names its kind.

    >>> label("R@20"), label("Success@5"), label("RR@10")
    ('recall@20', 'success@5', 'RR@10')
    """
    match = _CUT_OFF.fullmatch(measure)
    if match is None:
        return measure
    extra = re.search(r"\([^)]*\)", measure)
    return f"{_LONG_NAMES[match['name']]}{extra.group() if extra else ''}@{match['k']}"


def deepest_cutoff(measures: Iterable[Any]) -> int:
    """Return the largest cut-off of the measures; 0 if none has a cut-off.

    >>> deepest_cutoff(parse_measures(["R@20", "RR@10", "AP"]).values())
    20
    """
    return max((measure["cutoff"] for measure in measures if "cutoff" in measure.params), default=0)


def score_queries(measures: Mapping[str, Any], qrels: Qrels, ranking: Ranking) -> dict[str, dict[str, float]]:
    """Score queries; ``qrels`` holds only these queries, so that a run can be scored in parts.

    Args:
        measures: measures of :func:`parse_measures`.
        qrels: judgments; relevance 1 and more is relevant. Queries without judgments have no value.
        ranking: passage ids, best first. Judged queries that are not in it score 0.

    Returns:
        label → query id → value.

    Raises:
        DataError: a passage is ranked twice for a query.

    >>> values = score_queries(parse_measures(["RR@10", "R@1"]), {"q": {"a": 1}, "r": {"a": 1}}, {"q": ["b", "a"]})
    >>> values
    {'RR@10': {'q': 0.5, 'r': 0.0}, 'recall@1': {'q': 0.0, 'r': 0.0}}
    """
    run: dict[str, dict[str, float]] = {}
    for query_id, passage_ids in ranking.items():
        if query_id not in qrels:
            continue
        scored = {passage_id: -float(rank) for rank, passage_id in enumerate(passage_ids, start=1)}
        if len(scored) != len(passage_ids):
            twice = next(passage_id for at, passage_id in enumerate(passage_ids) if passage_id in passage_ids[:at])
            raise DataError(f"query {query_id!r}: passage {twice!r} is ranked twice; a run names each passage once")
        if scored:
            run[query_id] = scored
    labels = {measure: name for name, measure in measures.items()}
    values: dict[str, dict[str, float]] = {name: dict.fromkeys(qrels, 0.0) for name in measures}
    if run:
        judged = {query_id: dict(qrels[query_id]) for query_id in run}
        for metric in ir_measures.iter_calc(list(measures.values()), judged, run):
            values[labels[metric.measure]][metric.query_id] = float(metric.value)
    return values
