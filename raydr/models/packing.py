"""Batches without padding: texts are laid one after the other, and each attends to itself only.

On CUDA the attention is PyTorch's own kernel for sequences of different lengths (``torch.nn.attention.varlen``); on a
CPU it goes text by text, which is there to be compared with and not to be fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raydr.errors import ModelError
from raydr.models.batching import move
from raydr.models.tokens import Tokens

#: The name of the attention among those of Transformers.
IMPLEMENTATION = "raydr_packed"
#: Kinds of encoders that take the position of each token, and whether positions begin after the padding's.
_KINDS = {"bert": False, "roberta": True, "xlm-roberta": True}


@dataclass(frozen=True)
class PackedTexts:
    """N texts of T tokens in all.

    Args:
        input_ids_1T: token ids.
        position_ids_1T: place of each token in its text.
        token_type_ids_1T: 1 in the second segment.
        starts_N1: int32, where each text starts, and T at the end; (N+1,).
        longest: tokens of the longest text.
    """

    input_ids_1T: Tensor
    position_ids_1T: Tensor
    token_type_ids_1T: Tensor
    starts_N1: Tensor
    longest: int

    def to(self, device: torch.device) -> PackedTexts:
        """The same on a device; copies to it do not block."""
        if device.type == "cpu":
            return self
        return PackedTexts(
            move(self.input_ids_1T, device), move(self.position_ids_1T, device), move(self.token_type_ids_1T, device),
            move(self.starts_N1, device), self.longest,
        )  # fmt: skip


def plan_packs(lengths: NDArray[np.int64], token_budget: int) -> list[NDArray[np.int64]]:
    """Group texts, longest first, so that each group has at most ``token_budget`` tokens.

    A longer text gets a group of its own.

    >>> [group.tolist() for group in plan_packs(np.array([3, 9, 3, 8]), token_budget=12)]
    [[1], [3, 0], [2]]
    """
    order = np.argsort(-lengths, kind="stable")
    groups: list[NDArray[np.int64]] = []
    start = 0
    while start < len(order):
        fits = int(np.searchsorted(np.cumsum(lengths[order[start:]]), token_budget, side="right"))
        stop = start + max(1, fits)
        groups.append(order[start:stop])
        start = stop
    return groups


def pack(tokens: Tokens, rows: NDArray[np.int64], first_position: int = 0) -> PackedTexts:
    """Lay the chosen texts one after the other.

    Args:
        tokens: all texts.
        rows: the chosen ones.
        first_position: of each text's first token.
    """
    lengths = tokens.lengths[rows]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    place = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    ids = tokens.ids[np.repeat(tokens.offsets[rows], lengths) + place]
    types = place >= np.repeat(tokens.type_starts[rows], lengths)
    return PackedTexts(
        torch.from_numpy(ids.astype(np.int64))[None],
        torch.from_numpy(place + first_position)[None],
        torch.from_numpy(types.astype(np.int64))[None],
        torch.from_numpy(starts.astype(np.int32)),
        int(lengths.max(initial=0)),
    )


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention within each text, as Transformers calls it; for inference.

    Args:
        query: (1, heads, T, width), as are ``key`` and ``value``.
        cu_seq_lens_q: ``starts_N1`` of the texts.
        max_length_q: tokens of the longest.

    Returns:
        (1, T, heads, width).
    """
    assert cu_seq_lens_q is not None
    assert max_length_q is not None
    if query.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        query_THD, key_THD, value_THD = (one[0].transpose(0, 1).contiguous() for one in (query, key, value))
        starts, longest = cu_seq_lens_q, max_length_q
        mixed_THD = varlen_attn(query_THD, key_THD, value_THD, starts, starts, longest, longest, scale=scaling)
        return cast(Tensor, mixed_THD)[None], None
    lengths = cu_seq_lens_q.diff().tolist()
    texts = zip(*(torch.split(one, lengths, dim=2) for one in (query, key, value)), strict=True)
    attend = nn.functional.scaled_dot_product_attention
    mixed = torch.cat([attend(q, k, v, scale=scaling) for q, k, v in texts], dim=2)
    return mixed.transpose(1, 2), None


def use_packed_attention(backbone: nn.Module, device: str, dtype: torch.dtype) -> int:
    """Make a backbone take :class:`PackedTexts`; returns the position of each text's first token.

    Raises:
        ModelError: it is of a kind that cannot, or the arithmetic has no kernel.
    """
    from transformers import AttentionInterface

    shape: Any = backbone.config
    if shape.model_type not in _KINDS:
        raise ModelError(
            f"encode.batching is packed, which encoders of the kinds {', '.join(_KINDS)} can do, but this one is a "
            f"{shape.model_type}: set encode.batching=padded"
        )
    if torch.device(device).type == "cuda" and dtype not in (torch.bfloat16, torch.float16):
        raise ModelError("encode.batching is packed, which needs bfloat16 or float16 on a GPU: set encode.dtype")
    AttentionInterface.register(IMPLEMENTATION, packed_attention)
    backbone.set_attn_implementation(IMPLEMENTATION)  # type: ignore[operator]
    return int(shape.pad_token_id) + 1 if _KINDS[shape.model_type] else 0
