"""How many tokens a backbone has positions for."""

from __future__ import annotations

from torch import nn

from raydr.errors import ConfigError


def check_length(backbone: nn.Module, max_length: int, setting: str, name: str) -> None:
    """Refuse a length that the backbone would only fail at with the first text that is so long.

    Rotary and relative positions have no end.

    Args:
        backbone: a loaded model.
        max_length: tokens of the longest text.
        setting: its key in the config.
        name: of the checkpoint.

    Raises:
        ConfigError: its learnt positions are fewer.
    """
    for path, module in backbone.named_modules():
        if not path.endswith("position_embeddings") or not isinstance(module, nn.Embedding):
            continue
        # RoBERTa and its kin count from behind the padding's position.
        positions = module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
        if max_length > positions:
            raise ConfigError(f"{setting} is {max_length}, but {name} has positions for {positions} tokens only")
