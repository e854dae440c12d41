"""How many tokens a checkpoint has positions for, as its ``config.json`` says: told when a config is read."""

from __future__ import annotations

from typing import Any

from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT, CheckpointFiles, packaged_folder

#: Kinds of encoders that learn a position a token, and those of them that count from behind the padding's position.
#: Of others :func:`raydr.models.backbone.check_length` tells, once they are loaded.
_FROM_0 = ("albert", "bert", "distilbert", "electra", "ernie")
_BEHIND_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")


def num_positions(checkpoint: str, ask_hub: bool = True) -> int | None:
    """Tokens of the longest text that a checkpoint can read; None where there is no end, or it is not known.

    Args:
        checkpoint: a folder, a name on the hub, or ``offline:minilm``.
        ask_hub: whether a name on the hub is looked up.
    """
    # That the package is missing is said where its weights are looked for.
    files = CheckpointFiles(packaged_folder() or "./" if checkpoint == OFFLINE_CHECKPOINT else checkpoint)
    found: Any = None if files.on_hub and not ask_hub else files.read("config.json")
    if not isinstance(found, dict) or found.get("position_embedding_type", "absolute") != "absolute":
        return None
    kind, positions = found.get("model_type"), found.get("max_position_embeddings")
    if kind not in (*_FROM_0, *_BEHIND_PADDING) or not isinstance(positions, int):
        return None
    return positions - (int(found.get("pad_token_id") or 0) + 1 if kind in _BEHIND_PADDING else 0)


def check_positions(checkpoint: str, max_length: int, setting: str, ask_hub: bool = True) -> None:
    """Refuse a length that the checkpoint has no positions for.

    Raises:
        ValueError: its learnt positions are fewer.
    """
    positions = num_positions(checkpoint, ask_hub)
    if positions is not None and max_length > positions:
        raise ValueError(f"{setting} is {max_length}, but {checkpoint} has positions for {positions} tokens only")
