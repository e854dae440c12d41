"""The most suspicious verdicts of a judge, for people to look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from raydr.noise.agreement import AlignedVerdicts
from raydr.noise.judges.base import BoolArray


@dataclass(frozen=True)
class Offender:
    """One flagged (query, passage) pair.

    Args:
        judge, score, action: the verdict that it is shown for.
        truth: whether it is noise in truth; None if that is not known.
        flagged_by: the other judges that flag it too.
        not_flagged_by: those that have judged it and keep it.
    """

    judge: str
    query_id: str
    passage_id: str
    score: float
    action: str
    truth: bool | None
    flagged_by: tuple[str, ...]
    not_flagged_by: tuple[str, ...]


def worst_offenders(verdicts: AlignedVerdicts, judge: str, count: int, among_M: BoolArray) -> list[Offender]:
    """The flagged pairs with the highest scores of a judge, at most one of a query, the worst first.

    Args:
        verdicts: of all judges.
        judge: whose scores count.
        count: pairs, at most.
        among_M: the pairs that may be chosen.
    """
    at = verdicts.judges.index(judge)
    flagged = np.flatnonzero(verdicts.flagged_JM[at] & among_M).tolist()
    found: dict[str, Offender] = {}
    for pair in sorted(
        flagged, key=lambda one: (-verdicts.scores_JM[at, one], verdicts.query_ids[one], verdicts.passage_ids[one])
    ):
        if len(found) < count and verdicts.query_ids[pair] not in found:
            found[verdicts.query_ids[pair]] = _offender(verdicts, at, pair)
    return list(found.values())


def merge_offenders(lists: Iterable[list[Offender]], count: int) -> list[Offender]:
    """The worst of several lists whose queries differ.

    >>> def one(query_id, score):
    ...     return Offender("margin", query_id, "p", score, "drop", None, (), ())
    >>> [found.query_id for found in merge_offenders([[one("a", 3.0), one("b", 1.0)], [one("c", 2.0)]], 2)]
    ['a', 'c']
    """
    together = [one for offenders in lists for one in offenders]
    return sorted(together, key=lambda one: (-one.score, one.query_id, one.passage_id))[:count]


def _offender(verdicts: AlignedVerdicts, judge: int, pair: int) -> Offender:
    others = [at for at in range(len(verdicts.judges)) if at != judge and verdicts.judged_JM[at, pair]]
    return Offender(
        judge=verdicts.judges[judge],
        query_id=verdicts.query_ids[pair],
        passage_id=verdicts.passage_ids[pair],
        score=float(verdicts.scores_JM[judge, pair]),
        action=str(verdicts.actions_JM[judge, pair]),
        truth=verdicts.truth_M[pair],
        flagged_by=tuple(verdicts.judges[at] for at in others if verdicts.flagged_JM[at, pair]),
        not_flagged_by=tuple(verdicts.judges[at] for at in others if not verdicts.flagged_JM[at, pair]),
    )
