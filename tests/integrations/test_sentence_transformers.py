"""raydr's losses in the trainer of sentence-transformers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from torch import Tensor
from training.harness import make_trainer, model_config

from raydr.data.rows import content_id
from raydr.errors import ConfigError
from raydr.integrations.sentence_transformers import (
    ContrastiveLoss,
    NoisyPairLoss,
    RobustContrastiveLoss,
    add_flags,
    drop_flagged,
)
from raydr.losses.ar2 import AR2
from raydr.losses.base import Loss
from raydr.losses.npc import NPC
from raydr.losses.rcl import RCL, BetaSchedule
from raydr.pipeline.findings import Noise
from raydr.training.sections import TeacherConfig
from raydr.training.trainer import Trainer

TRAIN: dict[str, Any] = {"num_epochs": 2, "batch_size": 8, "num_hard_negatives": 2}
RATE = 0.05


@dataclass
class Both:
    """The same weights and the same batch, here and there."""

    trainer: Trainer
    theirs: SentenceTransformer
    batch: Any
    texts: list[list[str]]

    def features(self) -> list[dict[str, Tensor]]:
        return [self.theirs.tokenize(column) for column in self.texts]

    def step(self, loss: Tensor, model: torch.nn.Module) -> None:
        """Plain gradient descent."""
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for weights in model.parameters():
                if weights.grad is not None:
                    weights -= RATE * weights.grad


@pytest.fixture
def both(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> Both:
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN)
    batches = trainer.batches
    [batch] = next(batches.epoch(0, 0))
    corpus = batches.corpus
    row_of = {
        int(digest): row
        for row, digest in enumerate(corpus.content_hashes(torch.arange(len(corpus)).numpy()).view("int64"))
    }
    texts = corpus.texts(np.array([row_of[digest] for digest in batch.passage_hash_P.tolist()]))
    passages = [f"{title} {text}" for title, text in zip(texts.titles, texts.texts, strict=True)]
    queries = [batches.examples.texts[at] for at in batch.query_rows]
    group = len(passages) // len(queries)
    trainer.model.save(str(tmp_path), batches.tokenizers)
    theirs = SentenceTransformer(str(tmp_path), device="cpu")
    return Both(trainer, theirs.eval(), batch, [queries, *(passages[at::group] for at in range(group))])


def own(both: Both, loss: Loss, epoch: int, clean: list[float] | None) -> Tensor:
    """The loss as raydr's trainer has it."""
    candidates = both.trainer.view(both.trainer.learner, both.batch).candidates()
    flags = None if clean is None else torch.tensor(clean)
    return loss.compute(candidates.with_signals(clean_Q=flags), epoch).per_query_Q.mean()


def test_the_robust_loss_is_that_of_raydr(both: Both) -> None:
    loss = RCL(beta=BetaSchedule(final=0.5, start_epoch=1))
    theirs = RobustContrastiveLoss(both.theirs, steps_per_epoch=5, loss=loss, scale=both.trainer.model.config.scale)
    both.trainer.model.eval()
    assert theirs(both.features()).item() == pytest.approx(own(both, loss, 0, None).item(), abs=1e-5)
    later = RobustContrastiveLoss(
        both.theirs, steps_per_epoch=5, loss=loss, scale=both.trainer.model.config.scale, steps_done=5
    )
    assert later(both.features()).item() == pytest.approx(own(both, loss, 1, None).item(), abs=1e-5)


@pytest.mark.parametrize("clean", [None, [1, 0, 0, 1, 1, 0, 1, 1], [0.9, 0.1, 0.5, 1, 1, 0, 1, 0.2]])
def test_the_noisy_pair_loss_and_its_teacher_are_those_of_raydr_after_a_step(
    both: Both, clean: list[float] | None
) -> None:
    """One step of plain gradient descent moves the student, and the teacher after it; then the losses are compared."""
    loss = NPC(warmup_epochs=0)
    learner = both.trainer.learner
    theirs = NoisyPairLoss(
        both.theirs, steps_per_epoch=both.trainer.num_steps, loss=loss, scale=both.trainer.model.config.scale
    )
    teacher = learner.start_teacher()
    assert theirs.momentum == pytest.approx(teacher.momentum)
    both.trainer.model.eval()
    labels = None if clean is None else torch.tensor(clean)
    for _ in range(3):
        expected, actual = own(both, loss, 0, clean), theirs(both.features(), labels)
        assert actual.item() == pytest.approx(expected.item(), abs=1e-5)
        both.step(expected, both.trainer.model)
        teacher.update(both.trainer.model)
        both.step(actual, both.theirs)
    assert theirs.num_steps == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_teacher_of_a_model_in_half_precision_follows_it(both: Both, dtype: torch.dtype) -> None:
    """Many models load in bfloat16, whose eight bits hold no step of an average with a momentum near 1."""
    momentum, num_steps = 0.99, 30
    model = both.theirs.to(dtype)
    loss = NoisyPairLoss(model, steps_per_epoch=num_steps, loss=NPC(warmup_epochs=0),
                         teacher=TeacherConfig(momentum=momentum))  # fmt: skip
    weights = next(model.train().parameters())
    weights.data.fill_(1.0)
    loss(both.features())
    weights.data.fill_(1.25)
    for _ in range(num_steps):
        # The weights stay, and their version does not.
        with torch.no_grad():
            weights += 0.0
        loss(both.features())
    averaged = next(loss._teachers[0].parameters()).float()
    expected = torch.full_like(averaged, 1.0 + 0.25 * (1 - momentum**num_steps))
    assert torch.allclose(averaged, expected, atol=0.01)


