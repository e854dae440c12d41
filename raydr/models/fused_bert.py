"""BERT's forward pass on a GPU in fewer kernels: fused products, and bounds of texts in place of a mask."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.modeling_outputs import BaseModelOutput

#: Architectures of Transformers with BERT's layers.
BERT_LIKE = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})
#: Activations that are GELU, by the error function or by tanh, which differ by at most 0.0005.
_GELU = frozenset({"gelu", "gelu_new", "gelu_pytorch_tanh"})
#: Minimal compute capability of PyTorch's attention with bounds.
_CAPABILITY = (8, 0)
_HALF = (torch.bfloat16, torch.float16)
#: Lengths of the texts of the check, and maximal difference of both passes; rounding makes about 1 %.
_LENGTHS, _MOST_APART = (1, 9, 16), 0.05


def attend(query_THD: Tensor, key_THD: Tensor, value_THD: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """Compute the attention of each token over the tokens between the same two bounds."""
    # The import takes a second, and PyTorch has it for GPUs alone.
    from torch.nn.attention.varlen import varlen_attn

    context_THD = varlen_attn(query_THD, key_THD, value_THD, bounds, bounds, longest, longest)
    assert isinstance(context_THD, Tensor)
    return context_THD


@dataclass(frozen=True)
class _Layer:
    """A layer of BERT that computes query, key and value by a single product."""

    layer: Any
    weight_ED: Tensor
    bias_E: Tensor

    @classmethod
    def of(cls, layer: Any) -> _Layer:
        """Join the weights of the three products; the layer's own weights become views of the joined weights."""
        attention = layer.attention.self
        products = attention.query, attention.key, attention.value
        joined = {name: torch.cat([getattr(product, name) for product in products]) for name in ("weight", "bias")}
        for name, tensor in joined.items():
            for product, part in zip(products, tensor.chunk(len(products)), strict=True):
                setattr(product, name, nn.Parameter(part, requires_grad=False))
        return cls(layer, joined["weight"], joined["bias"])

    def __call__(self, hidden_TD: Tensor, bounds: Tensor, longest: int) -> Tensor:
        attention, output = self.layer.attention, self.layer.output
        num_heads = attention.self.num_attention_heads
        joined = linear(hidden_TD, self.weight_ED, self.bias_E).view(len(hidden_TD), 3, num_heads, -1)
        query_THD, key_THD, value_THD = joined.unbind(1)
        context_THD = attend(query_THD, key_THD, value_THD, bounds, longest)
        attended_TD = linear(context_THD.flatten(1), attention.output.dense.weight, attention.output.dense.bias)
        hidden_TD = attention.output.LayerNorm(attended_TD.add_(hidden_TD))
        wide = self.layer.intermediate.dense
        inner_TF = torch._addmm_activation(wide.bias, hidden_TD, wide.weight.t(), use_gelu=True)
        return output.LayerNorm(linear(inner_TF, output.dense.weight, output.dense.bias).add_(hidden_TD))  # type: ignore[no-any-return]


class FusedBert(nn.Module):
    """A BERT in half precision whose last hidden states equal those of its own forward pass up to rounding.

    Query, key and value are a single product. GELU is fused into the product before it, by tanh, whose difference is
    below the rounding. Attention reads the bounds of each text. A batch stays padded: the padding of a text counts as a
    further text, whose states are ignored, so that the CPU never waits for the GPU.

    docs/performance.md has the speed.

    Args:
        bert: network in inference mode; its weights may change in place later.
    """

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert
        self._layers = [_Layer.of(layer) for layer in bert.encoder.layer]  # type: ignore[union-attr]

    @property
    def config(self) -> Any:
        return self.bert.config

    def forward(self, attention_mask: Tensor, **texts: Tensor) -> BaseModelOutput:
        """Encode texts that are padded at their end.

        Args:
            attention_mask: (N, L), 1 at tokens, 0 at padding.
            texts: ``input_ids`` or ``inputs_embeds``, and optionally ``token_type_ids``.
        """
        hidden_NLD = self.bert.embeddings(**texts)  # type: ignore[operator]
        num, longest, _ = hidden_NLD.shape
        hidden_TD, bounds = hidden_NLD.flatten(0, 1), text_bounds(attention_mask)
        for layer in self._layers:
            hidden_TD = layer(hidden_TD, bounds, longest)
        return BaseModelOutput(last_hidden_state=hidden_TD.view(num, longest, -1))


def text_bounds(attention_mask: Tensor) -> Tensor:
    """Return the starts of N texts and of the padding after each, and the end: int32 (2N+1).

    >>> text_bounds(torch.tensor([[1, 1, 0], [1, 1, 1]])).tolist()
    [0, 2, 3, 6, 6]
    """
    num, longest = attention_mask.shape
    starts_N = torch.arange(num + 1, dtype=torch.int32, device=attention_mask.device) * longest
    ends_N = starts_N[:-1] + attention_mask.sum(1, dtype=torch.int32)
    return torch.cat([torch.stack([starts_N[:-1], ends_N], dim=1).flatten(), starts_N[-1:]])


def fused(backbone: nn.Module, device: str, dtype: torch.dtype) -> nn.Module:
    """Return the network with a fused pass, if the network, the device and the dtype allow it; else the network itself.

    Both passes first encode a few tokens. The network keeps its own pass if they differ by more than rounding, or if a
    kernel is missing.
    """
    if torch.device(device).type != "cuda" or torch.cuda.get_device_capability() < _CAPABILITY or dtype not in _HALF:
        return backbone
    return checked(backbone, device) if can_fuse(backbone) else backbone


@torch.no_grad()
def checked(backbone: nn.Module, device: str) -> nn.Module:
    """Return the network with a fused pass if its hidden states are equal; else the network itself, with a warning."""
    mask_NL = torch.arange(max(_LENGTHS), device=device) < torch.tensor(_LENGTHS, device=device).unsqueeze(1)
    # The last ids of the vocabulary, since padding tokens have the first.
    largest = int(backbone.config.vocab_size) - 1  # type: ignore[union-attr, arg-type]
    ids_NL = (largest - torch.arange(mask_NL.numel(), device=device)).clamp(min=0).view(mask_NL.shape)
    texts = {"input_ids": ids_NL, "attention_mask": mask_NL.long()}
    expected = backbone(**texts).last_hidden_state[mask_NL].float()
    network = FusedBert(backbone)
    try:
        hidden = network(**texts).last_hidden_state[mask_NL].float()
    except RuntimeError as error:
        return _own_pass(backbone, str(error).partition("\n")[0])
    apart = float((hidden - expected).norm() / expected.norm())
    # True also for NaN.
    if not apart < _MOST_APART:
        return _own_pass(backbone, f"the fused pass differs by {apart:.1%}")
    return network


def _own_pass(backbone: nn.Module, reason: str) -> nn.Module:
    warnings.warn(f"encoding keeps the network's own pass, which is slower: {reason}", stacklevel=3)
    return backbone


def can_fuse(backbone: nn.Module) -> bool:
    """Return whether a network is a BERT of Transformers without adapters, whose activation is GELU."""
    config: Any = backbone.config
    return (
        # Code of a checkpoint may use the name of an architecture for other layers.
        type(backbone).__module__.startswith("transformers.models.")
        and config.model_type in BERT_LIKE
        and config.hidden_act in _GELU
        and not config.is_decoder
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        # Adapters replace linear layers.
        and not any(isinstance(getattr(module, "base_layer", None), nn.Module) for module in backbone.modules())
    )
