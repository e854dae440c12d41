"""Training in half precision: what must stay exact, and what may overflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raydr.losses.npc import NPC
from raydr.training.optimization import load_progress
from training.harness import Recorder, make_trainer, model_config

NPC_FROM_THE_START: dict[str, Any] = {
    "num_epochs": 1, "batch_size": 8, "num_hard_negatives": 2, "loss": {"name": "npc", "warmup_epochs": 0},
    "pair_detection": {"margins": "model", "num_random": 20},
}  # fmt: skip


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_teacher_that_is_the_student_agrees_with_it(tiny_data, tiny_checkpoint, dtype: str, similarity: str) -> None:
    model = model_config(tiny_checkpoint, similarity=similarity)
    trainer = make_trainer(tiny_data, model, NPC_FROM_THE_START | {"dtype": dtype})
    learner = trainer.learner
    learner.start_teacher()
    learner.model.eval()
    with torch.no_grad():
        candidates = learner.encode(next(trainer.batches.epoch(0, 0))[0]).candidates()
    assert candidates.signals["teacher_scores_QC"].dtype == candidates.scores_QC.dtype == torch.float32
    torch.testing.assert_close(candidates.signals["teacher_scores_QC"], candidates.scores_QC, rtol=0, atol=1e-5)
    output = NPC(warmup_epochs=0).compute(candidates, epoch=0)
    assert float(output.metrics["consistency"]) == pytest.approx(0, abs=1e-6)


def test_an_overflow_in_float16_is_left_out_and_counted(tiny_data, tiny_checkpoint, tmp_path: Path) -> None:
    plain = {"num_epochs": 3, "batch_size": 8, "dtype": "float16", "checkpoint_steps": 1}
    recorder = Recorder(keep_at=1, folder=tmp_path / "kept")
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), plain, recorder)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    # The first step's gradients overflow; the scaler halves its factor until they do not.
    trainer.learner.optimization.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    progress = trainer.run()
    first = progress.history[0].metrics
    assert first["skipped_steps"] >= 1
    assert recorder.steps[0]["skipped_steps"] == 1
    assert all(torch.isfinite(torch.tensor(value)) for row in progress.history for value in row.metrics.values())
    assert any(not value.equal(before[name]) for name, value in trainer.model.state_dict().items())
    assert load_progress(tmp_path / "kept")[0].global_step == 1
