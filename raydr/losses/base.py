"""What a loss sees and returns.

Every loss works on one matrix of scores between the queries and all their candidates (hard negatives,
in-batch passages, passages gathered from the other workers). Which candidates count is decided once, by the
mask, before any loss sees them: known positives, passages identical to one, and passages that a judge
dropped for a query are excluded for it.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from raydr.component import Component
from raydr.errors import ConfigError

# Configs name losses, and reading a config must not take the seconds that importing PyTorch does.
if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """Scores of Q queries against C candidate passages, and what is known about each cell.

    Args:
        scores_QC: scale · sim(query, passage), float32, before any masking.
        positive_Q: int64, the column of each query's annotated positive.
        excluded_QC: bool, True where the candidate must not count for the query. Never True at the positive.
        hard_QC: bool, True where the candidate is one of the query's own hard negatives.
        further_QC: bool, True where the candidate is one more positive that the query has brought, for a loss of
            several; they are excluded as all its known positives are. None: it brings one.
        log_weight_QC: float32, log of the weight of exp(score) in the denominator (0 = full weight), or None.
        log_draw_prob_QC: float32, log q(passage | query) with which a hard negative was drawn, or None.
        teacher_scores_QC: float32, the same scores under the EMA teacher, without gradient, or None.
        ranker_scores_QC: float32, a ranker's scores of the positive and of the query's own hard negatives, NaN where
            there is none, or None.
        clean_Q: float32, ŷ: 0 where the noise detector flagged the training pair and 1 elsewhere, or the probability
            that it is clean; None: all are clean.
    """

    scores_QC: Tensor
    positive_Q: Tensor
    excluded_QC: Tensor
    hard_QC: Tensor | None = None
    further_QC: Tensor | None = None
    log_weight_QC: Tensor | None = None
    log_draw_prob_QC: Tensor | None = None
    teacher_scores_QC: Tensor | None = None
    ranker_scores_QC: Tensor | None = None
    clean_Q: Tensor | None = None

    def logits_QC(self) -> Tensor:
        """Scores in float32 with weights applied and excluded cells at −inf."""
        logits_QC = self.scores_QC.float()
        if self.log_weight_QC is not None:
            logits_QC = logits_QC + self.log_weight_QC
        return logits_QC.masked_fill(self.excluded_QC, float("-inf"))


@dataclass(frozen=True)
class LossOutput:
    """One value a query, and figures for the log.

    Args:
        per_query_Q: the loss of each query; the training step takes the mean over the global batch.
        metrics: named scalars (detached), averaged over steps and workers for the log.
    """

    per_query_Q: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Loss(Component):
    """Base of the losses; subclasses implement :meth:`compute`."""

    package: ClassVar[str] = "raydr.losses"
    kind: ClassVar[str] = "loss"
    reads_pair_flags: ClassVar[bool] = False
    """True if the loss reads ``clean_Q``, what the detection of mismatched pairs has found."""

    reads_draw_probabilities: ClassVar[bool] = False
    """True if the loss reads ``log_draw_prob_QC``, which only some samplers can tell."""

    reads_ranker_scores: ClassVar[bool] = False
    """True if the loss reads ``ranker_scores_QC``: a ranker is asked about all candidates before training."""

    @property
    def needs_teacher(self) -> bool:
        """Whether the loss reads ``teacher_scores_QC``: the trainer then keeps an EMA teacher."""
        return False

    @property
    def teacher_every(self) -> int:
        """The teacher is asked at every so-manyth step; the others have no ``teacher_scores_QC``."""
        return 1

    @property
    def num_positives_at_once(self) -> int:
        """Positives that a query brings to a step, if it has so many."""
        return 1

    @property
    def num_warmup_epochs(self) -> int:
        """Epochs of ordinary training before noise detection and the teacher start."""
        return 0

    def first_own_epoch(self, num_epochs: int) -> int:
        """The first epoch after the warm-up, from 0; 0 where a training is too short to leave it.

        Of the epochs before it none is the result of the method.
        """
        return self.num_warmup_epochs if self.num_warmup_epochs < num_epochs else 0

    @abstractmethod
    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        """The loss of each query.

        Args:
            candidates: the step's scores.
            epoch: epochs finished before this step, for schedules.
        """

    def check(self, similarity: Literal["cosine", "dot"]) -> list[str]:
        """Advice on settings that are allowed but unwise with this similarity; the caller shows it as warnings."""
        return []


def log_softmax_QC(logits_QC: Tensor) -> Tensor:
    """Row-wise log-softmax in float32; excluded cells stay at −inf."""
    return logits_QC.float().log_softmax(dim=1)


def gather_positive(values_QC: Tensor, positive_Q: Tensor) -> Tensor:
    """The value at each query's positive, shape (Q,)."""
    return values_QC.gather(1, positive_Q.unsqueeze(1)).squeeze(1)


def beside_nce(own_Q: Tensor, name: str, candidates: Candidates, nce_weight: float) -> LossOutput:
    """A loss of each query, called ``name`` among the figures, with so much of NCE over all candidates beside it."""
    metrics = {name: own_Q.detach().mean()}
    if not nce_weight:
        return LossOutput(own_Q, metrics)
    nce_Q = -gather_positive(log_softmax_QC(candidates.logits_QC()), candidates.positive_Q)
    return LossOutput(own_Q + nce_weight * nce_Q, metrics | {"nce": nce_Q.detach().mean()})


def with_ranker_scores(candidates: Candidates, temperature: float) -> tuple[Candidates, Candidates]:
    """The candidates that a ranker has scored, all others excluded: by the student's scores, and by the ranker's.

    Args:
        candidates: the step's scores.
        temperature: divisor of the ranker's scores.

    Raises:
        ConfigError: there are no scores of a ranker.
    """
    if candidates.ranker_scores_QC is None:
        raise ConfigError("a loss that learns from a ranker got none of its scores: score the candidates first")
    unknown_QC = candidates.ranker_scores_QC.isnan()
    student = replace(candidates, excluded_QC=candidates.excluded_QC | unknown_QC)
    ranker_scores_QC = candidates.ranker_scores_QC.float().masked_fill(unknown_QC, 0.0) / temperature
    return student, replace(student, scores_QC=ranker_scores_QC)
