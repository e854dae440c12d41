"""Gradient caching: the gradients of a large softmax, with the activations of a small piece of the batch at a time.

The batch is encoded without activations, and the loss gives the gradient of each vector. Then each piece is encoded
again with activations, and receives the gradients of its vectors.

Source: Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (RepL4NLP 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raydr.models.batching import PaddedGroups, concatenate, widen
from raydr.models.dual_encoder import DualEncoder


@dataclass(frozen=True)
class _RandomState:
    """The state of the generators that dropout draws from."""

    cpu: Tensor
    cuda: Tensor | None

    @classmethod
    def now(cls, device: torch.device) -> _RandomState:
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None)

    def restore(self, device: torch.device) -> None:
        torch.set_rng_state(self.cpu)
        if self.cuda is not None:
            torch.cuda.set_rng_state(self.cuda, device)


@dataclass(frozen=True)
class Piece:
    """A part of the batch, with the gradients of its vectors.

    Args:
        queries, passages: a group of each; one of them may have no texts.
        gradients: of the vectors of both, in that order.
        state: of the random generators before it was encoded first.
        device: of the network.
    """

    queries: PaddedGroups
    passages: PaddedGroups
    gradients: tuple[Tensor, Tensor]
    state: _RandomState
    device: torch.device

    def encode(self, wrapped: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
        """Encode the part again, with the same dropout and with activations; return its vectors and their gradients."""
        self.state.restore(self.device)
        # The gradients are of the vectors of the whole batch, whose texts may have more of them.
        vectors = [
            widen(encoded, gradient.shape[1])
            for encoded, gradient in zip(wrapped(self.queries, self.passages), self.gradients, strict=True)
        ]
        has_texts = [bool(texts.groups) for texts in (self.queries, self.passages)]
        return (
            [tensor for tensor, has_text in zip(vectors, has_texts, strict=True) if has_text],
            [tensor for tensor, has_text in zip(self.gradients, has_texts, strict=True) if has_text],
        )


class CachedEncoding:
    """A batch that is encoded without activations; a group of it is encoded again at a time.

    Args:
        model: the network, not wrapped: nothing is exchanged between ranks here.
        queries, passages: texts of the batch in groups that are small enough.
    """

    def __init__(self, model: DualEncoder, queries: PaddedGroups, passages: PaddedGroups) -> None:
        self.device = next(model.parameters()).device
        self._groups = _side_by_side(queries.pieces(), passages.pieces())
        self._states: list[_RandomState] = []
        encoded: tuple[list[Tensor], list[Tensor]] = ([], [])
        with torch.no_grad():
            for query_piece, passage_piece in self._groups:
                self._states.append(_RandomState.now(self.device))
                for vectors, piece in zip(encoded, model(query_piece, passage_piece), strict=True):
                    vectors.append(piece.float())
        self._sizes = [[len(piece) for piece in vectors] for vectors in encoded]
        self._leaves = [concatenate(vectors).requires_grad_() for vectors in encoded]
        #: Vectors of the queries and passages in the order of the batch; a loss on them gives them gradients.
        self.query_QD = self._leaves[0][queries.places_N]
        self.passage_PD = self._leaves[1][passages.places_N]

    def pieces(self) -> list[Piece]:
        """Return the parts to encode again after the loss's backward pass."""
        gradients = []
        for leaf, sizes in zip(self._leaves, self._sizes, strict=True):
            assert leaf.grad is not None
            gradients.append(torch.split(leaf.grad, sizes))
        return [
            Piece(queries, passages, (of_queries, of_passages), state, self.device)
            for (queries, passages), of_queries, of_passages, state in zip(
                self._groups, *gradients, self._states, strict=True
            )
        ]


def _side_by_side(queries: list[PaddedGroups], passages: list[PaddedGroups]) -> list[tuple[PaddedGroups, PaddedGroups]]:
    """Pair the groups, the shorter list padded in front: the last pair uses every tower, as DDP's exchange needs."""
    length = max(len(queries), len(passages))

    def filled(groups: list[PaddedGroups]) -> list[PaddedGroups]:
        return [PaddedGroups.nothing()] * (length - len(groups)) + groups

    return list(zip(filled(queries), filled(passages), strict=True))
