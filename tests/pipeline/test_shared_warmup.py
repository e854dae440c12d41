"""Warm-ups that trainings share: one artefact for all that begin with the same epochs, and the same models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import recipe_of, small_run

from raydr.artefacts.declaration import Node
from raydr.config.run import RunConfig
from raydr.models.dual_encoder import DualEncoder
from raydr.pipeline.session import open_session

NPC = {"name": "npc", "warmup_epochs": 2}
SHARED = [1, 2]


@pytest.fixture
def raw(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> dict[str, Any]:
    train = {"num_epochs": 3, "num_hard_negatives": 0, "loss": NPC, "share_warmup": SHARED}
    return small_run(beir_folder, tiny_checkpoint, tmp_path / "work", train=train)


def trained(raw: dict[str, Any], **train: Any) -> Node:
    return recipe_of(RunConfig.parse(raw | {"train": raw["train"] | train})).model()


def warmup_nodes(node: Node) -> list[Node]:
    return [ancestor for ancestor in node.ancestors().values() if ancestor.kind == "warmup"]


def warmups(node: Node) -> list[str]:
    return [ancestor.key for ancestor in warmup_nodes(node)]


@pytest.mark.usefixtures("here")
def test_trainings_share_the_epochs_in_which_they_are_the_same(raw: dict[str, Any]) -> None:
    model = trained(raw)
    assert len(warmups(model)) == 2
    shared: Sequence[dict[str, Any]] = [
        {"loss": "nce"},
        {"loss": NPC | {"use_consistency": False}},
        {"loss": {"name": "rcl", "beta": {"start_epoch": 2}}},
        {"pair_detection": {"num_random": 7}},
        {"teacher": {"momentum": 0.9}},
    ]
    for changes in shared:
        assert warmups(trained(raw, **changes)) == warmups(model), changes
    assert warmups(trained(raw, loss=NPC | {"warmup_epochs": 1})) == warmups(model)[:1]
    # A state of keep: last has no copy of the best epoch, which keep: best needs later.
    for changes in ({"optimizer": {"learning_rate": 2e-3}}, {"keep": "last"}, {"num_epochs": 4}):
        assert not set(warmups(trained(raw, **changes))) & set(warmups(model)), changes
    assert trained(raw, share_warmup=None).key == model.key


@pytest.mark.usefixtures("here")
def test_patience_ends_no_warm_up_of_another_training(raw: dict[str, Any]) -> None:
    """Epochs of a warm-up do not count, and a state that patience has ended would end all trainings that share it."""

    def patient(patience: int | None, **train: Any) -> Node:
        return trained(raw, dev=raw["train"]["dev"] | {"patience": patience}, **train)

    model = patient(1)
    assert [node.arguments["training"].train.dev.patience for node in warmup_nodes(model)] == [None, None]
    assert warmups(model) == warmups(patient(None))
    # Plain NCE alone may end after its second epoch.
    assert warmups(patient(1, loss="nce")) == warmups(model)[:1]
    assert warmups(patient(2, loss="nce")) == warmups(model)


@pytest.mark.invariant
def test_a_model_that_goes_on_from_a_shared_warm_up_is_the_same(raw: dict[str, Any], tmp_path: Path) -> None:
    keys = {}
    for name, share in {"shared": SHARED, "alone": None}.items():
        changes = {"train": raw["train"] | {"share_warmup": share}, "workdir": str(tmp_path / name)}
        with open_session(RunConfig.parse(raw | changes)) as session:
            [model] = session.make(session.recipe.model())
        assert [row["epoch"] for row in model.info["history"]] == [0, 1, 2]
        assert len(list(tmp_path.glob(f"{name}/store/warmup/*/manifest.json"))) == len(share or [])
        keys[name] = DualEncoder.load(Path(model.local_folder())).state_dict()
    for key, tensor in keys["shared"].items():
        assert torch.equal(tensor, keys["alone"][key]), key
