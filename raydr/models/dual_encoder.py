"""The dual encoder: one shared tower or one for each side, saved so that sentence-transformers opens it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from raydr.errors import ModelError
from raydr.models.batching import PaddedGroups
from raydr.models.checkpoint import MODEL_FILE, resolve_checkpoint
from raydr.models.config import ModelConfig, Side
from raydr.models.positions import check_length
from raydr.models.tokens import TextTokenizer
from raydr.models.tower import Tower, shape_backbone

SIDES: tuple[Side, Side] = ("query", "passage")


class DualEncoder(nn.Module):
    """Encodes queries and passages; scores are scale · similarity of their vectors.

    A shared tower is saved as one folder, two towers as the folders ``query`` and ``passage``; each opens with
    ``SentenceTransformer(folder)`` and gives the same vectors for the same text.
    """

    def __init__(self, config: ModelConfig, towers: dict[str, Tower]) -> None:
        super().__init__()
        self.config = config
        self.towers = nn.ModuleDict(towers)

    @classmethod
    def from_config(cls, config: ModelConfig, seed: int = 0) -> DualEncoder:
        """Load the configured checkpoints; new layers (the projection) are drawn from ``seed``.

        Raises:
            ModelError: a checkpoint cannot be loaded, or is a raydr model that was made otherwise.
            ConfigError: it has fewer layers or positions than the config asks for.
        """
        model = cls._from_checkpoints(config, seed)
        for side in SIDES:
            name = (config.passage_checkpoint if side == "passage" else "") or config.checkpoint
            check_length(model.tower(side), config.side(side).max_length, f"model.{side}.max_length", name)
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
                    "query": Tower.from_checkpoint(config.checkpoint, config),
                    "passage": Tower.from_checkpoint(passage, config),
                },
            )

    @property
    def dim(self) -> int:
        return self.tower("query").dim

    def tower(self, side: Side) -> Tower:
        tower = self.towers["shared"] if "shared" in self.towers else self.towers[side]
        assert isinstance(tower, Tower)
        return tower

    def forward(self, queries: PaddedGroups, passages: PaddedGroups) -> tuple[Tensor, Tensor]:
        """Vectors of the queries (Q, D) and of the passages (P, D), in one call as DDP needs it."""
        return self.tower("query").encode_groups(queries), self.tower("passage").encode_groups(passages)

    def save(self, folder: str | Path, tokenizers: dict[Side, TextTokenizer]) -> None:
        """Write weights (safetensors), tokenizers and config."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        sides: dict[str, Side] = {"": "passage"} if "shared" in self.towers else {side: side for side in SIDES}
        for name, side in sides.items():
            _save_tower(root / name, self.tower(side), self.config, tokenizers[side], side)
        (root / MODEL_FILE).write_text(self.config.model_dump_json(indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path) -> DualEncoder:
        """Open a model written by :meth:`save`.

        Raises:
            ModelError: the folder does not hold one.
        """
        config = read_config(folder)
        return cls(config, _load_towers(folder, config))


def read_config(folder: str | Path) -> ModelConfig:
    """The config of a saved model.

    Raises:
        ModelError: the folder holds no raydr model.
    """
    file = Path(folder) / MODEL_FILE
    if not file.exists():
        raise ModelError(f"{folder} holds no raydr model: expected a file {MODEL_FILE}")
    return ModelConfig.model_validate_json(file.read_text(encoding="utf-8"))


def tower_folder(folder: str | Path, side: Side) -> Path:
    """Where the encoder and the tokenizer of one side of a saved model are."""
    root = Path(folder)
    return root if read_config(folder).towers == "shared" else root / side


def _load_towers(folder: str | Path, config: ModelConfig) -> dict[str, Tower]:
    if config.towers == "shared":
        return {"shared": load_tower(folder, "passage", config)}
    return {side: load_tower(folder, side, config) for side in SIDES}


def load_tower(folder: str | Path, side: Side, config: ModelConfig | None = None) -> Tower:
    """One side of a saved model.

    Args:
        folder: where the model was saved.
        side: which one; a shared tower is both.
        config: how the weights are used, if otherwise than they were saved: another similarity, pooling or dropout.
    """
    from transformers import AutoConfig, AutoModel
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    config = config or read_config(folder)
    place = tower_folder(folder, side)
    extra: dict[str, Any] = {"trust_remote_code": config.trust_remote_code}
    backbone_config = AutoConfig.from_pretrained(place, **extra)
    backbone = AutoModel.from_config(backbone_config, dtype=torch.float32, **extra)
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    backbone.load_state_dict(load_file(place / "model.safetensors"))
    shape_backbone(backbone, config, str(place))
    tower = Tower(backbone, config)
    if tower.projection is not None:
        weights = load_file(place / "2_Dense" / "model.safetensors")
        tower.projection.load_state_dict({key.removeprefix("linear."): value for key, value in weights.items()})
    return tower


def load_tokenizer(folder: str | Path, side: Side) -> TextTokenizer:
    """The tokenizer of one side of a saved model."""
    return TextTokenizer(tower_folder(folder, side), read_config(folder), side)


def build_tokenizers(config: ModelConfig) -> dict[Side, TextTokenizer]:
    """The tokenizers of a model that is still to be trained."""
    resolved = resolve_checkpoint(config.checkpoint)
    if (Path(resolved) / MODEL_FILE).exists():
        return {side: TextTokenizer(tower_folder(resolved, side), config, side) for side in SIDES}
    passage = resolve_checkpoint(config.passage_checkpoint) if config.passage_checkpoint else resolved
    return {"query": TextTokenizer(resolved, config, "query"), "passage": TextTokenizer(passage, config, "passage")}


def _check_compatible(saved: ModelConfig, asked: ModelConfig) -> None:
    """Refuse saved weights that do not fit the asked config."""
    if asked.passage_checkpoint:
        raise ModelError(
            f"model.checkpoint {asked.checkpoint} is a raydr model, which has its passage tower with it: unset "
            "model.passage_checkpoint"
        )
    for field in ("towers", "projection"):
        if getattr(saved, field) != getattr(asked, field):
            raise ModelError(
                f"model.checkpoint {asked.checkpoint} was saved with {field}={getattr(saved, field)!r}, "
                f"the config asks for {getattr(asked, field)!r}"
            )


def _save_tower(place: Path, tower: Tower, config: ModelConfig, tokenizer: TextTokenizer, side: Side) -> None:
    place.mkdir(parents=True, exist_ok=True)
    tower.backbone.config.save_pretrained(place)  # type: ignore[union-attr, operator]
    weights = {key: value.detach().float().cpu().contiguous() for key, value in tower.backbone.state_dict().items()}
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    tokenizer.tokenizer.save_pretrained(place)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    hidden = int(tower.backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]
    _write(
        place / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": hidden,
            "pooling_mode_cls_token": config.pooling == "cls",
            "pooling_mode_mean_tokens": config.pooling == "mean",
            "include_prompt": True,
        },
    )
    if tower.projection is not None:
        modules.append(("2_Dense", "Dense"))
        _write(
            place / "2_Dense" / "config.json",
            {
                "in_features": hidden,
                "out_features": tower.dim,
                "bias": True,
                "activation_function": "torch.nn.modules.linear.Identity",
            },
        )
        weights = {
            f"linear.{key}": value.detach().float().cpu() for key, value in tower.projection.state_dict().items()
        }
        save_file(weights, place / "2_Dense" / "model.safetensors", metadata={"format": "pt"})
    if tower.normalize:
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
        (place / modules[-1][0]).mkdir(exist_ok=True)
    _write(
        place / "modules.json",
        [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for at, (path, kind) in enumerate(modules)
        ],
    )
    longest = (
        max(config.query.max_length, config.passage.max_length)
        if config.towers == "shared"
        else (config.side(side).max_length)
    )
    _write(place / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    _write(
        place / "config_sentence_transformers.json",
        {
            "prompts": {"query": config.query.prefix, "passage": config.passage.prefix},
            "default_prompt_name": side if config.towers == "two" and config.side(side).prefix else None,
            "similarity_fn_name": config.similarity,
        },
    )


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
