"""Checks of the data: duplicates, leakage, truncation, unanswered queries, false negatives, mismatched pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis.diagnosis import Check, Finding, worst
from raydr.diagnosis.evidence import BM25, BM25_CUT, CROSS_FITTED, TRAINED, Evidence, FloatArray, mean_of, share_of
from raydr.evaluation.significance import Interval


class Duplicates(Check):
    """Unjudged copies of a positive are negatives in training and misses in evaluation. If equal queries have different
    positives, the positive of each query is a negative of the other.

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
            f"duplicates that count as wrong: {shares}",
            advice="remove the copies from the data, or judge each copy of a positive as a positive of its query",
        )


class Leakage(Check):
    """Measures on training queries are too high, and select the wrong epoch.

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
            f"({hit.mean:.0%}) are in the training split too, verbatim or nearly: measures on it are too high",
            "data.leaked_queries=leave_out",
        )


#: Minimum of BM25's measure that can reveal a loss.
_FINDS = 0.05


class Truncation(Check):
    """Share of BM25's RR@10 with whole texts that it loses with texts truncated for the model. It measures the value of
    truncated text independently of the model.

    >>> import numpy as np
    >>> held_out = {"bm25": np.ones(100), "bm25, texts cut": (np.arange(100) < 20) * 1.0}
    >>> Truncation().examine(Evidence(held_out=held_out)).level
    'fault'
    """

    compares: ClassVar[str] = "BM25 over whole texts with BM25 over texts truncated at max_length (paired)"
    needs: ClassVar[str] = "there is no held-out split, or BM25 retrieves almost nothing of it"

    name: Literal["truncation"] = "truncation"

    def examine(self, evidence: Evidence) -> Finding | None:
        if BM25_CUT not in evidence.held_out:
            return None
        whole, cut = evidence.held_out[BM25], evidence.held_out[BM25_CUT]
        if (uncut := mean_of(whole)).low < _FINDS:
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
            mean_of(whole - cut).low / uncut.mean,
            f"{shares or 'tokens'} are beyond max_length; BM25's RR@10 is {uncut.mean:.3f} over whole texts and "
            f"{cut.mean():.3f} over truncated texts",
            *longer,
            advice="(95 % of the texts fit)",
        )


class UnansweredQueries(Check):
    """A query whose positives are missing from the corpus, or that has none, always scores 0 and is not trained on.

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
            advice="use the corpus of the judgments (data.reader); raydr inspect lists missing passages",
        )


class FalseNegatives(Check):
    """A second positive outscores the annotated positive in half of all cases. A true negative seldom does so for
    several readers at once, least of all for a model trained with it as a negative. So twice the share of hard
    negatives that outscore the positive for all readers estimates the share of false negatives.

    >>> rng = np.random.default_rng(0)
    >>> above = {"bm25": rng.uniform(size=900) < 0.4, "trained": rng.uniform(size=900) < 0.5}
    >>> FalseNegatives().examine(Evidence(outscores=above)).level
    'fault'
    """

    compares: ClassVar[str] = "hard negatives with the positive of their query, by all readers"
    needs: ClassVar[str] = "training draws no hard negatives"

    name: Literal["false_negatives"] = "false_negatives"

    def examine(self, evidence: Evidence) -> Finding | None:
        if not evidence.outscores or not len(next(iter(evidence.outscores.values()))):
            return None
        by_all = share_of(np.logical_and.reduce(list(evidence.outscores.values())))
        return self.finding(
            2.0 * by_all.low,
            f"{by_all.mean:.1%} of the hard negatives outscore their positive for all of "
            f"{', '.join(evidence.outscores)}: about {min(1.0, 2.0 * by_all.mean):.0%} answer their query",
            "judge.judges=[near_duplicate]",
            advice="removes near-copies of the positive, [classifier] candidates that a model finds relevant; or mine "
            "deeper: negatives.first_rank",
        )


#: Maximum of the mismatched share by a reliable reader, in one of the splits.
_READS = 0.5
#: Minimum of the mismatched share by the cross-fitted model alone, above the share of hard right pairs (measured).
_SURELY = 0.2
#: Maximum of the share of hard right pairs (measured).
_HARD = 0.1
#: Setting with which mismatched pairs hardly harm (docs/experiments/flags.md).
_ROBUST = "train.loss=npc"


