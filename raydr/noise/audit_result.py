"""Figures of an audit, and their summary in sentences."""

from __future__ import annotations

from typing import Any

from raydr.component import Config
from raydr.data.inspection_report import SplitReport, leak_findings, split_findings

#: Minimum of pairs for a judge: a distribution of fewer margins says little.
_FEWEST_PAIRS = 50


def inconclusive(judge: str, reason: str, num_pairs: int) -> str:
    """Return why a judge of pairs is inconclusive, and remedies."""
    remedy = (
        f"It needs more pairs than these {num_pairs}"
        if num_pairs < _FEWEST_PAIRS
        else "Cross-fitted margins may help (judge npc with margins: cross_fitted), then longer trainings or a "
        "stronger model (cross_fit.num_epochs, cross_fit.model)"
    )
    return (
        f"{judge} is inconclusive: {reason}. It keeps all pairs; some may still be mismatched. {remedy}. raydr review "
        "shows pairs to people"
    )


#: Caveat where a retriever flags no pair (docs/noise-benchmark.md).
NEAR_MISSES = "Wrong passages that resemble their query, such as those of a search engine, cannot be detected this way."
#: Setting that adds a training with mismatched pairs to a run's systems.
THROUGH_NOISE = "variants.npc.loss=npc"


class PairFindings(Config):
    """Annotated pairs that a judge flags, optionally with its later judges."""

    judge: str
    num_judged: int
    num_flagged: int
    """Flagged pairs; 0 if ``reason`` is set."""

    num_expected: float | None
    """Σ P(mismatched) over all pairs; None if the judge gives no probabilities."""

    num_expected_flagged: float | None
    """Σ P(mismatched) over the flagged pairs."""

    share_estimated: float | None
    """Share of mismatched pairs as the detector estimates it; None without an estimate."""

    reason: str
    """Why a detector was inconclusive and kept all pairs; empty if it was conclusive."""

    settings: dict[str, Any]
    """Settings of the judge; empty for several judges."""

    detection: dict[str, Any] | None
    """Quality, see :class:`raydr.noise.detection_report.DetectionReport`; None if the truth is unknown."""

    @property
    def share_flagged(self) -> float | None:
        """Share of flagged pairs; None if no pair was judged or the judge was inconclusive."""
        return self.num_flagged / self.num_judged if self.num_judged and not self.reason else None

    @property
    def mean_probability(self) -> float | None:
        """Estimated share of mismatched pairs, independent of a threshold."""
        return None if self.num_expected is None or not self.num_judged else self.num_expected / self.num_judged

    @property
    def sentences(self) -> str:
        """Number of pairs that are probably wrong, and its uncertainty."""
        if self.reason:
            return f"{inconclusive(self.judge, self.reason, self.num_judged)}."
        if not self.num_judged:
            return f"{self.judge} judged no pair."
        share = self.num_flagged / self.num_judged
        sentences = [
            f"{self.num_flagged:,} of {self.num_judged:,} pairs ({share:.1%}) are probably wrong, by {self.judge}."
        ]
        if self.num_expected is not None and self.num_expected_flagged is not None:
            expected = (
                f"about {self.num_expected - self.num_expected_flagged:,.0f} clearly wrong pairs among those it keeps"
            )
            if self.num_flagged:
                expected = f"{self.num_expected_flagged / self.num_flagged:.0%} of these to be wrong, and {expected}"
            sentences.append(f"Its probabilities expect {expected}.")
        if self.detection is not None:
            known = {name: self.detection[name] for name in ("precision", "recall") if self.detection[name] is not None}
            quality = " and ".join(f"{name} {value:.2f}" for name, value in known.items())
            sentences += [f"On injected noise: {quality}."] if quality else []
        return " ".join(sentences)


