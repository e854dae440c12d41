"""Interface of the judges.

A judge returns a verdict on each candidate of a batch of queries, from scores alone; ``reads`` is their source. The
candidates of all queries are in a flat array, those of query i at ``offsets[i]:offsets[i + 1]``. A batch is judged
without a Python loop.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt
from pydantic import Field, PlainSerializer, PlainValidator, field_validator

from raydr.component import Component
from raydr.errors import ConfigError, DataError
from raydr.noise.judges.asked import Asked, AskedModels, CrossEncoder, Embedder, Retriever
from raydr.noise.margins import Margins

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
#: Array of integers that is a list in JSON.
CountArray = Annotated[
    IntArray, PlainValidator(lambda raw: np.array(raw, dtype=np.int64)), PlainSerializer(np.ndarray.tolist)
]

#: Effects on a candidate: keep, it stays a negative; drop, it is no negative of the query; down_weight, its exp(score)
#: has a weight; relabel, it becomes a positive.
Action = Literal["keep", "drop", "down_weight", "relabel"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True)
class ScoredCandidates:
    """Scores of the candidates of Q queries, M candidates in all.

    Args:
        scores_M: float64, scores of the candidates, grouped by query.
        offsets: int64, shape (Q + 1,), from 0 to M, not decreasing; a query may have no candidate.
        positive_scores_Q: float64, scores of the annotated positives by the same model; None if no judge reads them.
        likeness_M: float64, likeness of each candidate to its query's nearest positive, 1 for a copy; None if no judge
            reads it.
    """

    scores_M: FloatArray
    offsets: IntArray
    positive_scores_Q: FloatArray | None = None
    likeness_M: FloatArray | None = None

    def __post_init__(self) -> None:
        offsets, num_scores = np.asarray(self.offsets), len(self.scores_M)
        ends = (offsets[0], offsets[-1]) if offsets.ndim == 1 and offsets.size else None
        if ends != (0, num_scores) or (np.diff(offsets) < 0).any():
            raise DataError(f"offsets must rise from 0 to the number of scores, {num_scores}; got {offsets}")
        if not np.isfinite(self.scores_M).all():
            raise DataError(f"score {int((~np.isfinite(self.scores_M)).argmax())} of the candidates is not finite")
        if self.likeness_M is not None and len(self.likeness_M) != num_scores:
            raise DataError(f"got {len(self.likeness_M)} likenesses for {num_scores} scores")
        if self.positive_scores_Q is None:
            return
        if len(self.positive_scores_Q) != self.num_queries:
            raise DataError(f"got {len(self.positive_scores_Q)} positive scores for {self.num_queries} queries")
        if not np.isfinite(self.positive_scores_Q).all():
            query = int((~np.isfinite(self.positive_scores_Q)).argmax())
            raise DataError(f"the positive of query {query} of the batch has no finite score: score it first")

    @classmethod
    def of_query(
        cls, scores: npt.ArrayLike, positive_score: float | None = None, likeness: FloatArray | None = None
    ) -> ScoredCandidates:
        """Return the candidates of a single query."""
        scores_M = np.asarray(scores, dtype=np.float64)
        positive = None if positive_score is None else np.array([positive_score], dtype=np.float64)
        return cls(scores_M, np.array([0, len(scores_M)]), positive, likeness)

    @property
    def num_queries(self) -> int:
        return len(self.offsets) - 1

    def query_M(self) -> IntArray:
        """Return the query number of each candidate."""
        return np.repeat(np.arange(self.num_queries), np.diff(self.offsets))

    def positives(self, judge: str) -> FloatArray:
        """Return the scores of the positives, which the judge requires."""
        if self.positive_scores_Q is None:
            raise DataError(f"judge {judge} needs the score of each query's annotated positive")
        return self.positive_scores_Q

    def likeness(self, judge: str) -> FloatArray:
        """Return the likenesses, which the judge requires."""
        if self.likeness_M is None:
            raise DataError(f"judge {judge} needs the likeness of each candidate to its query's positive")
        return self.likeness_M

    def sum_Q(self, values_M: FloatArray) -> FloatArray:
        """Sum the values of each query's candidates; 0 for a query without candidates."""
        # np.add.reduceat would return a neighbour's value for an empty query.
        return np.bincount(self.query_M(), weights=values_M, minlength=self.num_queries).astype(np.float64)


