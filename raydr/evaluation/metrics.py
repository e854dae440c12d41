"""Retrieval measures against relevance judgments, one value a query, equal to trec_eval's.

trec_eval ignores the rank column of a run: it sorts by score, and equal scores by passage id in descending
order. raydr's runs are ranked in exactly this way when they are written (:mod:`raydr.artefacts.run`), and here the
rank itself is what is handed over, as the score −rank: the values are those of the ranking in the run, and
trec_eval gets the same ones from the exported file.
"""

from __future__ import annotations

import re
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
#: What is known without asking ir-measures, which loads more than reading a config should wait for.
_COMMON = re.compile(r"(R|P|RR|nDCG|Success)@[1-9]\d{0,5}|AP|RR|nDCG")
_LONG_NAMES = {"R": "recall", "Recall": "recall", "Success": "success"}


def parse_measures(names: Sequence[str], setting: str = "evaluate.measures") -> dict[str, Any]:
    """Parse names in ir-measures' notation; return the measures keyed by :func:`label`.

    Args:
        names: of the measures.
        setting: where they stand in the config, for the error.

    Raises:
        ConfigError: a name is not a measure; names it.

    >>> list(parse_measures(["R@20", "nDCG@10", "AP"]))
    ['recall@20 (qrels)', 'nDCG@10', 'AP']
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
    """Refuse a name that is no measure, when a config is read.

    Raises:
        ValueError: it is none.
    """
    if not _COMMON.fullmatch(name):
        _parse(name)
    return name


#: A setting that names a measure.
MeasureName = Annotated[str, AfterValidator(check_measure)]


def _parse(name: str) -> Any:
    try:
        measure = ir_measures.parse_measure(name)
        measure.validate_params()
        if "cutoff" in measure.params and measure["cutoff"] < 1:
            # trec_eval would end the process.
            raise ValueError("the cut-off must be at least 1")
        # Some are known by name and computed by packages that are not here.
        list(ir_measures.iter_calc([measure], {"q": {"p": 1}}, {"q": {"p": 1.0}}))
    except (ValueError, NameError, AssertionError, KeyError, RuntimeError) as error:
        raise ValueError(
            f"{name!r} is not a measure that ir-measures computes here ({error}); "
            "examples: R@20, RR@10, nDCG@10, AP, Success@5"
        ) from None
    return measure


def label(measure: str) -> str:
    """Return a measure's name for people: a recall always names its kind.

    >>> label("R@20"), label("Success@5"), label("RR@10")
    ('recall@20 (qrels)', 'success@5 (qrels)', 'RR@10')
    """
    match = _CUT_OFF.fullmatch(measure)
    if match is None:
        return measure
    extra = re.search(r"\([^)]*\)", measure)
    return f"{_LONG_NAMES[match['name']]}{extra.group() if extra else ''}@{match['k']} (qrels)"


def deepest_cutoff(measures: Iterable[Any]) -> int:
    """Return the most passages of a query that one of the measures reads; 0 if none has a cut-off.

    >>> deepest_cutoff(parse_measures(["R@20", "RR@10", "AP"]).values())
    20
    """
    return max((measure["cutoff"] for measure in measures if "cutoff" in measure.params), default=0)


def score_queries(measures: Mapping[str, Any], qrels: Qrels, ranking: Ranking) -> dict[str, dict[str, float]]:
    """Score some queries; ``qrels`` has those queries only, so that a run can be scored in parts.

    Args:
        measures: as from :func:`parse_measures`.
        qrels: the judgments; relevance 1 and more is relevant. Queries without any are left out of the result.
        ranking: passage ids, best first. Judged queries that are not in it score 0.

    Returns:
        label → query id → value.

    Raises:
        DataError: a passage is ranked twice for a query.

    >>> values = score_queries(parse_measures(["RR@10", "R@1"]), {"q": {"a": 1}, "r": {"a": 1}}, {"q": ["b", "a"]})
    >>> values
    {'RR@10': {'q': 0.5, 'r': 0.0}, 'recall@1 (qrels)': {'q': 0.0, 'r': 0.0}}
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
