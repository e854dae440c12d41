"""Attention of encoders that read packed texts, by the kind of encoder.

On CUDA it is PyTorch's own kernel for sequences of different lengths (``torch.nn.attention.varlen``); on a CPU it goes
text by text, which is there to be compared with and not to be fast. MPNet adds a number by distance to its scores,
which the kernel cannot: there the texts are padded for the attention alone.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from raydr.errors import ModelError
from raydr.models.packing import PackedTexts

#: The name of the attention among those of Transformers.
IMPLEMENTATION = "raydr_packed"
#: Kinds of encoders that take the position of each token and read all of a text.
_ENCODERS = ("bert", "camembert", "electra", "modernbert", "mpnet", "roberta", "xlm-roberta")
#: Kinds that read what is before a token.
_CAUSAL = ("llama", "mistral", "qwen2", "qwen3")
#: Kinds whose positions begin behind the padding's.
_BEHIND_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")


def can_pack(backbone: nn.Module, device: str, dtype: torch.dtype) -> str:
    """Return why a backbone cannot read packed texts, and what to set; empty if it can."""
    kind = cast(Any, backbone.config).model_type
    if kind not in (*_ENCODERS, *_CAUSAL):
        return (
            f"which encoders of the kinds {', '.join((*_ENCODERS, *_CAUSAL))} can do, but this one is a {kind}: set "
            "encode.batching=padded"
        )
    if torch.device(device).type == "cuda" and dtype not in (torch.bfloat16, torch.float16):
        return "which needs bfloat16 or float16 on a GPU: set encode.dtype"
    return ""


def use_packed_attention(backbone: nn.Module, device: str, dtype: torch.dtype) -> int:
    """Make a backbone take :class:`PackedTexts`; returns the position of each text's first token.

    Raises:
        ModelError: it is of a kind that cannot, or the arithmetic has no kernel.
    """
    from transformers import AttentionInterface

    reason = can_pack(backbone, device, dtype)
    if reason:
        raise ModelError(f"encode.batching is packed, {reason}")
    network = cast(Any, backbone)
    kind = network.config.model_type
    if kind == "mpnet":
        for layer in network.encoder.layer:
            layer.attention.attn = _MPNetAttention(layer.attention.attn)
    else:
        AttentionInterface.register(IMPLEMENTATION, packed_attention)
        network.set_attn_implementation(IMPLEMENTATION)
    return int(network.embeddings.padding_idx) + 1 if kind in _BEHIND_PADDING else 0


def packed_states(backbone: nn.Module, texts: PackedTexts, **extra: Any) -> Tensor:
    """Compute the last hidden states (T, D) of a backbone that :func:`use_packed_attention` has prepared."""
    network = cast(Any, backbone)
    kind, attention_mask = network.config.model_type, None
    if kind == "mpnet":
        attention_mask = _mpnet_bias(network.encoder, texts)
        places_T = texts.position_ids_1T[0] - texts.position_ids_1T[0, 0]
        cells_T = texts.text_of_tokens() * texts.longest + places_T
        # The encoder hands on to its layers what this returns.
        network.encoder.compute_position_bias = lambda hidden_1TD: cells_T
    else:
        starts_N1, longest = texts.starts_N1, texts.longest
        extra = extra | {
            "cu_seq_lens_q": starts_N1, "cu_seq_lens_k": starts_N1, "max_length_q": longest, "max_length_k": longest
        }  # fmt: skip
    if kind in _CAUSAL:
        extra = extra | {"use_cache": False}
    hidden_1TD = network(
        input_ids=texts.input_ids_1T, position_ids=texts.position_ids_1T, attention_mask=attention_mask, **extra
    ).last_hidden_state
    return cast(Tensor, hidden_1TD[0])


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention within each text, with Transformers' signature; for inference.

    Args:
        query: (1, heads, T, width), as are ``key`` and ``value``, which may have fewer heads.
        sliding_window: how far a token sees: positions that are less than this apart.
        cu_seq_lens_q: ``starts_N1`` of the texts.
        max_length_q: tokens of the longest.

    Returns:
        (1, T, heads, width).
    """
    assert cu_seq_lens_q is not None
    assert max_length_q is not None
    causal = bool(getattr(module, "is_causal", False))
    shared = query.shape[1] // key.shape[1]
    if shared > 1:
        key, value = key.repeat_interleave(shared, dim=1), value.repeat_interleave(shared, dim=1)
    if query.device.type != "cpu":
        from torch.nn.attention.varlen import varlen_attn

        reach = -1 if sliding_window is None else sliding_window - 1
        query_THD, key_THD, value_THD = (heads[0].transpose(0, 1).contiguous() for heads in (query, key, value))
        mixed_THD = varlen_attn(
            query_THD, key_THD, value_THD, cu_seq_lens_q, cu_seq_lens_q, max_length_q, max_length_q, scale=scaling,
            window_size=(reach, 0 if causal else reach),
        )  # fmt: skip
        return cast(Tensor, mixed_THD)[None], None
    lengths = cu_seq_lens_q.diff().tolist()
    # The tokens of no text attend to each other.
    lengths.append(query.shape[2] - sum(lengths))
    mixed = []
    for q, k, v in zip(*(torch.split(heads, lengths, dim=2) for heads in (query, key, value)), strict=True):
        place_L = torch.arange(q.shape[2])
        apart_LL = place_L[:, None] - place_L
        seen_LL = apart_LL.abs() < (sliding_window or len(place_L) + 1)
        if causal:
            seen_LL &= apart_LL >= 0
        mask = None if bool(seen_LL.all()) else seen_LL
        mixed.append(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling))
    return torch.cat(mixed, dim=2).transpose(1, 2), None


