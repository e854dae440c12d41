"""Signals: what a training knows of its queries and passages besides their texts, from its inputs to the loss.

A signal has two parts:

* a :class:`Signal`, read from an input of the training. It looks up what it knows of a batch when the batch is made.
* a :class:`BatchSignal`, the tensors of a batch. It writes them into the :class:`~raydr.losses.base.Candidates` of a
  loss, or excludes candidates.

Batches, their encodings and the trainer carry signals and read none of them. A new signal is a class in
:mod:`raydr.training.signal_sources`, and a loss that reads it by its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raydr.losses.base import Candidates
from raydr.models.batching import move

BatchSignalT = TypeVar("BatchSignalT", bound="BatchSignal")


@dataclass(frozen=True)
class DrawnBatch:
    """The queries of a batch and the passages drawn for them, G for each query, the positive first.

    Args:
        query_rows: int64, (Q,): positions of the queries in the examples.
        passage_rows: int64, (Q, G): rows of the passages in the corpus.
        is_listed: bool, (Q, G): True at the annotated positive and at negatives from the query's candidate list. False
            at random passages and empty places.
        log_draw_prob: float32, (Q, G): log-probability with which a negative was drawn; NaN where it is unknown.
    """

    query_rows: NDArray[np.int64]
    passage_rows: NDArray[np.int64]
    is_listed: NDArray[np.bool_]
    log_draw_prob: NDArray[np.float32]


@dataclass(frozen=True)
class Cells:
    """Where the queries of a score matrix have their passages.

    Args:
        rows: the queries of the batch that are the rows of the matrix.
        own_QG: int64, the columns of each query's own G passages.
        hash_C: int64, content hash of each column's passage.
    """

    rows: slice
    own_QG: Tensor
    hash_C: Tensor


class Signal(Protocol):
    """A signal of a whole training."""

    def of(self, drawn: DrawnBatch) -> BatchSignal | None:
        """Look up the signal of a batch; None if nothing is known of it. Called in the thread that makes batches."""


@dataclass(frozen=True)
class BatchSignal(ABC):
    """A signal of a batch; its fields that are tensors go to the device with the batch."""

    def to(self: BatchSignalT, device: torch.device) -> BatchSignalT:
        tensors: dict[str, Any] = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **{name: move(value, device) for name, value in tensors.items()})

    def gathered(self: BatchSignalT) -> BatchSignalT:
        """Return the signal with what it needs of other ranks' passages; each rank calls this once for a batch."""
        return self

    @abstractmethod
    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        """Return the candidates with the signal written into them."""


@dataclass(frozen=True)
class PlaceSignal(BatchSignal):
    """A number for each passage of a query's own.

    Args:
        name: of the signal.
        value_QG: float32, NaN where nothing is known.
    """

    name: str
    value_QG: Tensor

    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        unknown_QC = torch.full_like(candidates.scores_QC, math.nan)
        value_QC = unknown_QC.scatter(1, cells.own_QG, self.value_QG[cells.rows])
        return candidates.with_signals(**{self.name: value_QC})


@dataclass(frozen=True)
class QuerySignal(BatchSignal):
    """A number for each query.

    Args:
        name: of the signal.
        value_Q: float32.
    """

    name: str
    value_Q: Tensor

    def put(self, candidates: Candidates, cells: Cells) -> Candidates:
        return candidates.with_signals(**{self.name: self.value_Q[cells.rows]})
