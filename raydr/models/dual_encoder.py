"""The dual encoder: a shared tower or a tower for each side, saved so that sentence-transformers opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from raydr.errors import ModelError
from raydr.models.backbone import check_length
from raydr.models.batching import PaddedGroups
from raydr.models.checkpoint import resolve_checkpoint
from raydr.models.checkpoint_settings import MODEL_FILE
from raydr.models.config import SIDES, ModelConfig, Side, read_config, tower_folder
from raydr.models.saved_tower import load_heads, require_whole, save_tower
from raydr.models.tokens import TextTokenizer
from raydr.models.tower import Tower

#: Tokens of a short text, and the share of a vector that padding may change; rounding changes a millionth.
_SHORT, _NOTICEABLE = 8, 1e-3


class DualEncoder(nn.Module):
    """Encoder of queries and passages; scores are scale · similarity of their vectors.

    A shared tower is saved as a single folder, two towers as the folders ``query`` and ``passage``. Each opens with
    ``SentenceTransformer(folder)`` and returns the same vectors; if every token has a vector, with
    ``MultiVectorEncoder(folder)`` and PyLate. docs/scores.md has the layouts of other score functions.
    """

    def __init__(self, config: ModelConfig, towers: dict[str, Tower]) -> None:
        super().__init__()
        self.config = config
        self.towers = nn.ModuleDict(towers)

    @classmethod
    def from_config(cls, config: ModelConfig, seed: int = 0) -> DualEncoder:
        """Load the configured checkpoints; new layers (the projection) are drawn from ``seed``.

        Raises:
            ModelError: a checkpoint cannot be loaded, or is a raydr model whose weights do not fit the config.
            ConfigError: a checkpoint has fewer layers or positions than configured.
        """
        model = cls._from_checkpoints(config, seed)
        for side in SIDES:
            name = (config.passage_checkpoint if side == "passage" else "") or config.checkpoint
            check_length(model.tower(side), config.side(side).max_length, f"model.{side}.max_length", name)
            # Code of a checkpoint may need another device.
            if not config.trust_remote_code and (config.towers == "two" or side == "query"):
                _check_padding(model.tower(side), side, name)
        return model

    @classmethod
    def _from_checkpoints(cls, config: ModelConfig, seed: int) -> DualEncoder:
        folder = resolve_checkpoint(config.checkpoint)
        if (Path(folder) / MODEL_FILE).exists():
            _check_compatible(read_config(folder), config)
            return cls(config, _load_towers(folder, config))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if config.towers == "shared":
                return cls(config, {"shared": Tower.from_checkpoint(config.checkpoint, config)})
            passage = config.passage_checkpoint or config.checkpoint
            if (Path(resolve_checkpoint(passage)) / MODEL_FILE).exists():
                raise ModelError(
                    f"model.passage_checkpoint {passage} is a raydr model, of which one tower cannot be taken: "
                    "give the folder of the tower in it, or a Hugging Face checkpoint"
                )
            return cls(
                config,
                {
                    "query": Tower.from_checkpoint(config.checkpoint, config, ["query"]),
                    "passage": Tower.from_checkpoint(passage, config, ["passage"]),
                },
            )

    @property
    def dim(self) -> int:
        return self.tower("query").dim

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def ready(self, dtype: torch.dtype) -> DualEncoder:
        """Convert the towers to a dtype, for inference on their device."""
        for tower in {id(tower): tower for tower in map(self.tower, SIDES)}.values():
            tower.ready(str(self.device), dtype)
        return self

    def tower(self, side: Side) -> Tower:
        tower = self.towers["shared"] if "shared" in self.towers else self.towers[side]
        assert isinstance(tower, Tower)
        return tower

    def forward(self, queries: PaddedGroups, passages: PaddedGroups, cached: bool = False) -> tuple[Tensor, Tensor]:
        """Encode the queries (Q, D) and the passages (P, D) in a single call, which DDP requires.

        If the score function reads several vectors of a text, they are (Q, M, D), padded with zeros. ``cached`` as in
        :meth:`raydr.models.tower.Tower.encode_groups`.
        """
        return (
            self.tower("query").encode_groups(queries, "query", cached),
            self.tower("passage").encode_groups(passages, "passage", cached),
        )

    def save(self, folder: str | Path, tokenizers: dict[Side, TextTokenizer]) -> None:
        """Write weights (safetensors), tokenizers and config."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        sides: dict[str, Side] = {"": "passage"} if "shared" in self.towers else {side: side for side in SIDES}
        for name, side in sides.items():
            save_tower(root / name, self.tower(side), self.config, tokenizers[side], side)
        (root / MODEL_FILE).write_text(self.config.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> DualEncoder:
        """Open a model that :meth:`save` wrote.

        Raises:
            ModelError: the folder holds no model, or a damaged file.
        """
        config = read_config(folder)
        return cls(config, _load_towers(folder, config))


@torch.no_grad()
def _check_padding(tower: Tower, side: Side, name: str) -> None:
    """Refuse an encoder whose vectors depend on the padding of a batch, as those of FNet and ConvBERT do.

    Raises:
        ModelError: a short text gets another vector with padding.
    """
    shape: Any = tower.backbone.config
    ids = torch.arange(_SHORT, 2 * _SHORT).unsqueeze(0) % shape.vocab_size
    padded = nn.functional.pad(ids, (0, 4 * _SHORT), value=int(getattr(shape, "pad_token_id", 0) or 0))
    alone, beside = (
        tower(of, nn.functional.pad(torch.ones_like(ids), (0, of.shape[1] - _SHORT)), torch.zeros_like(of), side)
        for of in (ids, padded)
    )
    difference = (alone - (beside[:, : alone.shape[1]] if alone.dim() == 3 else beside)).abs().max()
    if difference > _NOTICEABLE * alone.abs().max():
        raise ModelError(
            f"{name} ({shape.model_type}) gives a text other vectors beside longer texts, since it reads the padding: "
            "scores would depend on the batch. Use another checkpoint"
        )


def _load_towers(folder: str | Path, config: ModelConfig) -> dict[str, Tower]:
    if config.towers == "shared":
        return {"shared": load_tower(folder, "passage", config)}
    return {side: load_tower(folder, side, config) for side in SIDES}


def load_tower(folder: str | Path, side: Side, config: ModelConfig | None = None) -> Tower:
    """Open a side's tower of a saved model.

    Args:
        folder: folder of the model.
        side: side of the tower; a shared tower is that of both.
        config: config in place of the saved config, with another similarity, pooling or dropout.
    """
    config = config or read_config(folder)
    place = tower_folder(folder, side)
    require_whole(place / "model.safetensors")
    sides = SIDES if config.towers == "shared" else [side]
    tower = Tower.from_checkpoint(str(place), config, sides, what=f"the saved model {place}")
    load_heads(tower, place)
    return tower


def load_tokenizer(folder: str | Path, side: Side) -> TextTokenizer:
    """Open a side's tokenizer of a saved model."""
    return TextTokenizer(tower_folder(folder, side), read_config(folder), side)


def build_tokenizers(config: ModelConfig) -> dict[Side, TextTokenizer]:
    """Open the tokenizers of a model before its training."""
    resolved = resolve_checkpoint(config.checkpoint)
    if (Path(resolved) / MODEL_FILE).exists():
        return {side: TextTokenizer(tower_folder(resolved, side), config, side) for side in SIDES}
    passage = resolve_checkpoint(config.passage_checkpoint) if config.passage_checkpoint else resolved
    return {"query": TextTokenizer(resolved, config, "query"), "passage": TextTokenizer(passage, config, "passage")}


def _check_compatible(saved: ModelConfig, config: ModelConfig) -> None:
    """Refuse saved weights that do not fit the config."""
    if config.passage_checkpoint:
        raise ModelError(
            f"model.checkpoint {config.checkpoint} is a raydr model, which has its passage tower with it: unset "
            "model.passage_checkpoint"
        )
    weights = {
        "towers": lambda model: model.towers,
        "projection": lambda model: model.projected_dim,
        "codes": _codes,
    }
    for name, of in weights.items():
        if of(saved) != of(config):
            raise ModelError(
                f"model.checkpoint {config.checkpoint} was saved with {name}={of(saved)!r}, the config asks for "
                f"{of(config)!r}"
            )


def _codes(config: ModelConfig) -> dict[str, int]:
    """Return the number of learnt codes of each side."""
    return {side: config.vectors(side).num for side in SIDES if config.vectors(side).kind == "codes"}