class _MPNetAttention(nn.Module):
    """An attention of MPNet over packed texts.

    Args:
        padded: the attention that it replaces, and whose weights it uses.
    """

    def __init__(self, padded: nn.Module) -> None:
        super().__init__()
        self.padded = padded

    def forward(
        self, hidden_1TD: Tensor, bias_NHLL: Tensor, cells_T: Tensor, output_attentions: bool = False
    ) -> tuple[Tensor]:
        """Compute the attention of each text.

        Args:
            hidden_1TD: states of all tokens.
            bias_NHLL: what is added to the scores of each text.
            cells_T: the cell, of N · L, that each token has where texts are padded.
        """
        theirs = cast(Any, self.padded)
        num_texts, num_heads, longest = bias_NHLL.shape[:3]

        def in_cells(states_1TD: Tensor) -> Tensor:
            room = states_1TD.new_zeros((num_texts * longest, states_1TD.shape[2]))
            room[cells_T] = states_1TD[0]
            return room.view(num_texts, longest, num_heads, -1).transpose(1, 2)

        query, key, value = (in_cells(layer(hidden_1TD)) for layer in (theirs.q, theirs.k, theirs.v))
        mixed_NHLW = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias_NHLL)
        mixed_TD = mixed_NHLW.transpose(1, 2).reshape(num_texts * longest, -1)[cells_T]
        return (theirs.o(mixed_TD[None]),)


def _mpnet_bias(encoder: Any, texts: PackedTexts) -> Tensor:
    """Compute the bias (N, H, L, L): MPNet's by distance, and the lowest number for keys behind a text's end."""
    weight = encoder.relative_attention_bias.weight
    shape_1L1 = weight.new_empty((1, texts.longest, 1))
    bias_1HLL = type(encoder).compute_position_bias(encoder, shape_1L1)
    lengths_N = texts.starts_N1.diff()
    absent_NL = torch.arange(texts.longest, device=weight.device) >= lengths_N[:, None]
    return cast(Tensor, bias_1HLL.masked_fill(absent_NL[:, None, None, :], torch.finfo(weight.dtype).min))
