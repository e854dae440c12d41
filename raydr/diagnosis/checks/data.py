"""Checks of the data: duplicates, leakage, cut texts, unanswered queries, false negatives, mismatched pairs."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis import intervals
from raydr.diagnosis.checks.base import Check, Finding, worst
from raydr.diagnosis.evidence import BM25, BM25_CUT, CROSS_FITTED, TRAINED, Evidence, FloatArray
from raydr.diagnosis.intervals import share
from raydr.evaluation.significance import Interval


class Duplicates(Check):
    """A copy of a positive that nobody has judged is trained against, and counts as a miss; where queries say the same
    and have other answers, one's answer is the other's negative.

    >>> import numpy as np
    >>> Duplicates().examine(Evidence(repeated={"positives": np.arange(100) < 30})).level
    'fault'
    """

    compares: ClassVar[str] = "positives with all passages, training queries with each other, by their words"
    needs: ClassVar[str] = "there are no positives"

    name: Literal["duplicates"] = "duplicates"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.repeated:
            return None
        shares = ", ".join(f"{repeated_N.mean():.1%} of the {what}" for what, repeated_N in evidence.repeated.items())
        return self.finding(
            worst(evidence.repeated)[1].low,
            f"there again, and counted as wrong: {shares}",
            advice="remove the copies from the data, or judge them: each copy of a positive as a positive of its query",
        )


class Leakage(Check):
    """What is measured on queries that were trained on is too good, and an epoch chosen by them is the wrong one.

    >>> import numpy as np
    >>> Leakage().examine(Evidence(leaked={"dev": np.zeros(50, bool), "test": np.ones(50, bool)})).level
    'fault'
    """

    compares: ClassVar[str] = "queries of each held-out split with those of the training split, by their words"
    needs: ClassVar[str] = "there is no held-out split"

    name: Literal["leakage"] = "leakage"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.leaked:
            return None
        split, hit = worst(evidence.leaked)
        return self.finding(
            hit.low,
            f"{int(evidence.leaked[split].sum()):,} of {len(evidence.leaked[split]):,} queries of {split} "
            f"({hit.mean:.0%}) are in the training split too, word for word or nearly: what is measured is too good",
            "data.leaked_queries=leave_out",
        )


#: Where BM25 finds less than this it cannot say what is lost.
_FINDS = 0.05


class Truncation(Check):
    """The share of what BM25 finds by whole texts that it does not find by texts cut as the model reads them: what is
    cut off costs what it is worth, and the model's own quality plays no part.

    >>> import numpy as np
    >>> found = {"bm25": np.ones(100), "bm25, texts cut": (np.arange(100) < 20) * 1.0}
    >>> Truncation().examine(Evidence(held_out=found)).level
    'fault'
    """

    compares: ClassVar[str] = "BM25 over whole texts with BM25 over texts cut at max_length (paired)"
    needs: ClassVar[str] = "there is no held-out split, or BM25 finds next to nothing of it"

    name: Literal["truncation"] = "truncation"

    def examine(self, evidence: Evidence) -> Finding | None:
        if BM25_CUT not in evidence.held_out:
            return None
        whole, cut = evidence.held_out[BM25], evidence.held_out[BM25_CUT]
        if (uncut := intervals.mean(whole)).low < _FINDS:
            return None
        longer = [
            f"model.{side}.max_length={lengths.fitting}"
            for side, lengths in evidence.lengths.items()
            if lengths.share_cut
        ]
        shares = " and ".join(
            f"{lengths.share_cut:.0%} of the {side} tokens" for side, lengths in evidence.lengths.items()
        )
        return self.finding(
            intervals.mean(whole - cut).low / uncut.mean,
            f"{shares or 'tokens'} are beyond max_length; BM25's RR@10 is {uncut.mean:.3f} over whole texts and "
            f"{cut.mean():.3f} over texts cut like that",
            *longer,
            advice="(95 % of the texts fit)",
        )


class UnansweredQueries(Check):
    """Its judgments name passages that the corpus has not, or there are none: the query scores 0 whatever is found, and
    is not learnt from.

    >>> import numpy as np
    >>> UnansweredQueries().examine(Evidence(unanswered={"test": np.arange(80) < 40})).level
    'fault'
    """

    compares: ClassVar[str] = "judgments of each split with the ids of the corpus"
    needs: ClassVar[str] = "there are no queries"

    name: Literal["unanswered_queries"] = "unanswered_queries"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.unanswered:
            return None
        split, hit = worst(evidence.unanswered)
        return self.finding(
            hit.low,
            f"{int(evidence.unanswered[split].sum()):,} of {len(evidence.unanswered[split]):,} queries of {split} "
            f"({hit.mean:.0%}) have no positive in the corpus",
            advice="read the corpus that the judgments were made for (data.reader); raydr inspect says what is missing",
        )


class FalseNegatives(Check):
    """A second positive is above the annotated one in half of all cases; a negative seldom by several readers at once,
    and less so by a model that was trained to put it below. So twice the share of hard negatives that all readers put
    above the positive estimates how many are false.

    >>> rng = np.random.default_rng(0)
    >>> above = {"bm25": rng.uniform(size=900) < 0.4, "trained": rng.uniform(size=900) < 0.5}
    >>> FalseNegatives().examine(Evidence(outscores=above)).level
    'fault'
    """

    compares: ClassVar[str] = "hard negatives with the positive of their query, by all readers at once"
    needs: ClassVar[str] = "training draws no hard negatives"

    name: Literal["false_negatives"] = "false_negatives"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.outscores or not len(next(iter(evidence.outscores.values()))):
            return None
        by_all = share(np.logical_and.reduce(list(evidence.outscores.values())))
        return self.finding(
            2.0 * by_all.low,
            f"{by_all.mean:.1%} of the hard negatives are above their positive by {', '.join(evidence.outscores)} "
            f"alike: some {min(1.0, 2.0 * by_all.mean):.0%} answer their query",
            "judge.judges=[near_duplicate]",
            advice="leaves out what is nearly the positive, [classifier] what a model reads as an answer; or draw "
            "further down: negatives.first_rank",
        )


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
        read = {
            f"{reader}, {split}": (reader, _mismatched(p_N))
            for split, p_values in (("held-out", evidence.p_held_out), ("training", evidence.p_training))
            for reader, p_N in p_values.items()
        }
        if TRAINED not in evidence.p_held_out or any(
            (interval.high if reader == TRAINED else interval.low) < _READS for reader, interval in read.values()
        ):
            return None
        shares = ", ".join(f"{name} {interval.mean:.0%}" for name, (_, interval) in read.items())
        return self.finding(
            min(interval.low for _, interval in read.values()),
            "no reader, not even the trained model, tells the pairs of any split from random ones: so many suit their "
            f"query no better than other pairs' passages do: {shares}",
            advice="read some pairs (raydr audit): do the ids of the judgments mean these passages, are the texts of "
            "both sides intact?",
        )


def _mismatched(p_N: FloatArray) -> Interval:
    interval = share(p_N > 0.5)
    return Interval(*(min(1.0, 2.0 * bound) for bound in interval))


def _surely(p_N: FloatArray | None) -> float:
    """Four times the share of p > ¾, its lower end; 0 where p is rarer there than between ½ and ¾."""
    from scipy.stats import binomtest

    if p_N is None or not (upper := int(np.sum(p_N > 0.5))):
        return 0.0
    flat = binomtest(int(np.sum(p_N > 0.75)), upper, alternative="less").pvalue > 0.01
    return 4.0 * share(p_N > 0.75).low if flat else 0.0
