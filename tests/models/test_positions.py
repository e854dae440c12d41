"""How many tokens a checkpoint has positions for, as its files say and as it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.models.backbone import check_length
from raydr.models.config import num_positions

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "max_position_embeddings": 30,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["Albert", "Bert", "Camembert", "Electra", "Ernie", "MPNet", "Roberta", "XLMRoberta"])
def test_files_say_what_the_loaded_model_has(kind: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{kind}Config")(**SIZES, **({"embedding_size": 8} if kind == "Albert" else {}))
    config.save_pretrained(tmp_path)
    positions = num_positions(str(tmp_path))
    assert positions is not None
    network = getattr(transformers, f"{kind}Model")(config)
    check_length(network, positions, "x", "y")
    with pytest.raises(ConfigError, match=f"x is {positions + 1}, but y has positions for {positions} tokens only"):
        check_length(network, positions + 1, "x", "y")


def test_rotary_positions_have_no_end(tmp_path: Path) -> None:
    transformers.ModernBertConfig(**SIZES).save_pretrained(tmp_path)
    assert num_positions(str(tmp_path)) is None
    assert num_positions(str(tmp_path / "none")) is None


def test_a_config_that_asks_for_more_is_refused_when_it_is_read(tiny_checkpoint: str) -> None:
    raw: dict[str, Any] = {"data": {"reader": {"name": "beir", "path": "x"}}}
    with pytest.raises(
        ConfigError, match=r"model: .*query\.max_length is 600, but offline:minilm has positions for 512"
    ):
        RunConfig.parse(raw | {"model": {"query": {"max_length": 600}}})
    cross_encoder = {"checkpoint": tiny_checkpoint, "max_length": 129}
    with pytest.raises(ConfigError, match=r"ranker\.model: .*max_length is 129, but .* has positions for 128"):
        RunConfig.parse(raw | {"ranker": {"model": cross_encoder}})