def test_copies_of_the_positive_and_further_positives_are_no_negatives(both: Both) -> None:
    queries, passages = ["red river", "blue city", "red river"], ["old map", "old map", "new map"]
    features = [both.theirs.tokenize(queries), both.theirs.tokenize(passages)]
    loss = RobustContrastiveLoss(both.theirs, steps_per_epoch=1, loss=RCL(beta=BetaSchedule(final=0.0)))
    query_3D, passage_3D = (both.theirs.encode(texts, convert_to_tensor=True) for texts in (queries, passages))
    scores_33 = 20 * torch.nn.functional.normalize(query_3D) @ torch.nn.functional.normalize(passage_3D).T
    # The first and the last query have two positives, the second one a copy of its own.
    expected = torch.tensor([0.0, torch.logsumexp(scores_33[1, 1:], 0) - scores_33[1, 1], 0.0]).mean()
    assert loss(features).item() == pytest.approx(expected.item(), abs=1e-4)


def test_what_cannot_be_given_is_refused(both: Both) -> None:
    with pytest.raises(ConfigError, match="'ar2' needs more than pairs"):
        ContrastiveLoss(both.theirs, AR2(), steps_per_epoch=3)
    with pytest.raises(ConfigError, match="steps_per_epoch is 0"):
        NoisyPairLoss(both.theirs, steps_per_epoch=0)
    with pytest.raises(ConfigError, match="1 text columns"):
        NoisyPairLoss(both.theirs, steps_per_epoch=1)(both.features()[:1])


def found_noise(pairs: list[tuple[str, str]], p_wrong: list[float]) -> Noise:
    table = pd.DataFrame(pairs, columns=["query", "passage"]).assign(
        p_wrong=p_wrong, flagged=[p > 0.5 for p in p_wrong]
    )
    ids = [(content_id(query), content_id("", passage)) for query, passage in pairs]
    return Noise(table, "", ids, None, None)  # type: ignore[arg-type]


def test_the_trainer_learns_with_flags_and_only_its_own_model_is_saved(both: Both, tmp_path: Path) -> None:
    rows = list(zip(both.texts[0], both.texts[1], strict=True))
    dataset = Dataset.from_dict({"anchor": both.texts[0], "positive": both.texts[1]})
    noise = found_noise(rows, [0.9, 0.2, 0.1, 0.7, 0.0, 0.0, 0.0, 0.0])
    assert len(drop_flagged(dataset, noise)) == 6
    flagged = add_flags(dataset, noise)
    assert flagged["label"][:] == [0, 1, 1, 0, 1, 1, 1, 1]
    assert add_flags(dataset, noise, "posterior")["label"][:3] == pytest.approx([0.1, 0.8, 0.9])
    with pytest.raises(ConfigError, match="already has a column 'label'"):
        add_flags(flagged, noise)
    with pytest.raises(ConfigError, match="already has a column 'score'"):
        add_flags(dataset.add_column("score", [1.0] * 8), noise)
    with pytest.raises(ConfigError, match="weights is 'flag'; allowed: flags, posterior"):
        add_flags(dataset, noise, "flag")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the data set is a DataFrame; expected a datasets.Dataset"):
        add_flags(dataset.to_pandas(), noise)
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path / "out"),
        num_train_epochs=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
    )
    loss = NoisyPairLoss(both.theirs, steps_per_epoch=1)
    before = {name: value.clone() for name, value in both.theirs.state_dict().items()}
    SentenceTransformerTrainer(model=both.theirs, args=arguments, train_dataset=flagged, loss=loss).train()
    # Two batches a step, three steps; the last one is not followed by a batch.
    assert loss.num_steps == 2
    assert set(loss.state_dict()) == {f"model.{name}" for name in both.theirs.state_dict()}
    assert any(not torch.equal(value, before[name]) for name, value in both.theirs.state_dict().items())
