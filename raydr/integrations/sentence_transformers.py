"""raydr's losses for the trainer of sentence-transformers, and what ``raydr.find_noise`` has found in its data sets.

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

#: The column that the trainer gives to losses beside the texts.
LABEL = "label"


def drop_flagged(dataset: Dataset, noise: Noise) -> Dataset:
    """The data set without the pairs that were flagged.

    Args:
        dataset: with the columns of queries and positives that :func:`raydr.find_noise` was given.
        noise: what it has found.
    """
    dropped: Dataset = noise.drop_from(dataset)
    return dropped


def add_flags(dataset: Dataset, noise: Noise, weights: Literal["flags", "posterior"] = "flags") -> Dataset:
    """The data set with ŷ of each row in the column ``label``, which :class:`NoisyPairLoss` reads.

    Args:
        dataset: as in :func:`drop_flagged`, a positive a row.
        noise: what was found.
        weights: ``flags``: 0 for flagged pairs and 1 for others; ``posterior``: the probability of being right.

    Raises:
        ConfigError: it has a column ``label`` already.
    """
    if LABEL in dataset.column_names:
        raise ConfigError(f"the data set has a column {LABEL!r} already: remove it, or give its values to the loss")
    labelled: Dataset = dataset.add_column(LABEL, noise.trust_of(dataset, weights))
    return labelled


class ContrastiveLoss(nn.Module):
    """A loss of raydr over in-batch and hard negatives, as a loss of sentence-transformers.

    Scores are scale · similarity, in float32. A passage that repeats a query's positive, or is a positive of the same
    query in another row, is no negative of it. In data-parallel training each device has its own candidates.

    Args:
        model: that is trained.
        loss: of raydr.
        steps_per_epoch: optimiser steps of an epoch, for the loss's warm-up and the half-life of the teacher.
        scale: 1/temperature.
        similarity: ``cosine`` or ``dot``; that of the model if None.
        teacher: how slowly the teacher follows, for a loss that asks one.
        steps_done: optimiser steps before the first one here, for a training that is resumed; a teacher then starts as
            a copy of the resumed model.

    Raises:
        ConfigError: the model's similarity is none of these, or the loss reads what this trainer cannot give.
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
            raise ConfigError(f"the model's similarity is {name!r}; give similarity: allowed are cosine and dot")
        if loss.reads_ranker_scores or loss.reads_draw_probabilities or loss.num_positives_at_once > 1:
            raise ConfigError(f"the loss {loss.name!r} reads more than pairs and negatives: train it by raydr.train")
        if steps_per_epoch < 1:
            raise ConfigError(
                f"steps_per_epoch is {steps_per_epoch}; expected the optimiser steps of an epoch, 1 or more"
            )
        self.model = model
        self.loss = loss
        self.steps_per_epoch = steps_per_epoch
        self.scale = scale
        self.similarity = name
        self.momentum = (teacher or TeacherConfig()).momentum_of(steps_per_epoch)
        self.num_steps = steps_done
        self._weights_version: int | None = None
        #: Not a submodule: the trainer would optimise and save it. Empty before the warm-up is over.
        self._teachers: list[nn.Module] = []

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The mean loss of a batch.

        Args:
            sentence_features: tokens of anchors, positives, and of each column of negatives.
            labels: ŷ of each row, shape (Q,); all pairs are taken for right if None.
        """
        columns = list(sentence_features)
        if len(columns) < 2:
            raise ConfigError(f"{len(columns)} text columns were given; expected an anchor and a positive, or more")
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
        """scale · similarity of the queries with the passages of all columns, positives first, shape (Q, C)."""
        # A model writes its vectors into the features: each gets its own.
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
        return self._teachers[0]

    @torch.no_grad()
    def _follow_steps(self) -> None:
        """Count the optimiser steps since the last batch, and let the teacher follow.

        A step was taken where gradients have been put back to nothing, or weights have another version: batches that
        are added up for one step leave both as they are. Fused optimisers change no version.
        """
        learnt = next(weights for weights in self.model.parameters() if weights.requires_grad)
        fresh = learnt.grad is None or not learnt.grad.any()
        before, self._weights_version = self._weights_version, learnt._version
        if before is None or not (fresh or before != learnt._version):
            return
        self.num_steps += 1
        for teacher in self._teachers:
            student = getattr(self.model, "module", self.model)
            for own, other in zip(teacher.parameters(), student.parameters(), strict=True):
                own.lerp_(other.to(own), 1.0 - self.momentum)


class RobustContrastiveLoss(ContrastiveLoss):
    """NCE with contrastive confidence regularisation, for false negatives: :class:`raydr.losses.rcl.RCL`.

    Args:
        model: that is trained.
        steps_per_epoch: optimiser steps of an epoch: β begins after the first.
        loss: its settings.
        further: as in :class:`ContrastiveLoss`.
    """

    def __init__(
        self, model: SentenceTransformer, *, steps_per_epoch: int, loss: RCL | None = None, **further: Any
    ) -> None:
        super().__init__(model, loss or RCL(), steps_per_epoch=steps_per_epoch, **further)


class NoisyPairLoss(ContrastiveLoss):
    """The Noisy Pair Corrector, for mismatched pairs: :class:`raydr.losses.npc.NPC`.

    Rows whose ``label`` is 0 learn from an EMA teacher alone (:func:`add_flags`). The first epoch is plain NCE.

    Args:
        model: that is trained.
        steps_per_epoch: optimiser steps of an epoch.
        loss: its settings.
        further: as in :class:`ContrastiveLoss`.
    """

    def __init__(
        self, model: SentenceTransformer, *, steps_per_epoch: int, loss: NPC | None = None, **further: Any
    ) -> None:
        super().__init__(model, loss or NPC(), steps_per_epoch=steps_per_epoch, **further)


def _known_positives(columns: Sequence[dict[str, Tensor]]) -> Tensor:
    """Which candidates are no negatives: copies of the positive, and positives of the same query in other rows.

    Texts are compared by their tokens; bool, shape (Q, C).
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
    """The tokens of each text of a column, without padding."""
    tokens, mask = features["input_ids"].tolist(), features["attention_mask"].tolist()
    return [
        tuple(token for token, is_text in zip(row, here, strict=True) if is_text)
        for row, here in zip(tokens, mask, strict=True)
    ]
