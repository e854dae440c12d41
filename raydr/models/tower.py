"""The tower, an encoder: a Hugging Face model, a reduction of its hidden states, an optional projection."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from raydr.errors import ModelError
from raydr.models.backbone import choose_attention, shape_backbone, without_pooler
from raydr.models.batching import PaddedGroups, concatenate
from raydr.models.checkpoint import naming, resolve_checkpoint
from raydr.models.checkpoint_settings import checkpoint_settings_of
from raydr.models.config import SIDES, ModelConfig, Pooling, Side
from raydr.models.fused_bert import fused
from raydr.models.loading import load_encoder, load_head
from raydr.models.precision import in_arithmetic
from raydr.models.scores.base import Vectors

#: Prefix of a pooler's weights.
POOLER = "pooler."


class Reduction(nn.Module):
    """From the hidden states h_1..h_L of a text to the states that the score function reads, by ``vectors.kind``.

    * ``pooled``: the mean of the states, the first or the last state, by ``pooling``;
    * ``first``: the first states;
    * ``codes``: Σ_t softmax_t(c·h_t) h_t for each learnt code c (Humeau et al., ICLR 2020);
    * ``tokens``: all states.

    Padding has no weight. A text with fewer states than the longest is padded, see :meth:`forward`.
    """

    def __init__(self, vectors: Vectors, pooling: Pooling, hidden: int) -> None:
        super().__init__()
        self.vectors = vectors
        self.pooling = pooling
        self.codes: nn.Parameter | None = None
        if vectors.kind == "codes":
            self.codes = nn.Parameter(torch.randn(vectors.num, hidden) / math.sqrt(hidden))

    def forward(self, hidden_NLD: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return states (N, D) or (N, M, D) in float32, and a mask (N, M) of states that are no padding, or None."""
        if self.codes is not None:
            logits_NML = torch.einsum("md,nld->nml", self.codes.float(), hidden_NLD.float())
            lowest = torch.finfo(logits_NML.dtype).min
            weights_NML = logits_NML.masked_fill(attention_mask.unsqueeze(1) == 0, lowest).softmax(-1)
            return weights_NML @ hidden_NLD.float(), None
        if self.vectors.several:
            most = self.vectors.most(hidden_NLD.shape[1])
            return hidden_NLD[:, :most].float(), attention_mask[:, :most] != 0
        if self.pooling == "cls":
            return hidden_NLD[:, 0].float(), None
        if self.pooling == "last":
            # Padding is at the end.
            last_N = attention_mask.sum(1).clamp(min=1) - 1
            return hidden_NLD[torch.arange(len(last_N), device=last_N.device), last_N].float(), None
        mask_NL1 = attention_mask.unsqueeze(-1).to(torch.float32)
        return (hidden_NLD.float() * mask_NL1).sum(1) / mask_NL1.sum(1).clamp(min=1), None