@dataclass(frozen=True)
class Verdicts:
    """Verdicts on candidates, in the order of the scores; for judges of pairs, on queries.

    Args:
        score: float64, suspicion: the higher, the more likely a false negative or mismatched pair.
        action: str array of :data:`ACTIONS`.
        weight: float64, weight of exp(score) in the softmax: 1 for keep, 0 for drop and relabel, between for
            down_weight.
    """

    score: FloatArray
    action: npt.NDArray[np.str_]
    weight: FloatArray


class Judge(Component):
    """Base of the judges; subclasses implement :meth:`judge`."""

    package: ClassVar[str] = "raydr.noise.judges"
    kind: ClassVar[str] = "judge"
    subject: ClassVar[Literal["negatives", "pairs"]] = "negatives"
    """Subject of the verdicts: ``negatives``, each candidate; ``pairs``, the annotated positive of each query."""

    reads: ClassVar[Literal["retriever", "guide", "cross_encoder", "random_sample", "earlier"]] = "retriever"
    """Scores that the judge reads: the retriever's similarity, another embedding model's similarity, a cross-encoder's
    probability, the retriever's scale * similarity with a random sample, or an earlier judge's probability of a wrong
    label."""

    reads_likeness: ClassVar[bool] = False
    """Whether the judge also reads each candidate's likeness to its query's positive."""

    flags: ClassVar[str]
    """Description of flagged items: the end of the sentence "flags ..."."""

    score_name: ClassVar[str]
    """Name of the verdict's score."""

    score_is_probability: ClassVar[bool] = False
    """Whether the score is P(false negative) or P(mismatched)."""

    def content(self) -> dict[str, Any]:
        """Return the settings that the verdicts depend on, besides the texts and scores."""
        return self.differing_settings()

    def asks(self, models: AskedModels) -> Asked:
        """Return the model whose scores the judge reads; judges with their own model override it.

        Args:
            models: section ``judge`` of the run.
        """
        match self.reads:
            case "guide":
                return Embedder(models.guide)
            case "cross_encoder":
                return CrossEncoder(models.classifier)
            case "random_sample":
                return Retriever()
            case "earlier":
                return None
            case "retriever":
                return None if models.scores == "miner" else Retriever()

    def companions(self) -> tuple[Judge, ...]:
        """Return the judges of candidates that this judge implies."""
        return ()

    @abstractmethod
    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        """Return verdicts on the candidates of a batch, which depend on the scores of their query alone."""


def judge_class(settings: Mapping[str, Any]) -> type[Judge]:
    """Return the class of the judge with these settings."""
    judge = Judge.choices()[settings["name"]]
    assert issubclass(judge, Judge)
    return judge


class SuspicionJudge(Judge):
    """Base of the judges that drop or down-weight candidates with a suspicion above 0."""

    action: Literal["drop", "down_weight"] = "drop"
    """Action on suspicious candidates."""

    weight: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Weight of suspicious candidates under ``down_weight``."""

    def verdicts(self, suspicion_M: FloatArray, suspicious_M: BoolArray) -> Verdicts:
        """Return the verdicts on suspicious and other candidates."""
        reduced = 0.0 if self.action == "drop" else self.weight
        return Verdicts(suspicion_M, np.where(suspicious_M, self.action, "keep"), np.where(suspicious_M, reduced, 1.0))


class SecondJudge(Judge):
    """Base of the judges that can follow another judge, whose verdicts they override."""

    after: str = ""
    """Earlier judge; empty if the judge follows no other judge."""

    def choose(self, evidence_N: FloatArray) -> IntArray:
        """Return the rows to judge, in order, from the earlier judge's log-odds of a wrong label; all by default."""
        return np.arange(len(evidence_N))


