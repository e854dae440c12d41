"""Combination of the verdicts of several judges, and their effect on negatives and pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from raydr.data.tables import pairs_of
from raydr.noise.judges.base import Action
from raydr.noise.judges.people import PEOPLE

#: Actions by strength: drop is stronger than keep, and a relabelled candidate is no negative.
STRENGTH: tuple[Action, ...] = ("keep", "down_weight", "drop", "relabel")

_Pair = tuple[str, str]


@dataclass(frozen=True)
class Chained:
    """Strongest action on a pair, its weight in the softmax, and whether people decided it."""

    action: Action
    weight: float
    is_final: bool = False


def combine(first: Chained, second: Chained) -> Chained:
    """Return the stronger action and the lower weight; decisions of people are final.

    >>> keep, less = Chained("keep", 1.0), Chained("down_weight", 0.2)
    >>> combine(combine(keep, less), Chained("down_weight", 0.5)).weight
    0.2
    >>> combine(less, Chained("drop", 0.0)).action
    'drop'
    >>> combine(Chained("drop", 0.0), Chained("keep", 1.0, is_final=True)).action
    'keep'
    """
    if first.is_final or second.is_final:
        return first if first.is_final else second
    return Chained(max(first.action, second.action, key=STRENGTH.index), min(first.weight, second.weight))


#: From a judge to the judge whose verdicts on the same pairs it overrides.
InPlaceOf = Mapping[str, str]
_NONE: InPlaceOf = {}


def judge_negatives(negatives: pa.Table, verdicts: Sequence[pa.Table], in_place_of: InPlaceOf = _NONE) -> pa.Table:
    """Return the negatives with their final action and weight.

    Args:
        negatives: table ``negatives``; rows keep their order, and without a verdict their action.
        verdicts: tables ``verdicts``, in any order.
        in_place_of: overridden judge by judge.
    """
    by_pair = _by_pair(verdicts, in_place_of)
    actions, weights = negatives["action"].to_pylist(), negatives["weight"].to_pylist()
    for at, pair in enumerate(pairs_of(negatives)):
        verdict = by_pair.get(pair)
        if verdict is not None:
            together = combine(Chained(actions[at], weights[at]), verdict)
            actions[at], weights[at] = together.action, together.weight
    for column, values in (("action", actions), ("weight", weights)):
        at = negatives.schema.get_field_index(column)
        field = negatives.schema.field(at)
        negatives = negatives.set_column(at, field, pa.array(values, type=field.type))
    return negatives


def split_pairs(
    qrels: pa.Table, verdicts: Sequence[pa.Table], in_place_of: InPlaceOf = _NONE
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the remaining judgments, the (query, positive) pairs that judges drop, and those that people confirm."""
    by_pair = _by_pair(verdicts, in_place_of)
    dropped = {pair for pair, verdict in by_pair.items() if verdict.action == "drop"}
    confirmed = {pair for pair, verdict in by_pair.items() if verdict.is_final and verdict.action == "keep"}
    kept = np.array([pair not in dropped for pair in pairs_of(qrels)], dtype=np.bool_)
    # Judges of pairs read positive judgments only.
    kept |= qrels["relevance"].to_numpy() <= 0
    trusted = np.array([pair in confirmed for pair in pairs_of(qrels)], dtype=np.bool_)
    return qrels.filter(pa.array(kept)), qrels.filter(pa.array(~kept)), qrels.filter(pa.array(trusted))


def _by_pair(verdicts: Sequence[pa.Table], in_place_of: InPlaceOf) -> dict[_Pair, Chained]:
    overridden = {
        (in_place_of[judge], *pair)
        for table in verdicts
        for pair, judge in zip(pairs_of(table), table["judge"].to_pylist(), strict=True)
        if judge in in_place_of
    }
    by_pair: dict[_Pair, Chained] = {}
    for table in verdicts:
        columns = (table[name].to_pylist() for name in ("action", "weight", "judge"))
        for pair, action, weight, judge in zip(pairs_of(table), *columns, strict=True):
            if (judge, *pair) in overridden:
                continue
            verdict = Chained(action, weight, judge in PEOPLE)
            earlier = by_pair.get(pair)
            by_pair[pair] = verdict if earlier is None else combine(earlier, verdict)
    return by_pair