class Tower(nn.Module):
    """Encoder of texts: last hidden states → reduction → projection → first dimensions → unit length if the similarity
    is cosine.

    A text becomes a vector, (D,), or several vectors, (M, D), by the score function.

    Args:
        backbone: Hugging Face model.
        config: config of the model.
        sides: sides of the texts.
    """

    def __init__(self, backbone: nn.Module, config: ModelConfig, sides: Sequence[Side] = SIDES) -> None:
        super().__init__()
        self.backbone = backbone
        #: Weights of the checkpoint that change no vector; saved unchanged.
        self.unused: dict[str, Tensor] = {}
        self.normalize = config.similarity == "cosine"
        hidden = int(backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]
        dim = config.projected_dim
        self.projection = nn.Linear(hidden, dim) if dim else None
        self.activation = config.activation
        width = dim or hidden
        self.dim = min(width, config.truncate_dim or width)
        self.reductions = nn.ModuleDict(
            {side: Reduction(config.vectors(side), config.pooling, hidden) for side in sides}
        )
        self.takes_embeddings = "inputs_embeds" in inspect.signature(backbone.forward).parameters
        # Models without segment embeddings (DistilBERT, ModernBERT) take no token types.
        self.uses_token_types = int(getattr(backbone.config, "type_vocab_size", 0) or 0) > 1

    @classmethod
    def from_checkpoint(cls, name: str, config: ModelConfig, sides: Sequence[Side] = SIDES, what: str = "") -> Tower:
        """Load the backbone, cut it to ``num_layers``, set its dropout.

        Args:
            name: folder or hub name.
            config: config of the model.
            sides: sides of the texts.
            what: name of the checkpoint in messages, if it is not ``model.checkpoint``.

        Raises:
            ModelError: the checkpoint cannot be loaded, or is a cross-encoder.
            ConfigError: the checkpoint has fewer layers than ``num_layers``.
        """
        resolved = resolve_checkpoint(name)
        what = what or f"model.checkpoint {name!r}"
        backbone, drawn = load_encoder(resolved, what, config.trust_remote_code)
        if any("SequenceClassification" in architecture for architecture in backbone.config.architectures or []):
            raise ModelError(
                f"{what} is a cross-encoder ({', '.join(backbone.config.architectures)}), and a "
                "retriever is expected here: give an encoder, or set ranker.model.checkpoint to it"
            )
        # Checkpoints of facebook/dpr wrap a plain BERT.
        for wrapper in ("question_encoder", "ctx_encoder"):
            backbone = getattr(backbone, wrapper, backbone)
        backbone = getattr(backbone, "bert_model", backbone)
        pooler = getattr(backbone, "pooler", None)
        shape_backbone(without_pooler(backbone), config, name)
        tower = cls(backbone, config, sides)
        if pooler is not None and not drawn:
            tower.unused = {f"{POOLER}{key}": value for key, value in pooler.state_dict().items()}
        if tower.projection is not None:
            _load_dense(tower.projection, resolved)
        return tower

    def reduction(self, side: Side) -> Reduction:
        """Return the reduction of the hidden states of a side's texts."""
        reduction = self.reductions[side]
        assert isinstance(reduction, Reduction)
        return reduction

    def ready(self, device: str, dtype: torch.dtype) -> Tower:
        """Move the tower to a device, and convert it to a dtype, for inference."""
        choose_attention(self, torch.device(device).type, dtype)
        in_arithmetic(self.to(device=device), dtype).eval()
        self.backbone = fused(self.backbone, device, dtype)
        return self

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        side: Side,
        words_NLD: Tensor | None = None,
    ) -> Tensor:
        """Encode N padded texts (N, L) in float32: (N, dim), or with several vectors per text (N, M, dim).

        ``words_NLD`` are word embeddings in place of ``input_ids``.
        """
        extra = {"token_type_ids": token_type_ids} if self.uses_token_types else {}
        words = {"input_ids": input_ids} if words_NLD is None else {"inputs_embeds": words_NLD}
        hidden_NLD = self.backbone(attention_mask=attention_mask, **words, **extra).last_hidden_state
        states, mask_NM = self.reduction(side)(hidden_NLD, attention_mask)
        if self.projection is not None:
            states = self.projection(states.to(self.projection.weight.dtype)).float()
            states = states.tanh() if self.activation == "tanh" else states
        states = states[..., : self.dim]
        vectors = nn.functional.normalize(states, dim=-1) if self.normalize else states
        return vectors if mask_NM is None else vectors.masked_fill(~mask_NM.unsqueeze(-1), 0)

    def encode_groups(self, texts: PaddedGroups, side: Side, cached: bool = False) -> Tensor:
        """Encode the texts of a batch in float32, in its order: (N, dim) or (N, M, dim).

        The gradient of a look-up of word embeddings has the size of the vocabulary. With gradients, and unless
        ``cached``, the embeddings of all groups are therefore looked up together.

        Args:
            texts: batch in groups.
            side: side of the texts.
            cached: whether to keep the vectors alone and encode a group again, with the same dropout, in the backward
                pass. Memory then holds the activations of a single group. This is gradient caching of Gao et al.
                (RepL4NLP 2021).
        """
        groups = texts.groups
        if cached:
            vectors = []
            for group in groups:
                # Autocast's copy of a weight would add up the gradients of all groups in the copy's dtype.
                torch.clear_autocast_cache()
                # checkpoint finds the devices whose random state it keeps in positional arguments alone.
                padded = group["input_ids"], group["attention_mask"], group["token_type_ids"]
                vectors.append(checkpoint(self, *padded, side, use_reentrant=False))
            return concatenate(vectors)[texts.places_N]
        words: Sequence[Tensor | None] = [None] * len(groups)
        if len(groups) > 1 and self.takes_embeddings and torch.is_grad_enabled():
            ids = [group["input_ids"] for group in groups]
            lookup = self.backbone.get_input_embeddings()  # type: ignore[operator]
            words_TD = lookup(torch.cat([token_ids.flatten() for token_ids in ids])).split(
                [token_ids.numel() for token_ids in ids]
            )
            words = [
                word_vectors.view(*token_ids.shape, -1) for word_vectors, token_ids in zip(words_TD, ids, strict=True)
            ]
        vectors = [
            self(**group, side=side, words_NLD=word_vectors) for group, word_vectors in zip(groups, words, strict=True)
        ]
        return concatenate(vectors)[texts.places_N]


def _load_dense(projection: nn.Linear, resolved: str) -> None:
    """Load the weights of the checkpoint's linear layers, if the last has this width, as one layer: B₂(B₁x + b₁) + b₂.

    Raises:
        ModelError: a layer's weights are missing, damaged or of another shape.
    """
    from transformers.utils import cached_file

    checkpoint = checkpoint_settings_of(resolved)
    if checkpoint.settings.get("projection", projection.out_features) != projection.out_features:
        return
    weight, bias = torch.eye(projection.in_features), torch.zeros(projection.in_features)
    for folder, width in checkpoint.dense:
        what = f"the Dense layer of model.checkpoint {resolved} in {folder}"
        with naming(what):
            files = (
                cached_file(resolved, f"{folder}/{name}", _raise_exceptions_for_missing_entries=False)
                for name in ("model.safetensors", "pytorch_model.bin")
            )
            file = next(filter(None, files), None)
        if file is None:
            raise ModelError(f"{what} has no weights")
        layer = nn.utils.skip_init(nn.Linear, len(weight), width)  # type: ignore[no-untyped-call]
        load_head(file, layer, what, optional=("bias",))
        weight, bias = layer.weight.data @ weight, layer.weight.data @ bias + layer.bias.data
    if checkpoint.dense:
        projection.load_state_dict({"weight": weight, "bias": bias})
