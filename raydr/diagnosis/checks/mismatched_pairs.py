"""Training pairs whose passage does not answer their query."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis.checks.base import Check, Finding
from raydr.diagnosis.evidence import CROSS_FITTED, TRAINED, Evidence, FloatArray
from raydr.diagnosis.intervals import share
from raydr.evaluation.significance import Interval

#: A reader that takes more of the pairs of both splits for mismatched than this cannot tell.
_READS = 0.5
#: Where held-out pairs are no better than training pairs, right pairs that are hard count too: up to a tenth, measured.
_SURELY = 0.2
#: What closes the gap to right pairs (docs/experiments/flags.md).
_ROBUST = "train.loss=npc"


class MismatchedPairs(Check):
    """A passage of a mismatched pair suits its query no better than any other pair's does: p is uniform.

    Twice the share of p > ½ is an upper bound of the mismatched ones (Storey, JRSS B 2002): right pairs that are hard
    count too, in one split as in the other. So the severity is the lower end of the worse split's less the upper end of
    the other's, by the reader for which that is the least, and less the share of queries that are of another kind than
    the other split's, which may all be hard.

    Where both splits are mismatched that is nothing. Then the cross-fitted model decides alone, if the p above ½ are
    flat, as they are of mismatched pairs and not of hard ones; or all readers together, if most pairs look random to
    the others and not even the trained one tells held-out pairs from random ones.

    >>> rng = np.random.default_rng(0)
    >>> right, wrong = rng.beta(0.2, 8, 1000), rng.uniform(size=1000)
    >>> half = np.where(np.arange(1000) % 2, right, wrong)
    >>> found = [MismatchedPairs().examine(Evidence(p_training={"bm25": one}, p_held_out={"bm25": right}))
    ...     for one in (half, right)]
    >>> [one.level for one in found], found[0].severity
    (['fault', 'ok'], 0.4)
    """

    compares: ClassVar[str] = "training pairs with held-out ones, each with passages of other pairs"
    needs: ClassVar[str] = "no reader tells held-out pairs from random ones"

    name: Literal["mismatched_pairs"] = "mismatched_pairs"

    def examine(self, evidence: Evidence) -> Finding | None:
        shares = {
            reader: (_mismatched(evidence.p_training[reader]), _mismatched(p_held_out))
            for reader, p_held_out in evidence.p_held_out.items()
            if reader in evidence.p_training
        }
        able = {reader: pair for reader, pair in shares.items() if min(pair[0].high, pair[1].high) < _READS}
        worse = [
            (*min((pair[at].low - pair[1 - at].high, reader) for reader, pair in able.items()), at)
            for at in (0, 1)
            if able
        ]
        severity, reader, at = max(worse, default=(0.0, "", 0))
        severity -= evidence.other_kind
        alone = _surely(evidence.p_training.get(CROSS_FITTED))
        if alone > max(severity, _SURELY) and CROSS_FITTED in shares:
            severity, reader, at = alone, CROSS_FITTED, 0
        if not reader:
            return self._unread(evidence)
        kinds = ("training", "held-out")
        kind = evidence.other_kind
        return self.finding(
            severity,
            f"{shares[reader][at].mean:.0%} of the {kinds[at]} pairs suit their query no better than other pairs' "
            f"passages do (at most so many are wrong), {shares[reader][1 - at].mean:.0%} of the {kinds[1 - at]} ones "
            f"({reader}, {len(evidence.p_training[reader]):,} training pairs)"
            + f"; {kind:.0%} or more of the queries are of another kind than the other split's"
            * (kind > 0),
            *(() if at else (_ROBUST,)),
            advice=f"read some judgments of {evidence.split}: what is measured by them says nothing of the model"
            if at
            else "or judge.judges=[npc], which leaves them out; raydr audit shows the worst",
        )

    def _unread(self, evidence: Evidence) -> Finding | None:
        """What is left where nothing that was not trained tells the pairs of either split from random ones."""
        told = {
            f"{reader}, {split}": (reader, _mismatched(p_N))
            for split, found in (("held-out", evidence.p_held_out), ("training", evidence.p_training))
            for reader, p_N in found.items()
        }
        if TRAINED not in evidence.p_held_out or any(
            (one.high if reader == TRAINED else one.low) < _READS for reader, one in told.values()
        ):
            return None
        shares = ", ".join(f"{name} {one.mean:.0%}" for name, (_, one) in told.items())
        return self.finding(
            min(one.low for _, one in told.values()),
            "no reader, not even the trained model, tells the pairs of any split from random ones: so many suit their "
            f"query no better than other pairs' passages do: {shares}",
            advice="read some pairs (raydr audit): do the ids of the judgments mean these passages, are the texts of "
            "both sides intact?",
        )


def _mismatched(p_N: FloatArray) -> Interval:
    found = share(p_N > 0.5)
    return Interval(*(min(1.0, 2.0 * one) for one in found))


def _surely(p_N: FloatArray | None) -> float:
    """Four times the share of p > ¾, its lower end; 0 where p is rarer there than between ½ and ¾."""
    from scipy.stats import binomtest

    if p_N is None or not (upper := int(np.sum(p_N > 0.5))):
        return 0.0
    flat = binomtest(int(np.sum(p_N > 0.75)), upper, alternative="less").pvalue > 0.01
    return 4.0 * share(p_N > 0.75).low if flat else 0.0
