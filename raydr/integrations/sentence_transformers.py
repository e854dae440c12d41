"""Losses for the trainer of sentence-transformers, and findings of ``raydr.find_noise`` for its data sets.

::

    noise = raydr.find_noise(dataset)
    loss = NoisyPairLoss(model, steps_per_epoch=len(dataset) // batch_size)
    SentenceTransformerTrainer(model, arguments, add_flags(dataset, noise), loss=loss).train()

Rows are (anchor, positive) or (anchor, positive, negative, ...), as for its ``MultipleNegativesRankingLoss``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from raydr.errors import ConfigError
from raydr.losses.base import Candidates, Loss
from raydr.losses.npc import NPC
from raydr.losses.rcl import RCL
from raydr.training.sections import TeacherConfig

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer

    from raydr.pipeline.findings import Noise

#: Column that the trainer passes to losses beside the texts.
LABEL = "label"
#: Columns that the trainer takes for labels. It takes the first that there is, and the others for texts.
_LABELS = (LABEL, "labels", "score", "scores")


def drop_flagged(dataset: Dataset, noise: Noise) -> Dataset:
    """Return the data set without flagged pairs.

    Args:
        dataset: data set with the columns of queries and positives passed to :func:`raydr.find_noise`.
        noise: result of :func:`raydr.find_noise`.
    """
    dropped: Dataset = noise.drop_from(dataset)
    return dropped


def add_flags(dataset: Dataset, noise: Noise, weights: Literal["flags", "posterior"] = "flags") -> Dataset:
    """Return the data set with ŷ of each row in the column ``label``, which :class:`NoisyPairLoss` reads.

    Args:
        dataset: data set as in :func:`drop_flagged`, with a single positive in each row.
        noise: result of :func:`raydr.find_noise`.
        weights: ``flags``: 0 for flagged pairs and 1 for others; ``posterior``: P(right).

    Raises:
        ConfigError: it is no ``datasets.Dataset``, or already has a column of labels or scores.
    """
    if not hasattr(dataset, "add_column"):
        raise ConfigError(f"the data set is a {type(dataset).__name__}; expected a datasets.Dataset, of a single split")
    if taken := [name for name in _LABELS if name in dataset.column_names]:
        raise ConfigError(f"the data set already has a column {taken[0]!r}: remove it, or pass its values to the loss")
    labelled: Dataset = dataset.add_column(LABEL, noise.trust_of(dataset, weights))
    return labelled


class ContrastiveLoss(nn.Module):
    """Loss of raydr over in-batch and hard negatives, as a loss of sentence-transformers.

    Scores are scale · similarity, in float32. A copy of a query's positive, or a positive of the same query in another
    row, is not a negative. In data-parallel training each device has its own candidates.

    Args:
        model: trained model.
        loss: loss of raydr.
        steps_per_epoch: optimiser steps of an epoch, for the loss's warm-up and the half-life of the teacher.
        scale: 1/temperature.
        similarity: ``cosine`` or ``dot``; None: the model's similarity.
        teacher: decay of the teacher, for a loss with a teacher.
        steps_done: optimiser steps before a resumed training; a teacher then starts as a copy of the resumed model.

    Raises:
        ConfigError: the model has another similarity, or the loss needs more inputs than this trainer has.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        loss: Loss,
        *,
        steps_per_epoch: int,
        scale: float = 20.0,
        similarity: Literal["cosine", "dot"] | None = None,
        teacher: TeacherConfig | None = None,
        steps_done: int = 0,
    ) -> None:
        super().__init__()
        name = similarity or model.similarity_fn_name
        if name not in ("cosine", "dot"):
            raise ConfigError(f"the model's similarity is {name!r}; set similarity to cosine or dot")
        if loss.reads_ranker_scores or loss.reads_draw_probabilities:
            raise ConfigError(f"the loss {loss.name!r} needs more than pairs and negatives: use raydr.train")
        if steps_per_epoch < 1:
            raise ConfigError(
                f"steps_per_epoch is {steps_per_epoch}; expected the optimiser steps of an epoch, at least 1"
            )
        self.model = model
        self.loss = loss
        self.steps_per_epoch = steps_per_epoch
        self.scale = scale
        self.similarity = name
        self.momentum = (teacher or TeacherConfig()).momentum_of(steps_per_epoch)
        self.num_steps = steps_done
        self._weights_version: int | None = None
        #: A submodule would be optimised and saved by the trainer. Empty during the warm-up.
        self._teachers: list[nn.Module] = []
        #: The teacher's weights in float32: half precision would round the small steps of an average away.
        self._averages: list[Tensor] = []

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """Compute the mean loss of a batch.

        Args:
            sentence_features: tokens of anchors, positives, and each column of negatives.
            labels: ŷ of each row, shape (Q,); None: all pairs are right.
        """
        columns = list(sentence_features)
        if len(columns) < 2:
            raise ConfigError(f"got {len(columns)} text columns; expected an anchor and a positive, or more")
        if self.training and torch.is_grad_enabled():
            self._follow_steps()
        epoch = self.num_steps // self.steps_per_epoch
        scores_QC = self._scores(self.model, columns)
        num_queries = len(scores_QC)
        taught_QC = None
        taught = self.loss.needs_teacher and epoch >= self.loss.num_warmup_epochs
        if taught and self.num_steps % self.loss.teacher_every == 0:
            with torch.no_grad():
                taught_QC = self._scores(self._teacher(), columns)
        candidates = Candidates(
            scores_QC=scores_QC,
            positive_Q=torch.arange(num_queries, device=scores_QC.device),
            excluded_QC=_known_positives(columns).to(scores_QC.device),
        ).with_signals(
            teacher_scores_QC=taught_QC,
            clean_Q=labels.to(scores_QC) if labels is not None and self.loss.reads_pair_flags else None,
        )
        return self.loss.compute(candidates, epoch).per_query_Q.mean()

    def _scores(self, model: nn.Module, columns: Sequence[dict[str, Tensor]]) -> Tensor:
        """Compute scale · similarity of queries with passages of all columns, positives first, shape (Q, C)."""
        # A model writes its vectors into the features, so each needs its own copy.
        vectors = [model(dict(features))["sentence_embedding"] for features in columns]
        with torch.autocast(vectors[0].device.type, enabled=False):
            query_QD, passage_CD = vectors[0].float(), torch.cat(vectors[1:]).float()
            if self.similarity == "cosine":
                query_QD, passage_CD = (nn.functional.normalize(matrix, dim=-1) for matrix in (query_QD, passage_CD))
            scores_QC: Tensor = self.scale * query_QD @ passage_CD.T
            return scores_QC

    def _teacher(self) -> nn.Module:
        if not self._teachers:
            student = getattr(self.model, "module", self.model)
            self._teachers.append(copy.deepcopy(student).eval().requires_grad_(False))
            self._averages = [weights.float() for weights in self._teachers[0].parameters()]
        return self._teachers[0]

    @torch.no_grad()
    def _follow_steps(self) -> None:
        """Count the optimiser steps since the last batch, and update the teacher.

        A step has cleared gradients or changed the version of the weights; accumulated batches do neither. Fused
        optimisers change no version.
        """
        learnt = next(weights for weights in self.model.parameters() if weights.requires_grad)
        fresh = learnt.grad is None or not learnt.grad.any()
        before, self._weights_version = self._weights_version, learnt._version
        if before is None or not (fresh or before != learnt._version):
            return
        self.num_steps += 1
        for teacher in self._teachers:
            student = getattr(self.model, "module", self.model)
            for average, own, other in zip(self._averages, teacher.parameters(), student.parameters(), strict=True):
                own.copy_(average.lerp_(other.to(average), 1.0 - self.momentum))


