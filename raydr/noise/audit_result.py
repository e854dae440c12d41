"""The figures of an audit, as they are kept in its ``summary.json``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from raydr.data.inspection_report import SplitReport, leak_findings, split_findings
from raydr.noise.agreement import Agreement
from raydr.noise.false_negative_statistics import FalseNegativeStatistics


def inconclusive(judge: str, reason: str) -> str:
    """What is said of a judge of pairs that could not tell: that this is no finding, and what may be one."""
    return (
        f"{judge} is inconclusive: {reason}. It keeps all pairs, which does not say that none is mismatched. Try "
        "margins of models that have not seen the pairs (the judge npc with margins: cross_fitted), then longer "
        "trainings or a stronger model for them (cross_fit.num_epochs, cross_fit.model); or look at some (raydr review)"
    )


@dataclass(frozen=True)
class PairFindings:
    """What a judge of annotated pairs found.

    Args:
        judge: its name.
        num_judged, num_flagged: pairs; none is flagged where ``reason`` says why the judge could not tell.
        mean_probability: of being mismatched, over all pairs: an estimate of the share that does not depend on a
            threshold. None if the judge gives no probabilities.
        share_estimated: of mismatched pairs, by the detector; None if it could not tell, or the judge has none.
        reason: why a detector could not tell, and kept all pairs; empty if it could.
        settings: of the judge, its name among them.
        detection: quality against the truth, the fields of :class:`raydr.noise.detection_report.DetectionReport`; None
            if the truth is not known.
    """

    judge: str
    num_judged: int
    num_flagged: int
    mean_probability: float | None
    share_estimated: float | None
    reason: str
    settings: dict[str, Any]
    detection: dict[str, Any] | None

    @property
    def share_flagged(self) -> float | None:
        """None where nothing was judged, or the judge could not tell."""
        return self.num_flagged / self.num_judged if self.num_judged and not self.reason else None


@dataclass(frozen=True)
class NegativeFindings:
    """What a judge of candidate negatives found.

    Args:
        judge: its name.
        all_queries: of all judged queries.
        trusted_queries: without those whose annotated pair is suspected; equal to ``all_queries`` if none was judged.
        settings, detection: as in :class:`PairFindings`; the quality is of all queries.
    """

    judge: str
    all_queries: FalseNegativeStatistics
    trusted_queries: FalseNegativeStatistics
    settings: dict[str, Any]
    detection: dict[str, Any] | None


@dataclass(frozen=True)
class AuditResult:
    """All figures of an audit.

    Args:
        split, model: what was audited, and by whose scores.
        train_split: what is trained on.
        data: counts of the split itself.
        num_leaked: queries of it that the training split has too; of the training split: that another has.
        num_left_out: rows of corpus and data set, of all splits, that could not be used when they were prepared.
        pairs, negatives: one a judge.
        pair_agreement, negative_agreement: of the judges of pairs, and of negatives; None if there are none.
        suspected_by: the judge of pairs that says which queries are not trusted; empty if there is none.
        num_known, num_known_trusted: false negatives that are known, in all queries and in the trusted ones.
    """

    split: str
    model: str
    train_split: str
    data: SplitReport
    num_leaked: int
    num_left_out: int
    pairs: list[PairFindings]
    negatives: list[NegativeFindings]
    pair_agreement: Agreement | None
    negative_agreement: Agreement | None
    suspected_by: str
    num_known: int
    num_known_trusted: int

    @property
    def faults(self) -> list[str]:
        """What is wrong with the data whatever the judges say, one sentence each."""
        left_out = (
            f"{self.num_left_out:,} rows, of whichever split, were left out when the data were prepared (dangling ids, "
            "broken lines): quarantine.jsonl beside corpus and data set has them"
        )
        also = "another split" if self.split == self.train_split else self.train_split
        found = [left_out] * bool(self.num_left_out) + leak_findings(self.num_leaked, self.split, also)
        return found + split_findings(self.split, self.data)

    @property
    def numbers(self) -> dict[str, float]:
        """The main figures, flat, for tracking: estimated shares by judge, and quality where the truth is known."""
        found: dict[str, float | None] = {}
        for pair in self.pairs:
            found[f"mismatched_share.{pair.judge}"] = pair.share_flagged
            found[f"mismatched_probability.{pair.judge}"] = pair.mean_probability
        for one in self.negatives:
            found[f"false_negative_share.{one.judge}"] = one.trusted_queries.share_flagged
            found[f"queries_with_false_negative.{one.judge}"] = one.trusted_queries.share_of_queries
        judged: list[PairFindings | NegativeFindings] = [*self.pairs, *self.negatives]
        for judgment in judged:
            for name in ("precision", "recall", "auroc"):
                found[f"{name}.{judgment.judge}"] = (judgment.detection or {}).get(name)
        return {name: value for name, value in found.items() if value is not None}

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        plain: dict[str, Any] = TypeAdapter(AuditResult).dump_python(self, mode="json")
        return plain

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> AuditResult:
        """The inverse of :meth:`to_json`."""
        return TypeAdapter(AuditResult).validate_python(raw)