class CascadeJudge(SecondJudge):
    """Base of the second judges that read only rows with a doubtful verdict of the judge ``after``.

    A verdict is doubtful by the earlier judge's probability of a wrong label, see
    :func:`raydr.noise.evidence.evidence`. For judges without probabilities it is σ(2 · standard deviations of the score
    above the flagging threshold), ½ at the threshold.
    """

    after: str = ""
    """Earlier judge whose doubtful verdicts are judged again; if empty, all rows are judged."""

    unsure: tuple[float, float] = (0.1, 0.9)
    """Range of the earlier judge's probability of a wrong label in which a verdict is doubtful, bounds included. ``[0,
    1]`` judges all rows again, ``[0.5, 1]`` rows that it tends to flag. For a judge without probabilities it is ½ at
    the flagging threshold, and 0.88 a standard deviation above."""

    @field_validator("unsure")
    @classmethod
    def _in_order(cls, unsure: tuple[float, float]) -> tuple[float, float]:
        if not 0.0 <= unsure[0] <= unsure[1] <= 1.0:
            raise ValueError(f"unsure={list(unsure)} is no range of probabilities; allowed: 0 ≤ low ≤ high ≤ 1")
        return unsure

    def content(self) -> dict[str, Any]:
        content = super().content()
        return content if self.after else {name: content[name] for name in content if name not in ("after", "unsure")}

    def choose(self, evidence_N: FloatArray) -> IntArray:
        """Return the doubtful rows, in order, from the log-odds of a wrong label."""
        low, high = self.unsure
        wrong_N = 1.0 / (1.0 + np.exp(-evidence_N))
        return np.flatnonzero((wrong_N >= low) & (wrong_N <= high))


class SampleJudge(Judge):
    """Base of the judges of pairs that compare with a random sample of passages, shared by all queries."""

    subject: ClassVar[Literal["pairs"]] = "pairs"
    reads: ClassVar[Literal["random_sample"]] = "random_sample"
    sample: ClassVar[Literal["corpus", "positives"]] = "corpus"
    """Source of the sample: all passages, or the annotated positives of the split."""

    num_random: int = Field(default=10_000, ge=1)
    """Maximum size of the sample; known positives of a query and their copies are left out."""


@dataclass(frozen=True)
class Decision:
    """Verdicts on all pairs of a split, and their basis.

    Args:
        verdicts: verdict on each pair.
        facts: basis of the decision, such as threshold and fit; JSON values.
        columns: float64 columns by name, with a value for each pair; stored beside the verdicts.
        probability: float64 in [0, 1], P(mismatched) of each pair; None if the judge has none.
    """

    verdicts: Verdicts
    facts: dict[str, Any]
    columns: dict[str, FloatArray]
    probability: FloatArray | None = None


class SplitJudge(Judge):
    """Base of the judges that first measure each pair of a split, and then decide on all pairs.

    Only :meth:`measure` reads scores, so that a split is measured in pieces, with a few numbers per pair.
    """

    subject: ClassVar[Literal["pairs"]] = "pairs"
    measures: ClassVar[tuple[str, ...]]
    """Names of the numbers measured for each pair."""

    @abstractmethod
    def measure(self, candidates: ScoredCandidates) -> dict[str, FloatArray]:
        """Measure each pair from its own scores; return arrays by name, shape (Q,)."""

    @abstractmethod
    def decide(self, measures: Mapping[str, FloatArray]) -> Decision:
        """Return verdicts on all pairs of a split, in any order, and their basis."""

    def decide_margins(self, margins: Margins) -> Decision:
        """Return verdicts from cross-fitted margins, for judges whose model is ``CrossFitted``."""
        raise ConfigError(f"judge {self.name} does not read cross-fitted margins")

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        """Measure all pairs of a split in a single batch, and decide."""
        return self.decide(self.measure(candidates)).verdicts
