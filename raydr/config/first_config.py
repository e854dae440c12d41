"""The first config for a user's data: the recognised reader, held-out splits, and defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from raydr.config.files import read_mapping
from raydr.console import warn
from raydr.data.recognition import recognise, split_in
from raydr.errors import ConfigError
from raydr.store import Folder

#: Share of the training queries that become a missing split.
_HELD_OUT = 0.1
#: Batch size as in configs/example.yaml, smaller for small data, so that an epoch has this number of steps.
_BATCH_SIZE, _FEWEST_STEPS = 64, 8


@dataclass(frozen=True)
class FirstConfig:
    """Config for a user's data.

    Args:
        name: name of the run.
        raw: settings of the config.
        what: description of the data.
        trains: whether the data have a training split.
        tests: test splits of the data.
    """

    name: str
    raw: dict[str, Any]
    what: str
    trains: bool
    tests: tuple[str, ...]

    @property
    def text(self) -> str:
        settings = yaml.safe_dump(self.raw, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
        return f"# {self.what}\n# What else may be set: raydr settings\n{settings}"

    def write(self) -> Path:
        """Write the config into the current folder; an equal file is kept.

        Raises:
            ConfigError: a file of this name holds another config.
            ArtifactError: the disk is full or the folder is not writable.
        """
        path = Path(f"{self.name}.yaml")
        if not path.exists():
            # Whole or not at all: an empty file of this name would be refused ever after.
            with Folder(".").publish(path.name) as begun:
                Path(begun).write_text(self.text, encoding="utf-8")
        elif read_mapping(path, "config file", "of sections") != self.raw:
            raise ConfigError(
                f"{path} exists already and has other settings: raydr prepare {path} uses it; for a new config move it "
                "away"
            )
        return path


def first_config(data: str, called: str = "") -> FirstConfig:
    """Make a config for a file or a folder, local or an fsspec URL.

    Args:
        data: path or URL.
        called: name of the data in warnings; the path if empty.

    Raises:
        DataError: the format of the data is unknown.
    """
    recognised = recognise(data)
    if recognised.remark:
        warn(recognised.remark.replace(data, called or data))
    stem = data.rstrip("/").rpartition("/")[2].removesuffix(".gz")
    name = re.sub(r"[^A-Za-z0-9-]+", "-", stem.rpartition(".")[0] or stem).strip("-") or "data"
    splits = _splits(recognised.splits)
    left = 1 - sum(splits.get("hold_out", {}).values())
    train: dict[str, Any] = {
        "num_epochs": 3,
        "batch_size": _batch_size(recognised.num_queries, left),
        "optimizer": {"learning_rate": 5e-5},
    }
    if recognised.reader.get("columns", {}).get("negatives"):
        # Of several negatives of a query each is drawn, as trainers of triplets do.
        train |= {"num_hard_negatives": 1, "sampler": "uniform"}
    raw = {"name": name, "workdir": f"work/{name}", "data": {"reader": recognised.reader, **splits}, "train": train}
    trains, tests = (
        tuple(split for split in recognised.splits if split_in(split) == word) for word in ("train", "test")
    )
    if trains:
        # The recommended loss for mismatched pairs, to compare with a training that trusts all pairs.
        raw["variants"] = {"npc": {"loss": "npc"}}
    return FirstConfig(name, raw, recognised.what, bool(trains), tests)


def _splits(names: Sequence[str]) -> dict[str, Any]:
    """Return the roles of the splits; missing splits are held out of the training split, if there is one.

    >>> _splits(["train", "validation"])
    {'dev_split': 'validation', 'hold_out': {'test': 0.1}}
    >>> _splits(["test"]), _splits(["heldout_train", "train", "dev", "test"])
    ({'dev_split': ''}, {})
    """
    by_word: dict[str, list[str]] = {}
    # A split with the word as its name comes first.
    for name in sorted(names, key=lambda name: name not in ("train", "dev", "test")):
        by_word.setdefault(split_in(name), []).append(name)
    settings: dict[str, Any] = {}
    for word, key in (("train", "train_split"), ("dev", "dev_split")):
        if (split := by_word.get(word, [word])[0]) != word:
            settings[key] = split
    if (tests := by_word.get("test", ["test"])) != ["test"]:
        settings["test_splits"] = tests
    if "train" not in by_word and "dev" not in by_word:
        settings["dev_split"] = ""
    if lacking := [word for word in ("dev", "test") if word not in by_word and "train" in by_word]:
        settings["hold_out"] = dict.fromkeys(lacking, _HELD_OUT)
    return settings


def _batch_size(num_queries: int | None, left: float) -> int:
    size = _BATCH_SIZE
    while num_queries is not None and size > 2 and size * _FEWEST_STEPS > num_queries * left:
        size //= 2
    return size
