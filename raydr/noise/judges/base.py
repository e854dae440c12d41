"""What a judge sees and returns.

A judge gives each candidate of a batch of queries a verdict, from scores alone: which model made the scores is the
caller's business (``reads`` says which kind the rule is meant for). The candidates of all queries lie in one flat
array, those of query i at ``offsets[i]:offsets[i + 1]``, so that whole shards are judged without a Python loop.
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
#: Whole numbers that are kept as a list in JSON.
CountArray = Annotated[
    IntArray, PlainValidator(lambda raw: np.array(raw, dtype=np.int64)), PlainSerializer(np.ndarray.tolist)
]

#: keep: stays a negative; drop: never a negative of that query; down_weight: its exp(score) counts by a weight;
#: relabel: becomes a further positive.
Action = Literal["keep", "drop", "down_weight", "relabel"]
ACTIONS: tuple[Action, ...] = get_args(Action)


@dataclass(frozen=True)
class ScoredCandidates:
    """Scores of the candidates of Q queries, M candidates in all.

    Args:
        scores_M: float64, of the candidates, query after query.
        offsets: int64, shape (Q + 1,), from 0 to M, never falling; a query may have no candidate.
        positive_scores_Q: float64, of each query's annotated positive under the same model; None if no judge needs it.
        likeness_M: float64, how like the nearest positive of its query a candidate is, 1 for a copy; None likewise.
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
            raise DataError(f"the likeness of {len(self.likeness_M)} candidates for {num_scores} scores")
        if self.positive_scores_Q is None:
            return
        if len(self.positive_scores_Q) != self.num_queries:
            raise DataError(f"{len(self.positive_scores_Q)} positive scores for {self.num_queries} queries")
        if not np.isfinite(self.positive_scores_Q).all():
            query = int((~np.isfinite(self.positive_scores_Q)).argmax())
            raise DataError(f"the positive of query {query} of the batch has no finite score; score it first")

    @classmethod
    def of_one(
        cls, scores: npt.ArrayLike, positive_score: float | None = None, likeness: FloatArray | None = None
    ) -> ScoredCandidates:
        """The candidates of a single query."""
        scores_M = np.asarray(scores, dtype=np.float64)
        positive = None if positive_score is None else np.array([positive_score], dtype=np.float64)
        return cls(scores_M, np.array([0, len(scores_M)]), positive, likeness)

    @property
    def num_queries(self) -> int:
        return len(self.offsets) - 1

    def query_M(self) -> IntArray:
        """The number of the query that each candidate belongs to."""
        return np.repeat(np.arange(self.num_queries), np.diff(self.offsets))

    def positives(self, judge: str) -> FloatArray:
        """The positives' scores, or an error that names the judge that needs them."""
        if self.positive_scores_Q is None:
            raise DataError(f"judge {judge} needs the score of each query's annotated positive")
        return self.positive_scores_Q

    def likeness(self, judge: str) -> FloatArray:
        """How like their positives the candidates are, or an error that names the judge that needs it."""
        if self.likeness_M is None:
            raise DataError(f"judge {judge} needs to know how like its query's positive each candidate is")
        return self.likeness_M

    def sum_Q(self, values_M: FloatArray) -> FloatArray:
        """Sum of the values of each query's candidates; 0 for a query without any."""
        # np.add.reduceat would return a neighbour's value for an empty query.
        return np.bincount(self.query_M(), weights=values_M, minlength=self.num_queries).astype(np.float64)


@dataclass(frozen=True)
class Verdicts:
    """One verdict a candidate, in the order of the scores (or one a query, for judges of pairs).

    Args:
        score: float64, how suspicious it is: the higher, the more likely a false negative (or a mismatched pair).
        action: str array of :data:`ACTIONS`.
        weight: float64, weight of exp(score) in the softmax: 1 keep, 0 drop and relabel, between for down_weight.
    """

    score: FloatArray
    action: npt.NDArray[np.str_]
    weight: FloatArray


class Judge(Component):
    """Base of the judges; subclasses implement :meth:`judge`."""

    package: ClassVar[str] = "raydr.noise.judges"
    kind: ClassVar[str] = "judge"
    subject: ClassVar[Literal["negatives", "pairs"]] = "negatives"
    """``negatives``: one verdict a candidate; ``pairs``: one a query, on its annotated positive."""

    reads: ClassVar[Literal["retriever", "guide", "cross_encoder", "random_sample", "earlier"]] = "retriever"
    """What made the scores: the retriever's similarity, that of another embedding model, a cross-encoder's probability,
    scale * similarity of the retriever with a random sample of passages, or the judge that this one comes after: its
    probability of the label being wrong."""

    reads_likeness: ClassVar[bool] = False
    """Whether it is told too how like its query's positive each candidate is, by the same model."""

    flags: ClassVar[str]
    """What it flags, for people: the end of the sentence "flags ..."."""

    score_name: ClassVar[str]
    """What the score of its verdicts is."""

    score_is_probability: ClassVar[bool] = False
    """Whether that is the probability of what the judge looks for."""

    def content(self) -> dict[str, Any]:
        """The settings that its verdicts depend on, besides the texts and what it reads."""
        return self.differing_settings()

    def asks(self, models: AskedModels) -> Asked:
        """The model whose scores it is given; judges with a model of their own override it.

        Args:
            models: the section ``judge`` of the run.
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

    def beside(self) -> tuple[Judge, ...]:
        """Further judges that it stands for where candidates are judged."""
        return ()

    @abstractmethod
    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        """Verdicts on the candidates of a batch of queries; each query is judged by its own scores only."""


def judge_class(settings: Mapping[str, Any]) -> type[Judge]:
    """The class of the judge that an artefact's settings describe."""
    judge = Judge.choices()[settings["name"]]
    assert issubclass(judge, Judge)
    return judge


