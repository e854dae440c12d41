"""Training pairs whose passage does not answer their query."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis.checks.base import Check, Finding
from raydr.diagnosis.evidence import CROSS_FITTED, Evidence, FloatArray
from raydr.diagnosis.intervals import share
from raydr.evaluation.significance import Interval

#: A reader that takes more of the held-out pairs for mismatched than this cannot tell.
_READS = 0.5
#: Where held-out pairs are no better than training pairs, right pairs that are hard count too: up to a tenth, measured.
_SURELY = 0.2


class MismatchedPairs(Check):
    """A passage of a mismatched pair suits its query no better than any other pair's does: p is uniform.

    Twice the share of p > ½ is an upper bound of the mismatched ones (Storey, JRSS B 2002): right pairs that are hard
    count too, of training pairs as of held-out ones. So the severity is the lower end of the first less the upper end
    of the second, by the reader for which that is the least. Where both splits are mismatched that is nothing: then the
    cross-fitted model decides alone, if the p above ½ are flat, as they are of mismatched pairs and not of hard ones.

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
        able = {reader: pair for reader, pair in shares.items() if pair[1].high < _READS}
        severity, reader = min(((pair[0].low - pair[1].high, name) for name, pair in able.items()), default=(0.0, ""))
        alone = _surely(evidence.p_training.get(CROSS_FITTED))
        if alone > max(severity, _SURELY) and CROSS_FITTED in shares:
            severity, reader = alone, CROSS_FITTED
        if not reader:
            return None
        in_training, held_out = shares[reader]
        return self.finding(
            severity,
            f"{in_training.mean:.0%} of the training pairs suit their query no better than other pairs' passages do, "
            f"{held_out.mean:.0%} of the held-out ones ({reader}, {len(evidence.p_training[reader]):,} pairs)",
            "judge.judges: [npc] leaves them out of the training; raydr audit shows the worst",
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