class RobustContrastiveLoss(ContrastiveLoss):
    """NCE with contrastive confidence regularisation, for false negatives: :class:`raydr.losses.rcl.RCL`.

    Args:
        model: trained model.
        steps_per_epoch: optimiser steps of an epoch; β starts after the first epoch.
        loss: settings of the loss.
        further: further arguments of :class:`ContrastiveLoss`.
    """

    def __init__(
        self, model: SentenceTransformer, *, steps_per_epoch: int, loss: RCL | None = None, **further: Any
    ) -> None:
        super().__init__(model, loss or RCL(), steps_per_epoch=steps_per_epoch, **further)


class NoisyPairLoss(ContrastiveLoss):
    """The Noisy Pair Corrector, for mismatched pairs: :class:`raydr.losses.npc.NPC`.

    Rows whose ``label`` is 0 learn only from an EMA teacher (:func:`add_flags`). The first epoch is plain NCE.

    Args:
        model: trained model.
        steps_per_epoch: optimiser steps of an epoch.
        loss: settings of the loss.
        further: further arguments of :class:`ContrastiveLoss`.
    """

    def __init__(
        self, model: SentenceTransformer, *, steps_per_epoch: int, loss: NPC | None = None, **further: Any
    ) -> None:
        super().__init__(model, loss or NPC(), steps_per_epoch=steps_per_epoch, **further)


def _known_positives(columns: Sequence[dict[str, Tensor]]) -> Tensor:
    """Return which candidates are no negatives: copies of the positive, and other positives of the query.

    Texts are compared by tokens; bool, shape (Q, C).
    """
    texts = [_texts(features) for features in columns]
    queries, positives = texts[0], texts[1]
    passages = [text for column in texts[1:] for text in column]
    positives_of: dict[Any, set[Any]] = {}
    for query, positive in zip(queries, positives, strict=True):
        positives_of.setdefault(query, set()).add(positive)
    known_QC = torch.tensor([[passage in positives_of[query] for passage in passages] for query in queries])
    own = torch.arange(len(queries))
    known_QC[own, own] = False
    return known_QC


def _texts(features: dict[str, Tensor]) -> list[tuple[int, ...]]:
    """Return the tokens of each text of a column, without padding."""
    tokens, mask = features["input_ids"].tolist(), features["attention_mask"].tolist()
    return [
        tuple(token for token, is_text in zip(row, mask_of_row, strict=True) if is_text)
        for row, mask_of_row in zip(tokens, mask, strict=True)
    ]
