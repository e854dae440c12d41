"""One encoder: a Hugging Face model, what is kept of its hidden states, an optional projection."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from raydr.errors import ModelError
from raydr.models.backbone import choose_attention, shape_backbone, without_pooler
from raydr.models.batching import PaddedGroups, concatenate
from raydr.models.checkpoint import naming, resolve_checkpoint
from raydr.models.checkpoint_settings import checkpoint_settings_of
from raydr.models.config import SIDES, ModelConfig, Side
from raydr.models.loading import load_encoder, load_head
from raydr.models.packed_attention import packed_states
from raydr.models.packing import PackedTexts
from raydr.models.pooling import Reduction
from raydr.models.precision import in_arithmetic

#: How the names of a pooler's weights begin.
POOLER = "pooler."


class Tower(nn.Module):
    """Texts to vectors: last hidden states → reduction → projection → the first dimensions → unit length if the
    similarity is cosine.

    A text becomes one vector, (D,), or several, (M, D), as the score function reads it.

    Args:
        backbone: the Hugging Face model.
        config: the model's.
        sides: whose texts it encodes.
    """

    def __init__(self, backbone: nn.Module, config: ModelConfig, sides: Sequence[Side] = SIDES) -> None:
        super().__init__()
        self.backbone = backbone
        #: Weights of the architecture that no vector depends on: they are saved as they came.
        self.unused: dict[str, Tensor] = {}
        self.normalize = config.similarity == "cosine"
        hidden = int(backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]
        dim = config.projected_dim
        self.projection = nn.Linear(hidden, dim) if dim else None
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
            config: settings of the model.
            sides: whose texts the tower encodes.
            what: name of the checkpoint in messages, if it is not ``model.checkpoint``.

        Raises:
            ModelError: the checkpoint cannot be loaded, or is a cross-encoder.
            ConfigError: it has fewer layers than asked for.
        """
        resolved = resolve_checkpoint(name)
        what = what or f"model.checkpoint {name!r}"
        backbone, drawn = load_encoder(resolved, what, config.trust_remote_code)
        if any("SequenceClassification" in architecture for architecture in backbone.config.architectures or []):
            raise ModelError(
                f"{what} is a cross-encoder ({', '.join(backbone.config.architectures)}), and a "
                "retriever is expected here: give an encoder, or set ranker.model.checkpoint to it"
            )
        # Checkpoints of facebook/dpr wrap the encoder; the plain BERT inside is what is trained.
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
        """Move the tower to a device, in an arithmetic, for inference."""
        choose_attention(self, torch.device(device).type, dtype)
        return in_arithmetic(self.to(device=device), dtype).eval()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        side: Side,
        words_NLD: Tensor | None = None,
    ) -> Tensor:
        """Encode N padded texts (N, L) in float32: (N, dim), or (N, M, dim) of several vectors a text.

        Their word embeddings may be there already.
        """
        extra = {"token_type_ids": token_type_ids} if self.uses_token_types else {}
        words = {"input_ids": input_ids} if words_NLD is None else {"inputs_embeds": words_NLD}
        hidden_NLD = self.backbone(attention_mask=attention_mask, **words, **extra).last_hidden_state
        return self._reduce(hidden_NLD, attention_mask, side)

    def encode_groups(self, texts: PaddedGroups, side: Side) -> Tensor:
        """Encode the texts of a batch in float32, in its order: (N, dim) or (N, M, dim).

        The gradient of a look-up of word embeddings is as large as the vocabulary. With gradients, the words of all
        groups are therefore looked up at once.
        """
        groups = texts.groups
        if not groups:
            shape = (0, 0, self.dim) if self.reduction(side).vectors.several else (0, self.dim)
            return torch.zeros(shape, device=next(self.parameters()).device)
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

    def encode_packed(self, texts: PackedTexts, side: Side) -> Tensor:
        """Encode texts without padding as :meth:`forward` does; the backbone must be prepared for them."""
        extra = {"token_type_ids": texts.token_type_ids_1T} if self.uses_token_types else {}
        hidden_TD = packed_states(self.backbone, texts, **extra)
        starts_N1, last = texts.starts_N1.long(), len(hidden_TD) - 1
        reduction = self.reduction(side)
        if reduction.vectors.several:
            place_NL = torch.arange(texts.longest, device=starts_N1.device) + starts_N1[:-1, None]
            is_token_NL = place_NL < starts_N1[1:, None]
            return self._reduce(hidden_TD[place_NL.clamp(max=last)], is_token_NL, side)
        if reduction.pooling != "mean":
            at_N = starts_N1[:-1] if reduction.pooling == "cls" else starts_N1[1:] - 1
            return self._finish(hidden_TD[at_N.clamp(max=last)].float())
        # The same sums each time, which adding up in parallel would not give.
        means_ND = torch.segment_reduce(hidden_TD.float(), "mean", offsets=starts_N1, axis=0, unsafe=True)
        return self._finish(means_ND)

    def _reduce(self, hidden_NLD: Tensor, attention_mask: Tensor, side: Side) -> Tensor:
        states, mask_NM = self.reduction(side)(hidden_NLD, attention_mask)
        vectors = self._finish(states)
        return vectors if mask_NM is None else vectors.masked_fill(~mask_NM.unsqueeze(-1), 0)

    def _finish(self, states: Tensor) -> Tensor:
        """Apply projection, truncation and normalisation."""
        if self.projection is not None:
            states = self.projection(states.to(self.projection.weight.dtype)).float()
        states = states[..., : self.dim]
        return nn.functional.normalize(states, dim=-1) if self.normalize else states


def _load_dense(projection: nn.Linear, resolved: str) -> None:
    """Load the weights of the checkpoint's own linear layer, if it has one of this width.

    Raises:
        ModelError: the layer's weights are missing, damaged or of another shape.
    """
    from transformers.utils import cached_file

    dense = checkpoint_settings_of(resolved)
    if not dense.dense or dense.settings.get("projection", projection.out_features) != projection.out_features:
        return
    what = f"the Dense layer of model.checkpoint {resolved} in {dense.dense}"
    with naming(what):
        files = (
            cached_file(resolved, f"{dense.dense}/{name}", _raise_exceptions_for_missing_entries=False)
            for name in ("model.safetensors", "pytorch_model.bin")
        )
        file = next(filter(None, files), None)
    if file is None:
        raise ModelError(f"{what} has no weights")
    load_head(file, projection, what, optional=("bias",))
