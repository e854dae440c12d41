"""Low-rank adapters in place of an encoder's weights, whatever trains them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from raydr.models.cross_encoder import CrossEncoder
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.training.checkpoint import TEACHER, WEIGHTS
from training.harness import Recorder, make_trainer, model_config, run_alone, run_with_ranks
from training.test_cross_encoder import config_for
from training.test_cross_encoder import make_trainer as make_classifier_trainer

LORA = {"rank": 4, "alpha": 8, "dropout": 0.0}
TRAIN = {
    "num_epochs": 2,
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-2, "lora": LORA},
}
NPC = {
    "loss": {"name": "npc", "warmup_epochs": 0},
    "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 20},
}


def is_target(name: str) -> bool:
    """Of the tiny checkpoint: linear layers have weights, and lie neither in the embeddings nor in a normalisation."""
    return name.endswith("weight") and "embeddings" not in name and "LayerNorm" not in name


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, weights in before.items() if not torch.equal(weights, after[name])}


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ({}, {}),
        ({"towers": "two"}, {"cache_tokens": 64}),
        ({"projection": 8}, {"recompute_activations": True}),
        ({"score": "poly"}, {"dtype": "bfloat16"}),
        ({}, NPC),
        ({"dropout": 0.1}, {"coteaching": {"noise_rate": 0.1}}),
    ],
)
def test_adapters_learn_and_end_in_the_weights(
    model: dict[str, Any], changes: dict[str, Any], tiny_data: tuple[str, str], tiny_checkpoint: str
) -> None:
    config = model_config(tiny_checkpoint, **model)
    before = DualEncoder.from_config(config, seed=0).state_dict()
    recorder = Recorder()
    progress, after = run_alone(tiny_data, config, TRAIN | changes, recorder)
    of_encoder = {name for name in before if ".backbone." in name}
    assert changed(before, after) == {name for name in of_encoder if is_target(name)} | (before.keys() - of_encoder)
    losses = [row.metrics["loss"] for row in progress.history]
    assert losses[1] < losses[0]


def test_the_optimiser_and_checkpoints_hold_what_learns(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = model_config(tiny_checkpoint, projection=8)
    recorder = Recorder(keep_at=3, folder=tmp_path)
    trainer = make_trainer(tiny_data, config, TRAIN | NPC | {"checkpoint_steps": 1}, recorder)
    learner = trainer.learner
    learning = {name for name, parameter in learner.model.named_parameters() if parameter.requires_grad}
    assert all("lora_" in name or "projection" in name for name in learning)
    groups = learner.optimization.optimizer.param_groups
    assert sum(len(group["params"]) for group in groups) == len(learning)
    learner.start_teacher()
    assert learner.teacher is not None
    pairs = zip(learner.teacher.model.named_parameters(), learner.model.parameters(), strict=True)
    assert {name for (name, own), other in pairs if own is not other} == learning
    trainer.run()
    assert load_file(tmp_path / WEIGHTS).keys() == learning
    assert load_file(tmp_path / TEACHER).keys() == learning


@pytest.mark.invariant
@pytest.mark.parametrize("changes", [{}, NPC], ids=["nce", "npc"])
@pytest.mark.parametrize("stop", [3, 5])
def test_resumed_equals_uninterrupted(
    stop: int, changes: dict[str, Any], tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    lora = {"optimizer": {"learning_rate": 1e-2, "lora": LORA | {"dropout": 0.1}}}
    train = TRAIN | changes | lora | {"checkpoint_steps": 1}
    config = model_config(tiny_checkpoint, dropout=0.1)
    _, weights = run_alone(tiny_data, config, train, Recorder(keep_at=stop, folder=tmp_path / "state"))
    resumed = make_trainer(tiny_data, config, train)
    resumed.resume(tmp_path / "state")
    assert resumed.progress.global_step == stop
    resumed.run()
    assert not changed(weights, resumed.model.state_dict())


@pytest.mark.invariant
@pytest.mark.parametrize("changes", [{}, {"cache_tokens": 64}, NPC], ids=["whole", "in pieces", "npc"])
def test_two_ranks_equal_one(
    changes: dict[str, Any], tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = model_config(tiny_checkpoint, towers="two")
    _, weights = run_alone(tiny_data, config, TRAIN | changes)
    _, shared = run_with_ranks(2, tmp_path, tiny_data, config, TRAIN | changes)
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.mark.invariant
@pytest.mark.parametrize(("changes", "dropout"), [({"recompute_activations": True}, 0.1), ({"cache_tokens": 64}, 0.0)])
def test_recomputed_or_in_pieces_it_is_the_same(
    changes: dict[str, Any], dropout: float, tiny_data: tuple[str, str], tiny_checkpoint: str
) -> None:
    train = TRAIN | {"optimizer": {"learning_rate": 1e-2, "lora": LORA | {"dropout": dropout}}}
    config = model_config(tiny_checkpoint, dropout=dropout)
    _, whole = run_alone(tiny_data, config, train)
    _, other = run_alone(tiny_data, config, train | changes)
    for name, tensor in whole.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-4)


@pytest.fixture
def tiny_decoder(tiny_checkpoint: str, tmp_path: Path) -> str:
    """The tiny checkpoint's tokenizer, and a decoder of Qwen3's architecture."""
    from transformers import Qwen3Config, Qwen3Model

    folder = shutil.copytree(tiny_checkpoint, tmp_path / "decoder")
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    vocabulary = len(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"])
    Qwen3Model(Qwen3Config(vocab_size=vocabulary, pad_token_id=0, **size, **heads)).save_pretrained(folder)
    return str(folder)


def test_some_layers_of_a_decoder_learn(tiny_data: tuple[str, str], tiny_decoder: str) -> None:
    config, lora = model_config(tiny_decoder), LORA | {"targets": ["q_proj", "mlp.down_proj"]}
    before = DualEncoder.from_config(config, seed=0).state_dict()
    train = TRAIN | {"recompute_activations": True, "optimizer": {"learning_rate": 1e-2, "lora": lora}}
    progress, after = run_alone(tiny_data, config, train)
    targets = {name for name in before if name.endswith(("q_proj.weight", "mlp.down_proj.weight"))}
    assert changed(before, after) == targets
    assert progress.history[1].metrics["loss"] < progress.history[0].metrics["loss"]


def test_the_saved_model_is_as_any_other_and_is_gone_on_from(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = model_config(tiny_checkpoint)
    trainer = make_trainer(tiny_data, config, TRAIN)
    trainer.run()
    trainer.model.save(tmp_path / "model", build_tokenizers(config))
    saved = DualEncoder.load(tmp_path / "model")
    assert not changed(trainer.model.state_dict(), saved.state_dict())
    assert saved.state_dict().keys() == DualEncoder.from_config(config, seed=0).state_dict().keys()
    again = make_trainer(tiny_data, config.model_copy(update={"checkpoint": str(tmp_path / "model")}), TRAIN)
    again.run()
    assert changed(saved.state_dict(), again.model.state_dict()) == {
        name for name in saved.state_dict() if is_target(name)
    }


def test_a_cross_encoder_has_them_too(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    trainer = make_classifier_trainer(
        tiny_data, config_for(tiny_checkpoint, num_epochs=2, optimizer=TRAIN["optimizer"])
    )
    before = CrossEncoder.from_config(trainer.config.model, seed=1).state_dict()
    progress = trainer.run()
    of_encoder = {name for name in before if ".bert." in name}
    assert before.keys() - of_encoder == {"classifier.classifier.weight", "classifier.classifier.bias"}
    names = changed(before, trainer.model.state_dict())
    assert names == {name for name in of_encoder if is_target(name)} | (before.keys() - of_encoder)
    assert progress.history[1].metrics["loss"] < progress.history[0].metrics["loss"]
    trainer.model.save(tmp_path, trainer.tokenizer)
    assert not changed(trainer.model.state_dict(), CrossEncoder.load(tmp_path).state_dict())
