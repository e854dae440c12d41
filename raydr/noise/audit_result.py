"""The figures of an audit, and what they come to in sentences."""

from __future__ import annotations

from typing import Any

from raydr.component import Config
from raydr.data.inspection_report import SplitReport, leak_findings, split_findings


def inconclusive(judge: str, reason: str) -> str:
    """Say that a judge of pairs could not tell, that this is no finding, and what may help."""
    return (
        f"{judge} is inconclusive: {reason}. It keeps all pairs, which does not say that none is mismatched. Try "
        "margins of models that have not seen the pairs (the judge npc with margins: cross_fitted), then longer "
        "trainings or a stronger model for them (cross_fit.num_epochs, cross_fit.model); or look at some (raydr review)"
    )


class PairFindings(Config):
    """What a judge of annotated pairs flags, or a judge and those that come after it."""

    judge: str
    num_judged: int
    num_flagged: int
    """Pairs; none is flagged where ``reason`` says why the judge could not tell."""

    num_expected: float | None
    """Σ of the probabilities of being mismatched, over all pairs; None if the judge gives none."""

    num_expected_flagged: float | None
    """The same over the flagged pairs."""

    share_estimated: float | None
    """Of mismatched pairs, by the detector; None if it could not tell, or the judge has none."""

    reason: str
    """Why a detector could not tell, and kept all pairs; empty if it could."""

    settings: dict[str, Any]
    """Of the judge; empty for several."""

    detection: dict[str, Any] | None
    """Quality, see :class:`raydr.noise.detection_report.DetectionReport`; None if the truth is not known."""

    @property
    def share_flagged(self) -> float | None:
        """None where nothing was judged, or the judge could not tell."""
        return self.num_flagged / self.num_judged if self.num_judged and not self.reason else None

    @property
    def mean_probability(self) -> float | None:
        """An estimate of the share of mismatched pairs that does not depend on a threshold."""
        return None if self.num_expected is None or not self.num_judged else self.num_expected / self.num_judged

    @property
    def sentences(self) -> str:
        """How many pairs are probably wrong, and how sure that is."""
        if self.reason:
            return f"{inconclusive(self.judge, self.reason)}."
        if not self.num_judged:
            return f"{self.judge} has judged no pair."
        share = self.num_flagged / self.num_judged
        sentences = [
            f"{self.num_flagged:,} of {self.num_judged:,} pairs ({share:.1%}) are probably wrong, by {self.judge}."
        ]
        if self.num_expected is not None and self.num_expected_flagged is not None:
            expected = f"about {self.num_expected - self.num_expected_flagged:,.0f} more among the pairs that it keeps"
            if self.num_flagged:
                expected = f"{self.num_expected_flagged / self.num_flagged:.0%} of these to be wrong, and {expected}"
            sentences.append(f"Its probabilities expect {expected}.")
        if self.detection is not None:
            known = {name: self.detection[name] for name in ("precision", "recall") if self.detection[name] is not None}
            quality = " and ".join(f"{name} {value:.2f}" for name, value in known.items())
            sentences += [f"Against the pairs that were mismatched on purpose: {quality}."] if quality else []
        return " ".join(sentences)


class NegativeFindings(Config):
    """What a judge of candidate negatives flags, in the queries whose annotated pair is not suspected."""

    judge: str
    num_queries: int
    num_queries_flagged: int
    num_candidates: int
    num_flagged: int
    num_flagged_in_top_10: int
    settings: dict[str, Any]
    detection: dict[str, Any] | None
    """As in :class:`PairFindings`; of all queries."""

    @property
    def share_flagged(self) -> float | None:
        """Of all candidates; None if there are none."""
        return self.num_flagged / self.num_candidates if self.num_candidates else None

    @property
    def share_of_queries(self) -> float | None:
        """Queries with a flagged candidate over all; None if there are none."""
        return self.num_queries_flagged / self.num_queries if self.num_queries else None

    @property
    def sentences(self) -> str:
        """How many candidates are probably relevant."""
        if not self.num_candidates:
            return f"{self.judge} has judged no candidate."
        return (
            f"{self.num_flagged:,} of {self.num_candidates:,} candidates ({self.share_flagged:.1%}), in "
            f"{self.num_queries_flagged:,} of {self.num_queries:,} queries, probably answer their query, by "
            f"{self.judge}."
        )


class AuditResult(Config):
    """All figures of an audit."""

    split: str
    model: str
    """What was audited, and which model judges ask."""

    train_split: str
    data: SplitReport
    num_leaked: int
    """Queries of the split that the training split has too; of the training split: that another has."""

    num_left_out: int
    """Rows of corpus and data set, of all splits, that could not be used when they were prepared."""

    pairs: list[PairFindings]
    """The first one says which pairs are wrong: of a judge, or of it and those that come after it. Then each judge."""

    negatives: list[NegativeFindings]

    @property
    def suspected_by(self) -> str:
        """Which judges say that a query's pair is not trusted; empty if none does."""
        return self.pairs[0].judge if self.pairs else ""

    @property
    def headline(self) -> str:
        """The answer: how many are wrong, how sure that is."""
        return (self.pairs or self.negatives)[0].sentences

    def advice(self, config: str) -> str:
        """What to do next, with the config's name."""
        if self.suspected_by and not self.pairs[0].num_flagged:
            return "" if self.pairs[0].reason else "No pair has to be left out: train on all of them."
        if self.pairs:
            return (
                f"raydr train {config} --set train.loss=npc trains through them; raydr review {config} shows them to "
                "people, who decide."
            )
        return f"raydr judge {config} --judge {self.negatives[0].judge} takes them from the candidates."

    @property
    def faults(self) -> list[str]:
        """What is wrong with the data whatever the judges say, one sentence each."""
        left_out = (
            f"{self.num_left_out:,} rows, of whichever split, were left out when the data were prepared (dangling ids, "
            "broken lines): quarantine.jsonl beside corpus and data set has them"
        )
        also = "another split" if self.split == self.train_split else self.train_split
        faults = [left_out] * bool(self.num_left_out) + leak_findings(self.num_leaked, self.split, also)
        return faults + split_findings(self.split, self.data)

    @property
    def numbers(self) -> dict[str, float]:
        """The main figures, flat, for tracking: estimated shares by judge, and quality where the truth is known."""
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
