"""One encoder: a Hugging Face model, pooling, an optional projection."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raydr.errors import ConfigError, ModelError
from raydr.models.attention import choose_attention
from raydr.models.batching import PaddedGroups
from raydr.models.checkpoint import resolve_checkpoint
from raydr.models.config import ModelConfig
from raydr.models.packing import PackedTexts


class Tower(nn.Module):
    """Texts to vectors: last hidden states → pooling → projection → unit length if the similarity is cosine."""

    def __init__(self, backbone: nn.Module, config: ModelConfig) -> None:
        super().__init__()
        self.backbone = backbone
        self.pooling = config.pooling
        self.normalize = config.similarity == "cosine"
        hidden = int(backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.projection = nn.Linear(hidden, config.projection) if config.projection else None
        self.dim = config.projection or hidden
        self.takes_embeddings = "inputs_embeds" in inspect.signature(backbone.forward).parameters
        # Models without segment embeddings (DistilBERT, ModernBERT) take no token types.
        self.uses_token_types = int(getattr(backbone.config, "type_vocab_size", 0) or 0) > 1

    @classmethod
    def from_checkpoint(cls, name: str, config: ModelConfig) -> Tower:
        """Load the backbone, cut it to ``num_layers``, set its dropout.

        Raises:
            ModelError: the checkpoint cannot be loaded.
            ConfigError: it has fewer layers than asked for.
        """
        from transformers import AutoModel
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        resolved = resolve_checkpoint(name)
        extra: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
        try:
            backbone = AutoModel.from_pretrained(resolved, dtype=torch.float32, **extra)
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot load model.checkpoint {name!r}: {str(error).splitlines()[0]}") from None
        # Checkpoints of facebook/dpr wrap the encoder; the plain BERT inside is what is trained.
        for wrapper in ("question_encoder", "ctx_encoder"):
            backbone = getattr(backbone, wrapper, backbone)
        backbone = getattr(backbone, "bert_model", backbone)
        if getattr(backbone, "pooler", None) is not None:
            # The pooler's output is never used; left in, its weights would get no gradient and break DDP.
            backbone.pooler = None
        shape_backbone(backbone, config, name)
        return cls(backbone, config)

    def ready(self, device: str, dtype: torch.dtype) -> Tower:
        """The tower on a device, in an arithmetic, for inference."""
        choose_attention(self, torch.device(device).type, dtype)
        return self.to(device=device, dtype=dtype).eval()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, words_NLD: Tensor | None = None
    ) -> Tensor:
        """Vectors (N, dim) in float32 of N padded texts (N, L), whose word embeddings may be there already."""
        extra = {"token_type_ids": token_type_ids} if self.uses_token_types else {}
        words = {"input_ids": input_ids} if words_NLD is None else {"inputs_embeds": words_NLD}
        hidden_NLD = self.backbone(attention_mask=attention_mask, **words, **extra).last_hidden_state
        return self.pool(hidden_NLD, attention_mask)

    def encode_groups(self, texts: PaddedGroups) -> Tensor:
        """Vectors (N, dim) in float32 of the texts of a batch, in its order.

        The gradient of a word embedding is as large as the vocabulary, whatever was looked up: where there will be
        one, the words of all groups are looked up at once.
        """
        groups = texts.groups
        if not groups:
            return torch.zeros((0, self.dim), device=next(self.parameters()).device)
        words: Sequence[Tensor | None] = [None] * len(groups)
        if len(groups) > 1 and self.takes_embeddings and torch.is_grad_enabled():
            ids = [group["input_ids"] for group in groups]
            lookup = self.backbone.get_input_embeddings()  # type: ignore[operator]
            words_TD = lookup(torch.cat([one.flatten() for one in ids])).split([one.numel() for one in ids])
            words = [found.view(*one.shape, -1) for found, one in zip(words_TD, ids, strict=True)]
        vectors = [self(**group, words_NLD=found) for group, found in zip(groups, words, strict=True)]
        return torch.cat(vectors)[texts.places_N]

    def pool(self, hidden_NLD: Tensor, attention_mask: Tensor) -> Tensor:
        """Pooling, projection and normalisation of hidden states."""
        if self.pooling == "cls":
            pooled_ND = hidden_NLD[:, 0].float()
        else:
            mask_NL1 = attention_mask.unsqueeze(-1).to(torch.float32)
            pooled_ND = (hidden_NLD.float() * mask_NL1).sum(1) / mask_NL1.sum(1).clamp(min=1)
        return self._finish(pooled_ND)

    def encode_packed(self, texts: PackedTexts) -> Tensor:
        """Vectors (N, dim) in float32 of N texts without padding; the backbone must have been made ready for them."""
        extra = {"token_type_ids": texts.token_type_ids_1T} if self.uses_token_types else {}
        hidden_TD = self.backbone(
            input_ids=texts.input_ids_1T, position_ids=texts.position_ids_1T, attention_mask=None,
            cu_seq_lens_q=texts.starts_N1, cu_seq_lens_k=texts.starts_N1, max_length_q=texts.longest,
            max_length_k=texts.longest, **extra,
        ).last_hidden_state[0]  # fmt: skip
        starts_N1 = texts.starts_N1.long()
        if self.pooling == "cls":
            return self._finish(hidden_TD[starts_N1[:-1]].float())
        lengths_N = starts_N1.diff()
        text_of_T = torch.repeat_interleave(torch.arange(len(lengths_N), device=lengths_N.device), lengths_N)
        sums_ND = torch.zeros((len(lengths_N), hidden_TD.shape[1]), dtype=torch.float32, device=hidden_TD.device)
        sums_ND.index_add_(0, text_of_T, hidden_TD.float())
        return self._finish(sums_ND / lengths_N.clamp(min=1)[:, None])

    def _finish(self, pooled_ND: Tensor) -> Tensor:
        if self.projection is not None:
            pooled_ND = self.projection(pooled_ND.to(self.projection.weight.dtype)).float()
        return nn.functional.normalize(pooled_ND, dim=-1) if self.normalize else pooled_ND


def shape_backbone(backbone: Any, config: ModelConfig, name: str) -> None:
    """Cut a backbone to ``num_layers`` and set its dropout.

    Raises:
        ConfigError: it has fewer layers than asked for.
    """
    _keep_layers(backbone, config.num_layers, name)
    if config.dropout is None:
        return
    for module in backbone.modules():
        if isinstance(module, nn.Dropout):
            module.p = config.dropout
    for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout"):
        if hasattr(backbone.config, field):
            setattr(backbone.config, field, config.dropout)
    for module in backbone.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = config.dropout


def _keep_layers(backbone: Any, num_layers: int | None, name: str) -> None:
    if num_layers is None:
        return
    available = int(backbone.config.num_hidden_layers)
    if num_layers > available:
        raise ConfigError(f"model.num_layers is {num_layers}, but {name} has {available} layers")
    holder = next(
        (
            module
            for module in backbone.modules()
            for child in module.children()
            if isinstance(child, nn.ModuleList) and len(child) == available
        ),
        None,
    )
    if holder is None:
        raise ConfigError(f"model.num_layers: found no list of {available} layers in {name}; leave it unset")
    for attribute, child in list(holder.named_children()):
        if isinstance(child, nn.ModuleList) and len(child) == available:
            setattr(holder, attribute, child[:num_layers])
    backbone.config.num_hidden_layers = num_layers
    # Kinds of layers by their place, which must be as many.
    for field in ("layer_types", "mlp_layer_types"):
        kinds = getattr(backbone.config, field, None)
        if kinds is not None:
            setattr(backbone.config, field, list(kinds)[:num_layers])
