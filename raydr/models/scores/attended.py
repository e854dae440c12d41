"""The base of ``multi``, ``poly``, ``genpoly`` and ``sum_of_max``: a side's vectors attend to those of the other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from raydr.models.scores import base
from raydr.models.scores.base import ScoreFunction, Vectors, inner_products

if TYPE_CHECKING:
    from torch import Tensor

Keys = Literal["query", "passage"]
#: Texts that are padded together without gradients.
_SIMILAR = 128


class Attended(ScoreFunction):
    """Σ_i y_i · (X attn(Xᵀ y_i)): each vector y_i of one text attends to all vectors X of the other, the keys.

    With s_ij = x_j·y_i this is Σ_i Σ_j a_ij s_ij. ``hard``: a_ij is 1 at the largest s_ij and 0 elsewhere, so that the
    score is Σ_i max_j s_ij. ``soft``: a_ij is softmax_j(sharpness · s_ij). Padding is left out of both sums.

    Source: Zhang and Stratos (NAACL 2021), equation 9.
    """

    attention: Literal["soft", "hard"]
    """``soft`` weighs the keys by a softmax, ``hard`` uses the largest inner product alone."""

    sharpness: float = Field(default=1.0, gt=0)
    """Factor of inner products in the softmax of ``soft``; 1 in the paper. Cosines are between -1 and 1, so that with 1
    all keys have nearly the same weight."""

    keys: Keys
    """Side whose vectors are the keys; the score is a sum over the vectors of the other side."""

    @property
    def is_largest_of_tokens(self) -> bool:
        return self.attention == "hard" and self.keys == "passage" and self.passage_vectors.several

    def pairs(self, query: Tensor, passage: Tensor) -> Tensor:
        import torch

        query, query_mask = _several(query, self.query_vectors)
        passage, passage_mask = _several(passage, self.passage_vectors)
        products = torch.einsum("...md,...pd->...mp", query, passage)
        return self._attend(
            products,
            None if query_mask is None else query_mask.unsqueeze(-1),
            None if passage_mask is None else passage_mask.unsqueeze(-2),
            -2,
            -1,
        )

    def all_pairs(self, query_QD: Tensor, passage_PD: Tensor) -> Tensor:
        import torch

        query_QMD, query_mask_QM = _several(query_QD, self.query_vectors)
        passage_PND, passage_mask_PN = _several(passage_PD, self.passage_vectors)
        if torch.is_grad_enabled() or not len(query_QMD) or not len(passage_PND):
            return self._blocks(query_QMD, query_mask_QM, passage_PND, passage_mask_PN)
        # With a long text among short texts, most products would be padding.
        scores_QP = query_QMD.new_empty((len(query_QMD), len(passage_PND)), dtype=torch.float32)
        for rows_Q, queries, query_mask in _by_length(query_QMD, query_mask_QM):
            for rows_P, passages, passage_mask in _by_length(passage_PND, passage_mask_PN):
                block_QP = self._blocks(queries, query_mask, passages, passage_mask)
                scores_QP[rows_Q.unsqueeze(1), rows_P] = block_QP
        return scores_QP

    def _blocks(
        self, query_QMD: Tensor, query_mask_QM: Tensor | None, passage_PND: Tensor, passage_mask_PN: Tensor | None
    ) -> Tensor:
        import torch
        from torch.utils.checkpoint import checkpoint

        num_products = query_QMD.shape[0] * query_QMD.shape[1] * passage_PND.shape[1]
        step = max(1, base.BLOCK_FLOATS // max(1, num_products))
        block = self._block
        if torch.is_grad_enabled() and self.attention == "soft" and step < len(passage_PND):
            # Otherwise the backward pass would keep the weights of all blocks.
            block = partial(checkpoint, self._block, use_reentrant=False, preserve_rng_state=False)
        scores = [
            block(query_QMD, query_mask_QM, passage_PND[start : start + step], _rows(passage_mask_PN, start, step))
            for start in range(0, len(passage_PND), step)
        ]
        return torch.cat(scores, dim=1) if scores else query_QMD.new_zeros((len(query_QMD), 0), dtype=torch.float32)

    def _block(
        self, query_QMD: Tensor, query_mask_QM: Tensor | None, passage_PND: Tensor, passage_mask_PN: Tensor | None
    ) -> Tensor:
        (num_queries, most, _), (num_passages, width, _) = query_QMD.shape, passage_PND.shape
        products_QMPN = inner_products(query_QMD.flatten(0, 1), passage_PND.flatten(0, 1))
        return self._attend(
            products_QMPN.view(num_queries, most, num_passages, width),
            None if query_mask_QM is None else query_mask_QM[:, :, None, None],
            None if passage_mask_PN is None else passage_mask_PN[None, None],
            1,
            3,
        )

    def _attend(
        self, products: Tensor, query_mask: Tensor | None, passage_mask: Tensor | None, query_dim: int, passage_dim: int
    ) -> Tensor:
        """Compute scores from the inner products of all vectors of two texts; masks are True at vectors, None without
        padding."""
        import torch

        key_dim, key_mask, other_mask = passage_dim, passage_mask, query_mask
        if self.keys == "query":
            key_dim, key_mask, other_mask = query_dim, query_mask, passage_mask
        lowest = torch.finfo(products.dtype).min
        if self.attention == "hard":
            masked = products if key_mask is None else products.masked_fill(~key_mask, lowest)
            # Of equal products, max sends the gradient to a single key; amax is faster.
            attended = masked.max(key_dim, True).values if masked.requires_grad else masked.amax(key_dim, True)
        else:
            logits = products if self.sharpness == 1 else self.sharpness * products
            logits = logits if key_mask is None else logits.masked_fill(~key_mask, lowest)
            attended = (logits.softmax(key_dim) * products).sum(key_dim, keepdim=True)
        if key_mask is not None:
            attended = attended.masked_fill(~key_mask.any(key_dim, keepdim=True), 0)
        if other_mask is not None:
            attended = attended.masked_fill(~other_mask, 0)
        return attended.sum((query_dim, passage_dim))


def _several(encoding: Tensor, vectors: Vectors) -> tuple[Tensor, Tensor | None]:
    """Return vectors (..., M, D), and a mask (..., M) that is True at vectors, None without padding."""
    if not vectors.several:
        return encoding.unsqueeze(-2), None
    if not vectors.varies:
        return encoding, None
    # Six times as fast as comparing each number.
    detached = encoding.detach()
    return encoding, (detached.amax(-1) != 0) | (detached.amin(-1) != 0)


def _by_length(texts_NMD: Tensor, mask_NM: Tensor | None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Yield the rows of texts of similar length, these texts without common padding, and their masks."""
    import torch

    if mask_NM is None:
        yield torch.arange(len(texts_NMD), device=texts_NMD.device), texts_NMD, None
        return
    # Lengths up to the last vector.
    lengths_N = (mask_NM * torch.arange(1, mask_NM.shape[1] + 1, device=mask_NM.device)).amax(1)
    for rows in torch.split(torch.argsort(lengths_N), _SIMILAR):
        longest = max(1, int(lengths_N[rows[-1]]))
        yield rows, texts_NMD[rows, :longest], mask_NM[rows, :longest]


def _rows(mask_PN: Tensor | None, start: int, num: int) -> Tensor | None:
    return None if mask_PN is None else mask_PN[start : start + num]
