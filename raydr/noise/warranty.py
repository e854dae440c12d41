"""Number of drops that decisions of people warrant: few of the dropped labels are right, however good the judge is.

A judge ranks labels by suspicion. The most suspicious labels form nested sets of growing size. People decide on each
set in a random order, which the ids of its labels determine. The hypothesis for a set is that its share of right labels
is above the bound. A set is warranted if this hypothesis is rejected for it and for every smaller set. A set with more
right labels among all decisions is never warranted.

The test is a mixture likelihood ratio of draws without replacement. It is valid after every decision. The order in
which people decide does not matter, since only the decided beginning of the random order counts. The test assumes
nothing about the judge or the dependence of labels: the only randomness is that of the order.

Source: Angelopoulos et al. (2021), "Learn then Test", fixed-sequence testing; Waudby-Smith and Ramdas (NeurIPS 2020),
confidence sequences for sampling without replacement; Ville's inequality.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.corpus import hash_strings
from raydr.noise.judges.base import BoolArray, FloatArray, IntArray

#: Maximum of right labels in the smallest set, and growth factor of the sets.
_FIRST_RIGHT, _GROWTH = 5, 1.25
#: Number of shares in the mixture, from 0 to the bound; maximum of decisions in a forecast; number of decisions below
#: which a forecast assumes that all further labels are wrong.
_NUM_SHARES, _FORECAST, _FEW = 33, 5_000, 20


def lots_of(subject: str, table: pa.Table) -> IntArray:
    """Return a random number for each (query, passage) pair of a table, determined by the ids, shape (N,).

    Args:
        subject: subject of the labels.
        table: table with the columns query_id and passage_id.
    """
    ids = pc.binary_join_element_wise(f"review {subject}", table["query_id"], table["passage_id"], "\n")
    return hash_strings(ids).view(np.int64)


@dataclass(frozen=True)
class Warranty:
    """Largest warranted set of drops, and a forecast for the next larger set.

    Args:
        num_decided: number of decisions on labels of the judge.
        num_drops: size of the largest warranted set; 0 without a warranted set.
        threshold: log-odds of a wrong label that separate the labels of this set from the others.
        stage: number of warranted sets.
        next_drops: size of the next set; equal to ``num_drops`` if all labels are warranted.
        next_right: share of right labels among the counted decisions of the next set.
        next_decisions: number of further decisions that warrant the next set if their share of right labels is
            ``next_right``; None if thousands would not suffice.
        max_right_dropped: maximum of the share of right labels in a warranted set.
        confidence: probability that a warranted set keeps to this maximum.
    """

    num_decided: int
    num_drops: int
    threshold: float
    stage: int
    next_drops: int
    next_right: float
    next_decisions: int | None
    max_right_dropped: float
    confidence: float

    def sentence(self, noun: str) -> str:
        """Return the warranty in words.

        >>> about = {"max_right_dropped": 0.05, "confidence": 0.95, "next_right": 0.02, "threshold": 0.0, "stage": 3}
        >>> Warranty(230, 412, next_drops=515, next_decisions=40, **about).sentence("pairs")
        'at most 5 % of the 412 most suspicious pairs are right, with 95 % confidence, by 230 decisions; 103 more drops
        after about 40 more decisions'
        """
        bound, sure = f"at most {100 * self.max_right_dropped:g} %", f"with {100 * self.confidence:g} % confidence"
        by = f" by {_count(self.num_decided, 'decision')}" if self.num_decided else ""
        if self.num_drops:
            start = f"{bound} of the {self.num_drops:,} most suspicious {noun} are right, {sure},{by}"
        else:
            start = f"no drop of {noun} is warranted yet{by} ({bound} right, {sure})"
        if self.next_drops == self.num_drops:
            return start
        if self.next_decisions is None:
            right = f"about {100 * self.next_right:.0f} % of the {self.next_drops:,} most suspicious are right"
            return f"{start}; more decisions hardly help: {right}"
        decisions = _count(self.next_decisions, "more decision" if self.num_decided else "decision")
        drops = _count(self.next_drops - self.num_drops, "more drop" if self.num_drops else "drop")
        return f"{start}; {drops} after about {decisions}"


class SuspectSets:
    """Nested sets of the most suspicious of N labels, and their test.

    Labels of equal suspicion are in the same sets. The smallest set may contain five right labels; each further set is
    a quarter larger.

    Args:
        evidence_N: log-odds of wrong labels, see :mod:`raydr.noise.evidence`; must not depend on the decisions.
        lots_N: random numbers of the labels, see :func:`lots_of`.
        max_right_dropped: maximum of the share of right labels in a warranted set, in (0, 1).
        confidence: probability, over the random order, that the warranted set keeps to this maximum; in (0, 1).
    """

    def __init__(self, evidence_N: FloatArray, lots_N: IntArray, max_right_dropped: float, confidence: float) -> None:
        self.max_right_dropped = max_right_dropped
        self.confidence = confidence
        self._descending_N = np.sort(evidence_N)[::-1]
        self._by_lot_N = np.argsort(lots_N, kind="stable")
        self._evidence_by_lot_N = evidence_N[self._by_lot_N]

    @cached_property
    def sizes_S(self) -> IntArray:
        """Sizes of the sets, ascending."""
        sizes, size, num_labels = [], math.ceil(_FIRST_RIGHT / self.max_right_dropped), len(self._by_lot_N)
        while num_labels:
            end = min(size, num_labels)
            sizes.append(int(np.searchsorted(-self._descending_N, -self._descending_N[end - 1], side="right")))
            if sizes[-1] == num_labels:
                break
            size = math.ceil(_GROWTH * sizes[-1])
        return np.array(sizes, dtype=np.int64)

    def warrant(self, decided_D: IntArray | Sequence[int], right_D: BoolArray | Sequence[bool]) -> Warranty:
        """Return the warranty of some decisions.

        Args:
            decided_D: indices of decided labels.
            right_D: whether each is right; labels that people are unsure of count as right.
        """
        # 0: wrong, 1: right, -1: open.
        verdicts_N = np.full(len(self._by_lot_N), -1, dtype=np.int8)
        verdicts_N[np.asarray(decided_D, dtype=np.int64)] = np.asarray(right_D, dtype=np.int8)
        needed = math.log(1.0 / (1.0 - self.confidence))
        warranted = next_drops = 0
        next_right = 0.0
        next_decisions: int | None = None
        for size in self.sizes_S.tolist():
            verdicts_K = verdicts_N[self.drawn(size)]
            num_counted = int(np.argmin(verdicts_K)) if (verdicts_K < 0).any() else size
            right_T = verdicts_K[:num_counted] == 1
            limit = self.limit(size)
            is_broken = int((verdicts_K == 1).sum()) >= limit
            if is_broken or not (log_evidence(right_T, size, limit) >= needed).any():
                next_drops, (next_right, next_decisions) = size, _forecast(verdicts_K, right_T, limit, needed)
                next_decisions = None if is_broken else next_decisions
                break
            warranted += 1
        num_drops = int(self.sizes_S[warranted - 1]) if warranted else 0
        return Warranty(
            len(decided_D), num_drops, self._threshold(num_drops), warranted, next_drops or num_drops, next_right,
            next_decisions, self.max_right_dropped, self.confidence,
        )  # fmt: skip

    def drawn(self, size: int) -> IntArray:
        """Return the labels of a set in their random order."""
        return np.asarray(self._by_lot_N[self._evidence_by_lot_N >= self._descending_N[size - 1]])

    def limit(self, size: int) -> int:
        """Return the smallest number of right labels that exceeds the bound for a set."""
        return math.floor(self.max_right_dropped * size + 1e-9) + 1

    def in_turn(self, stage: int) -> IntArray:
        """Return all labels in the most useful order for decisions: set by set, each in its random order.

        Args:
            stage: number of warranted sets.
        """
        set_N = np.searchsorted(-self._descending_N[self.sizes_S - 1], -self._evidence_by_lot_N)
        set_N = np.maximum(set_N, stage)
        return np.asarray(self._by_lot_N[np.argsort(set_N, kind="stable")])

    def _threshold(self, num_drops: int) -> float:
        """Return a value between the log-odds of the last dropped label and those of the first kept label."""
        if not len(self._descending_N):
            return 0.0
        last = self._descending_N[num_drops - 1] if num_drops else self._descending_N[0] + 1.0
        first = self._descending_N[num_drops] if num_drops < len(self._descending_N) else last - 1.0
        return float(last + first) / 2.0


def log_evidence(right_T: BoolArray, num_labels: int, limit: int) -> FloatArray:
    """Return the log of the evidence that fewer than ``limit`` of K labels are right, after each of T random draws.

    The evidence is the likelihood ratio of a uniform mixture of smaller numbers to ``limit``. If ``limit`` or more
    labels are right, the ratio is a nonnegative supermartingale, which ever reaches x with probability at most 1 / x.

    Args:
        right_T: whether each drawn label is right, in the order of the draws.
        num_labels: K, the number of labels.
        limit: smallest number of right labels that exceeds the bound, at most K.

    >>> log_evidence(np.zeros(100, dtype=np.bool_), 100, 6)[[0, 47, 48, 99]].round(2).tolist()
    [0.04, 2.99, 3.09, inf]
    """
    from scipy.special import logsumexp

    if not len(right_T):
        return np.zeros(0)
    right_before_T: IntArray = np.cumsum(right_T) - right_T
    wrong_before_T = np.arange(len(right_T)) - right_before_T
    numbers_R = np.unique(np.linspace(0, limit - 1, _NUM_SHARES).round())

    def log_likelihood(numbers: FloatArray) -> FloatArray:
        """Return the log-likelihood of each beginning of the draws, shape (T, numbers), up to a common term."""
        left_TR = np.where(
            right_T[:, None], numbers - right_before_T[:, None], num_labels - numbers - wrong_before_T[:, None]
        )
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(np.maximum(left_TR, 0.0)).cumsum(axis=0))

    mixture_T = logsumexp(log_likelihood(numbers_R), axis=1) - math.log(len(numbers_R))
    with np.errstate(invalid="ignore"):
        evidence_T = mixture_T - log_likelihood(np.array([float(limit)]))[:, 0]
    # Beyond these counts the bound certainly holds, or is exceeded.
    evidence_T[np.cumsum(~right_T) > num_labels - limit] = np.inf
    evidence_T[np.cumsum(right_T) >= limit] = -np.inf
    return np.asarray(evidence_T)


def _forecast(
    verdicts_K: np.typing.NDArray[np.int8], right_T: BoolArray, limit: int, needed: float
) -> tuple[float, int | None]:
    """Return the share of right labels among the draws of a set, and the decisions that warrant it at this share."""
    num_drawn = len(right_T)
    share = float(right_T.mean()) if num_drawn else 0.0
    further = share if num_drawn >= _FEW else 0.0
    ends = np.floor(further * np.arange(num_drawn, min(len(verdicts_K), num_drawn + _FORECAST) + 1))
    path_T = log_evidence(np.concatenate([right_T, np.diff(ends) > 0]), len(verdicts_K), limit)
    reached = np.flatnonzero(path_T >= needed)
    decisions = int((verdicts_K[: reached[0] + 1] < 0).sum()) if len(reached) else None
    return share, decisions


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"
