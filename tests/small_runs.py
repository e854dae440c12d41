"""The config of a run that takes seconds, over the data and the checkpoint of ``conftest.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raydr.artefacts.context import Context, Facts
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.pipeline.recipe import Recipe
from raydr.store.folder import Folder


def small_run(beir_folder: Path, checkpoint: str, workdir: Path, **sections: Any) -> dict[str, Any]:
    """A config as a nested dict; ``sections`` change it, mappings setting by setting."""
    side = {"max_length": 32}
    raw: dict[str, Any] = {
        "workdir": str(workdir),
        "data": {"reader": {"name": "beir", "path": str(beir_folder)}, "part_rows": 25},
        "negatives": {"depth": 6},
        "model": {"checkpoint": checkpoint, "query": side, "passage": side},
        "train": {
            "batch_size": 8,
            "num_hard_negatives": 1,
            "dtype": "float32",
            "optimizer": {"learning_rate": 1e-3},
            "dev": {"random_passages": 30},
        },
        "encode": {"dtype": "float32"},
        "ray": {"num_cpus": 2, "object_store_gib": 0.2},
        "tracking": {"enabled": False},
    }
    for name, changes in sections.items():
        raw[name] = raw.get(name, {}) | changes if isinstance(changes, dict) else changes
    return raw


def recipe_of(config: RunConfig, workdir: Path | None = None) -> Recipe:
    """The nodes that a config leads to; ``workdir`` keeps the facts in place of the config's own."""
    return Recipe(Context(config, Facts(Places(Folder(str(workdir or config.workdir)))), config))
