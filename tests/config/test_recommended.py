"""``train.loss: npc`` alone is what is recommended, and has the key of the same settings spelt out."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

from raydr.config.first_config import first_config
from raydr.config.run import RunConfig
from raydr.errors import ArtifactError, ConfigError
from raydr.training.config import TrainConfig

pytestmark = pytest.mark.usefixtures("here")
PAPER = {"detector": {"name": "gaussian"}, "margins": "model"}


@pytest.fixture
def key_of(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    def key(train: dict[str, Any], variant: dict[str, Any] | None = None) -> str:
        raw = small_run(beir_folder, tiny_checkpoint, tmp_path / "w", train=train | {"num_epochs": 3})
        config = RunConfig.parse(raw | ({} if variant is None else {"variants": {"npc": variant}}))
        return str(recipe_of(config).trained("trained" if variant is None else "npc").key)

    return key


@pytest.mark.parametrize(
    ("short", "spelt"),
    [
        (
            {"loss": "npc"},
            {
                "loss": {"name": "npc", "warmup_epochs": 1},
                "pair_detection": {"detector": "local_fdr", "margins": "cross_fitted"},
                "teacher": {"half_life": 2},
            },
        ),
        (
            {"loss": {"name": "npc-paper", "warmup_epochs": 2}, "pair_detection": {"num_random": 9}},
            {"loss": {"name": "npc", "warmup_epochs": 2}, "pair_detection": PAPER | {"num_random": 9}},
        ),
        ({"loss": "nce"}, {"loss": "nce", "pair_detection": None, "teacher": {"momentum": 0.99}}),
    ],
)
def test_what_is_left_out_has_the_key_of_what_is_spelt_out(short: Any, spelt: Any, key_of: Any) -> None:
    assert key_of(short) == key_of(spelt)
    assert key_of({}, short) == key_of(spelt)


def test_the_paper_the_recommendation_and_no_detection_are_three_models(key_of: Any) -> None:
    keys = {
        key_of(section) for section in ({"loss": "npc"}, {"loss": "npc-paper"}, {"loss": "npc", "pair_detection": None})
    }
    assert len(keys) == 3


def test_a_written_config_means_the_same(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    raw = small_run(beir_folder, tiny_checkpoint, tmp_path / "w", train={"loss": "npc"})
    config = RunConfig.parse(raw)
    again = RunConfig.parse(config.model_dump(mode="json") | {"train": config.train.model_dump(mode="json")})
    assert again.train.resolved() == config.train.resolved()
    assert again.train.model_copy(update={"loss": TrainConfig().loss}).detection is None


def test_a_wrong_detection_is_told_by_its_own_name(beir_folder: Path) -> None:
    reader = {"data": {"reader": {"name": "beir", "path": str(beir_folder)}}}
    with pytest.raises(ConfigError) as error:
        RunConfig.parse(reader | {"train": {"pair_detection": {"num_randon": 3}}})
    assert "1 wrong setting:\n  train.pair_detection.num_randon: unknown key (value 3)" in str(error.value)


def test_a_first_config_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk left an empty file, which the next command refused as another config."""
    (tmp_path / "pairs.csv").write_text("query,passage\n" + "".join(f"q {at},p {at}\n" for at in range(30)))
    monkeypatch.chdir(tmp_path)
    first = first_config("pairs.csv")

    def fill(path: Path, *_: Any, **__: Any) -> None:
        path.write_bytes(b"")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", fill)
        with pytest.raises(ArtifactError, match=r"cannot write .*pairs\.yaml: No space left on device"):
            first.write()
    assert [path.name for path in tmp_path.iterdir()] == ["pairs.csv"]
    assert first.write().read_text() == first.text


def test_a_first_config_has_npc_beside_nce(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("query,passage\n" + "".join(f"q {at},p {at}\n" for at in range(30)))
    config = RunConfig.parse(first_config(str(tmp_path / "pairs.csv")).raw)
    assert config.train.loss.name == "nce"
    assert config.variant("npc").train.detection is not None
    assert recipe_of(config, tmp_path / "w").systems("test") == ["bm25", "untrained", "trained", "npc"]