class MismatchedPairs(Check):
    """The passage of a mismatched pair scores no better than passages of other pairs: p is uniform.

    Twice the share of p > ½ estimates the mismatched share (Storey, JRSS B 2002). Hard right pairs count too, in both
    splits; wrong passages that resemble their query do not. The severity is the lower end for the worse split, less the
    upper end for the other split, by the reader with the smallest difference. It is reduced by the share of queries
    unlike those of the other split, which may all be hard.

    A split that was held out of the training pairs has the same mistakes. Then the cross-fitted model decides alone:
    the severity is its lower end, less a tenth for hard right pairs.

    If both splits are mismatched, this difference is 0. Then the cross-fitted model decides alone, if p above ½ is
    uniform as for mismatched pairs. Or all readers decide together, if most pairs look random to the untrained readers,
    and the trained model cannot separate held-out pairs from random pairs.

    >>> rng = np.random.default_rng(0)
    >>> right, wrong = rng.beta(0.2, 8, 1000), rng.uniform(size=1000)
    >>> half = np.where(np.arange(1000) % 2, right, wrong)
    >>> findings = [MismatchedPairs().examine(Evidence(p_training={"bm25": p_N}, p_held_out={"bm25": right}))
    ...     for p_N in (half, right)]
    >>> [finding.level for finding in findings], findings[0].severity
    (['fault', 'ok'], 0.4)
    """

    compares: ClassVar[str] = "training pairs with held-out pairs, each with passages of other pairs"
    needs: ClassVar[str] = (
        "no reader separates held-out pairs from random pairs; or they are held out of the training pairs, and no "
        "models of folds were trained"
    )

    name: Literal["mismatched_pairs"] = "mismatched_pairs"

    def examine(self, evidence: Evidence) -> Finding | None:
        shares = {
            reader: (_mismatched(evidence.p_training[reader]), _mismatched(p_held_out))
            for reader, p_held_out in evidence.p_held_out.items()
            if reader in evidence.p_training
        }
        if evidence.same_pairs:
            return self._of_the_same_pairs(evidence, shares)
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
            f"{shares[reader][at].mean:.0%} of the {kinds[at]} pairs suit their query no better than passages of other "
            f"pairs (hard right pairs among them), {shares[reader][1 - at].mean:.0%} of the {kinds[1 - at]} pairs "
            f"({reader}, {len(evidence.p_training[reader]):,} training pairs)"
            + f"; {kind:.0%} or more of the queries are unlike those of the other split"
            * (kind > 0),
            *(() if at else (_ROBUST,)),
            advice=f"read some judgments of {evidence.split}: measures on it are meaningless"
            if at
            else "or judge.judges=[npc], which removes them; raydr audit shows the worst",
        )

    def _of_the_same_pairs(self, evidence: Evidence, shares: Mapping[str, tuple[Interval, Interval]]) -> Finding | None:
        """Return the finding of the cross-fitted model alone; None without one."""
        if CROSS_FITTED not in shares:
            return None
        training, held_out = shares[CROSS_FITTED]
        return self.finding(
            max(0.0, training.low - _HARD) if _is_flat(evidence.p_training[CROSS_FITTED]) else 0.0,
            f"{training.mean:.0%} of the training pairs suit their query no better than passages of other pairs "
            f"(hard right pairs among them; {CROSS_FITTED}, {len(evidence.p_training[CROSS_FITTED]):,} pairs), and "
            f"{held_out.mean:.0%} of those that were held out of them",
            _ROBUST,
            advice="or judge.judges=[npc], which removes them; raydr audit shows the worst. Measures on "
            f"{evidence.split} count wrong labels too: raydr evaluate shows them without flagged labels",
        )

    def _unread(self, evidence: Evidence) -> Finding | None:
        """Return the finding if no reader separates pairs of any split from random pairs; else None."""
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
            "no reader, not even the trained model, separates the pairs of any split from random pairs; share of pairs "
            f"that suit their query no better than passages of other pairs: {shares}",
            advice="read some pairs (raydr audit): check that the judgments' ids match these passages, and that the "
            "texts of both sides are intact",
        )


def _mismatched(p_N: FloatArray) -> Interval:
    interval = share_of(p_N > 0.5)
    return Interval(*(min(1.0, 2.0 * bound) for bound in interval))


def _surely(p_N: FloatArray | None) -> float:
    """Return the lower end of four times the share of p > ¾; 0 if p is rarer there than between ½ and ¾."""
    return 4.0 * share_of(p_N > 0.75).low if p_N is not None and _is_flat(p_N) else 0.0


def _is_flat(p_N: FloatArray) -> bool:
    """Return whether p > ¾ may be as frequent as p between ½ and ¾, as it is for mismatched pairs."""
    from scipy.stats import binomtest

    upper = int(np.sum(p_N > 0.5))
    return bool(upper and binomtest(int(np.sum(p_N > 0.75)), upper, alternative="less").pvalue > 0.01)