class SuspicionJudge(Judge):
    """Base of the judges with one rule: a candidate whose suspicion is above 0 is dropped or weighs less."""

    action: Literal["drop", "down_weight"] = "drop"
    """What happens to suspicious candidates."""

    weight: float = Field(default=0.1, gt=0.0, lt=1.0)
    """Their weight with ``down_weight``."""

    def verdicts(self, suspicion_M: FloatArray, suspicious_M: BoolArray) -> Verdicts:
        """The verdicts that follow from who is suspicious."""
        reduced = 0.0 if self.action == "drop" else self.weight
        return Verdicts(suspicion_M, np.where(suspicious_M, self.action, "keep"), np.where(suspicious_M, reduced, 1.0))


class SecondJudge(Judge):
    """Base of the judges that can come after another one.

    With ``after`` only those rows are read on which that judge gave a doubtful verdict, and there this judge's verdict
    takes the place of that one. How doubtful a verdict is, see :func:`raydr.noise.reviewed.evidence`: the judge's
    probability that the label is wrong, and for judges without one σ(2 · standard deviations of the score from where
    flagging begins), ½ on the edge.
    """

    after: str = ""
    """The earlier judge of the list whose doubtful verdicts are looked at again; everything is read if empty."""

    unsure: tuple[float, float] = (0.1, 0.9)
    """Doubtful: that judge's probability that the label is wrong lies between these two, these included. ``[0, 1]``
    has all looked at, ``[0.5, 1]`` what it is inclined to flag. A judge without probabilities is at ½ where its
    flagging begins, and at 0.88 a standard deviation of its scores above that."""

    @field_validator("unsure")
    @classmethod
    def _in_order(cls, unsure: tuple[float, float]) -> tuple[float, float]:
        if not 0.0 <= unsure[0] <= unsure[1] <= 1.0:
            raise ValueError(f"unsure={list(unsure)} is no range of probabilities; expected 0 ≤ low ≤ high ≤ 1")
        return unsure

    def content(self) -> dict[str, Any]:
        content = super().content()
        return content if self.after else {name: content[name] for name in content if name not in ("after", "unsure")}

    def choose(self, evidence_N: FloatArray) -> IntArray:
        """The rows that are read, in their order, by the log-odds of their labels being wrong."""
        low, high = self.unsure
        wrong_N = 1.0 / (1.0 + np.exp(-evidence_N))
        return np.flatnonzero((wrong_N >= low) & (wrong_N <= high))


class SampleJudge(Judge):
    """Base of the judges of pairs: the candidates of a query are a random sample of passages, shared by all queries."""

    subject: ClassVar[Literal["pairs"]] = "pairs"
    reads: ClassVar[Literal["random_sample"]] = "random_sample"
    sample: ClassVar[Literal["corpus", "positives"]] = "corpus"
    """Where the sample is drawn from: all passages, or the annotated positives of the split."""

    num_random: int = Field(default=10_000, ge=1)
    """Passages in the sample, at most; the query's known positives and their copies do not count."""


@dataclass(frozen=True)
class Decision:
    """Verdicts on all pairs of a split, and what they rest on.

    Args:
        verdicts: one a pair.
        facts: of the whole decision, such as a threshold and a fit; JSON values.
        columns: float64, by name, one value a pair each; kept beside the verdicts.
        probability: float64 in [0, 1], of each pair being mismatched, if the judge gives one.
    """

    verdicts: Verdicts
    facts: dict[str, Any]
    columns: dict[str, FloatArray]
    probability: FloatArray | None = None


class SplitJudge(Judge):
    """Base of the judges that compare the pairs of a whole split: each is measured, then all are decided on at once.

    Only :meth:`measure` sees scores, so that a split is measured piece by piece, a few numbers a pair kept.
    """

    subject: ClassVar[Literal["pairs"]] = "pairs"
    measures: ClassVar[tuple[str, ...]]
    """Names of the numbers that are kept of a pair."""

    @abstractmethod
    def measure(self, candidates: ScoredCandidates) -> dict[str, FloatArray]:
        """The numbers of each pair by name, from its own scores only, shape (Q,) each."""

    @abstractmethod
    def decide(self, measures: Mapping[str, FloatArray]) -> Decision:
        """Verdicts on all pairs of a split in any order, and what the decision rests on (for people)."""

    def decide_margins(self, margins: Margins) -> Decision:
        """The same from cross-fitted margins, for judges that may ask for these (``asks``)."""
        raise ConfigError(f"judge {self.name} does not read cross-fitted margins")

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        """Verdicts on all pairs of a split, given in one batch."""
        return self.decide(self.measure(candidates)).verdicts