class NegativeFindings(Config):
    """Candidate negatives that a judge flags, in queries whose annotated pair is not flagged."""

    judge: str
    num_queries: int
    num_queries_flagged: int
    num_candidates: int
    num_flagged: int
    num_flagged_in_top_10: int
    settings: dict[str, Any]
    detection: dict[str, Any] | None
    """As in :class:`PairFindings`, over all queries."""

    @property
    def share_flagged(self) -> float | None:
        """Share of flagged candidates; None without candidates."""
        return self.num_flagged / self.num_candidates if self.num_candidates else None

    @property
    def share_of_queries(self) -> float | None:
        """Share of queries with a flagged candidate; None without queries."""
        return self.num_queries_flagged / self.num_queries if self.num_queries else None

    @property
    def sentences(self) -> str:
        """Number of candidates that are probably relevant, and the share of known false negatives among the flags."""
        if not self.num_candidates:
            return f"{self.judge} judged no candidate."
        sentence = (
            f"{self.num_flagged:,} of {self.num_candidates:,} candidates ({self.share_flagged:.1%}), in "
            f"{self.num_queries_flagged:,} of {self.num_queries:,} queries, probably answer their query, by "
            f"{self.judge}."
        )
        if self.detection is None or self.detection["recall"] is None:
            return sentence
        return f"{sentence} It flags {self.detection['recall']:.0%} of the known false negatives."


class AuditResult(Config):
    """All figures of an audit."""

    split: str
    """Audited split."""

    model: str
    """Name of the judges' model."""

    train_split: str
    data: SplitReport
    num_leaked: int
    """Number of the split's queries that are also in the training split; for the training split, in another split."""

    num_left_out: int
    """Number of rows of corpus and data set, in all splits, that preparation rejected."""

    pairs: list[PairFindings]
    """Findings of the judge that decides, with its later judges; then of each judge."""

    negatives: list[NegativeFindings]

    @property
    def suspected_by(self) -> str:
        """Judges that flag mismatched pairs; empty without such judges."""
        return self.pairs[0].judge if self.pairs else ""

    @property
    def headline(self) -> str:
        """Main result: the number of wrong labels, and its uncertainty."""
        return (self.pairs or self.negatives)[0].sentences

    @property
    def caveat(self) -> str:
        """Kind of wrong pairs that a retriever overlooks, if it flags no pair; else empty."""
        first = self.pairs[0] if self.pairs else None
        return NEAR_MISSES if first and first.settings.get("name") == "npc" and first.share_flagged == 0 else ""

    def advice(self, config: str) -> str:
        """Return the next command to run."""
        if self.suspected_by and not self.pairs[0].num_flagged:
            kept = f"No pair is sure enough to be left out: train on all of them. {self.caveat}"
            return "" if self.pairs[0].reason else kept.rstrip()
        if self.pairs:
            return (
                f"raydr evaluate {config} --set {THROUGH_NOISE} trains through them, beside a training that trusts all "
                f"pairs; raydr review {config} lets people decide on them."
            )
        return (
            f"raydr review {config} shows how many of the flags are right; raydr judge {config} --judge "
            f"{self.negatives[0].judge} removes them from the candidates."
        )

    @property
    def faults(self) -> list[str]:
        """Faults of the data, independent of judges, one sentence each."""
        left_out = (
            f"{self.num_left_out:,} rows of all splits were left out when the data were prepared (dangling ids, broken "
            "lines): see quarantine.jsonl beside corpus and data set"
        )
        also = "another split" if self.split == self.train_split else self.train_split
        faults = [left_out] * bool(self.num_left_out) + leak_findings(self.num_leaked, self.split, also)
        return faults + split_findings(self.split, self.data)

    @property
    def numbers(self) -> dict[str, float]:
        """Main figures by name, for tracking: estimated shares by judge, and quality where the truth is known."""
        figures: dict[str, float | None] = {}
        for pair in self.pairs:
            figures[f"mismatched_share.{pair.judge}"] = pair.share_flagged
            figures[f"mismatched_probability.{pair.judge}"] = pair.mean_probability
        for negative in self.negatives:
            figures[f"false_negative_share.{negative.judge}"] = negative.share_flagged
            figures[f"queries_with_false_negative.{negative.judge}"] = negative.share_of_queries
        judges: list[PairFindings | NegativeFindings] = [*self.pairs, *self.negatives]
        for judged in judges:
            for name in ("precision", "recall", "auroc"):
                figures[f"{name}.{judged.judge}"] = (judged.detection or {}).get(name)
        return {name: value for name, value in figures.items() if value is not None}
