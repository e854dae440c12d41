"""The input and the output of a loss.

A loss reads a matrix of scores of a step's queries with all their candidates. Candidates are a query's positive and
hard negatives, and the passages of other queries, also on other workers. A mask, computed before the loss, excludes for
each query its other known positives, their copies, and passages that a judge dropped.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

from raydr.component import Component
from raydr.errors import ConfigError

# Configs name losses, and importing PyTorch would delay the reading of a config by seconds.
if TYPE_CHECKING:
    from torch import Tensor

#: Names of signals in :attr:`Candidates.signals`. They come from :mod:`raydr.training.signals`; the teacher's scores
#: from :mod:`raydr.training.scoring`, ŷ from :mod:`raydr.training.trainer`.
#: float32, (Q, C): log q(passage | query) of the draw of a hard negative; NaN elsewhere.
LOG_DRAW_PROB = "log_draw_prob_QC"
#: float32, (Q, C): scores by the EMA teacher, without gradients.
TEACHER_SCORES = "teacher_scores_QC"
#: float32, (Q, C): scores of the positive and of the query's own hard negatives by a ranker; NaN elsewhere.
RANKER_SCORES = "ranker_scores_QC"
#: float32, (Q,): ŷ, 0 for a training pair that the detector flags and 1 for others, or p(clean).
CLEAN = "clean_Q"


@dataclass(frozen=True)
class Candidates:
    """Scores of Q queries with C candidate passages, with masks and signals.

    Args:
        scores_QC: scale · sim(query, passage), float32, without masks.
        positive_Q: int64, column of each query's annotated positive.
        excluded_QC: bool, True at candidates that are excluded for the query; never at the positive.
        hard_QC: bool, True at the query's own hard negatives.
        log_weight_QC: float32, log of the weight of exp(score) in the denominator (0 is full weight), or None.
        signals: signals of queries and cells, by name; those that this step lacks are absent.
    """

    scores_QC: Tensor
    positive_Q: Tensor
    excluded_QC: Tensor
    hard_QC: Tensor | None = None
    log_weight_QC: Tensor | None = None
    signals: Mapping[str, Tensor] = field(default_factory=dict)

    def signal(self, name: str) -> Tensor | None:
        """Return a signal, shape (Q,) or (Q, C) by its name; None if this step lacks it."""
        return self.signals.get(name)

    def with_signals(self, **signals: Tensor | None) -> Candidates:
        """Return the candidates with signals added, or replaced by name; None removes a signal."""
        merged = {**self.signals, **signals}
        return replace(self, signals={name: tensor for name, tensor in merged.items() if tensor is not None})

    def logits_QC(self) -> Tensor:
        """Return the scores in float32, plus the log weights, and with excluded cells at −inf."""
        logits_QC = self.scores_QC.float()
        if self.log_weight_QC is not None:
            logits_QC = logits_QC + self.log_weight_QC
        return logits_QC.masked_fill(self.excluded_QC, float("-inf"))


@dataclass(frozen=True)
class LossOutput:
    """The loss of each query, and figures for the log.

    Args:
        per_query_Q: loss of each query; a training step minimises the mean over the global batch.
        metrics: detached scalars by name; the log has their means over steps and workers.
    """

    per_query_Q: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class Loss(Component):
    """Base of the losses; subclasses implement :meth:`compute`."""

    package: ClassVar[str] = "raydr.losses"
    kind: ClassVar[str] = "loss"
    reads_pair_flags: ClassVar[bool] = False
    """Whether the loss reads the signal ``clean_Q``, the flags of mismatched pairs."""

    reads_draw_probabilities: ClassVar[bool] = False
    """Whether the loss reads the signal ``log_draw_prob_QC``, which only some samplers know."""

    reads_ranker_scores: ClassVar[bool] = False
    """Whether the loss reads the signal ``ranker_scores_QC``, scores of all candidates by a ranker before training."""

    @property
    def needs_teacher(self) -> bool:
        """Whether the loss reads the signal ``teacher_scores_QC``, for which the trainer keeps an EMA teacher."""
        return False

    @property
    def teacher_every(self) -> int:
        """Interval of the teacher's use, in steps; other steps lack ``teacher_scores_QC``."""
        return 1

    @property
    def num_warmup_epochs(self) -> int:
        """Number of epochs of plain NCE, before pair detection and the teacher start."""
        return 0

    def first_own_epoch(self, num_epochs: int) -> int:
        """Return the first epoch after the warm-up, from 0; 0 if the training ends before.

        Earlier epochs are not results of the method.
        """
        return self.num_warmup_epochs if self.num_warmup_epochs < num_epochs else 0

    @abstractmethod
    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        """Compute the loss of each query.

        Args:
            candidates: scores of the step.
            epoch: number of epochs finished before this step, for schedules.
        """

    def check(self, similarity: Literal["cosine", "dot"]) -> list[str]:
        """Return warnings of settings that are allowed but unwise with this similarity."""
        return []


def log_softmax_QC(logits_QC: Tensor) -> Tensor:
    """Compute the row-wise log-softmax in float32; excluded cells stay at −inf."""
    return logits_QC.float().log_softmax(dim=1)


def kl_divergence(log_probs_QC: Tensor, log_reference_QC: Tensor) -> Tensor:
    """Compute KL(p ‖ r) = Σ_c p_c · (log p_c − log r_c) of each row, shape (Q,); cells with p_c = 0 add nothing."""
    dead_QC = log_probs_QC.isneginf()
    # Both logs are −inf at excluded cells, and −inf − (−inf) is NaN in both passes.
    log_ratio_QC = log_probs_QC.masked_fill(dead_QC, 0.0) - log_reference_QC.masked_fill(dead_QC, 0.0)
    return (log_probs_QC.exp() * log_ratio_QC).sum(dim=1)


def gather_positive(values_QC: Tensor, positive_Q: Tensor) -> Tensor:
    """Return the value at each query's positive, shape (Q,)."""
    return values_QC.gather(1, positive_Q.unsqueeze(1)).squeeze(1)


def beside_nce(own_Q: Tensor, name: str, candidates: Candidates, nce_weight: float) -> LossOutput:
    """Add ``nce_weight`` · NCE over all candidates to the loss of each query; ``name`` is that of its metric."""
    metrics = {name: own_Q.detach().mean()}
    if not nce_weight:
        return LossOutput(own_Q, metrics)
    nce_Q = -gather_positive(log_softmax_QC(candidates.logits_QC()), candidates.positive_Q)
    return LossOutput(own_Q + nce_weight * nce_Q, metrics | {"nce": nce_Q.detach().mean()})


def with_ranker_scores(candidates: Candidates, temperature: float) -> tuple[Candidates, Candidates]:
    """Return the candidates with the student's scores, and with the ranker's, without cells that the ranker lacks.

    Args:
        candidates: scores of the step.
        temperature: divisor of the ranker's scores.

    Raises:
        ConfigError: the candidates have no scores of a ranker.
    """
    scores_QC = candidates.signal(RANKER_SCORES)
    if scores_QC is None:
        raise ConfigError("the loss reads a ranker's scores, and the step has none: score the candidates first")
    unknown_QC = scores_QC.isnan()
    student = replace(candidates, excluded_QC=candidates.excluded_QC | unknown_QC)
    return student, replace(student, scores_QC=scores_QC.float().masked_fill(unknown_QC, 0.0) / temperature)
