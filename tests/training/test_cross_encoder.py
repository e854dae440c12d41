"""The cross-encoder's training core: what is drawn, that it learns, that it resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import Examples, load_examples
from raydr.errors import ModelError
from raydr.models.cross_encoder import CrossEncoder, CrossEncoderScorer, PairTokenizer
from raydr.models.cross_encoder_config import CrossEncoderConfig
from raydr.noise.judge_models import ClassifierConfig
from raydr.training.checkpoint import Progress
from raydr.training.cross_encoder import CrossEncoderTrainer, draw_pairs


def config_for(checkpoint: str, **changes: object) -> ClassifierConfig:
    model = {"checkpoint": checkpoint, "max_length": 64}
    settings = {"model": model, "batch_size": 8, "num_epochs": 4, "optimizer": {"learning_rate": 3e-3}}
    return ClassifierConfig.model_validate(settings | changes)


def load(data: tuple[str, str]) -> tuple[Examples, Corpus]:
    corpus, dataset = Corpus.open(data[0]), Dataset.open(data[1])
    tables = dataset.queries("train"), dataset.qrels("train"), dataset.negatives("train")
    return load_examples(*tables, corpus), corpus


def make_trainer(
    data: tuple[str, str],
    config: ClassifierConfig,
    on_epoch: Callable[[Progress, Callable[[Path], None]], None] = lambda progress, save: None,
) -> CrossEncoderTrainer:
    model = CrossEncoder.from_config(config.model, seed=1)
    return CrossEncoderTrainer(config, 0, model, PairTokenizer(config.model), *load(data), torch.float32, on_epoch)


@pytest.mark.invariant
def test_draws_of_a_query_do_not_depend_on_its_batch(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    examples, corpus = load(tiny_data)
    config = config_for(tiny_checkpoint, num_hard_negatives=8, num_random_negatives=2)
    whole = draw_pairs(examples, corpus, np.array([3, 7]), config, seed=0, epoch=1)
    alone = [draw_pairs(examples, corpus, np.array([at]), config, seed=0, epoch=1) for at in (3, 7)]
    assert whole.passage_rows.tolist() == [row for one in alone for row in one.passage_rows.tolist()]
    assert whole.labels.tolist() == ([1.0] + [0.0] * 10) * 2
    other = draw_pairs(examples, corpus, np.array([3, 7]), config, seed=0, epoch=2)
    assert whole.passage_rows.tolist() != other.passage_rows.tolist()
    for line, at in enumerate((3, 7)):
        positive, *negatives = whole.passage_rows[line * 11 : (line + 1) * 11].tolist()
        assert positive in examples.positives[at]
        # Six candidates are there, the rest is random; none is a known positive.
        assert set(examples.negatives[at].tolist()) <= set(negatives)
        assert not np.isin(corpus.content_hashes(np.array(negatives)).view(np.int64), examples.forbidden[at]).any()


def test_it_learns_to_tell_positives_and_is_saved_for_sentence_transformers(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    trainer = make_trainer(tiny_data, config_for(tiny_checkpoint, num_epochs=12))
    losses = [row.metrics["loss"] for row in trainer.run().history]
    assert losses[-1] < 0.8 * losses[0]
    trainer.model.save(tmp_path / "model", trainer.tokenizer)
    scorer = CrossEncoderScorer(tmp_path / "model", "float32", "cpu", token_budget=512)
    examples, corpus = load(tiny_data)
    texts = corpus.texts(np.arange(20))
    query_P, passage_P = np.repeat(np.arange(4), 5), np.arange(20)
    probability_P = scorer.score(examples.texts[:4], texts, query_P, passage_P)
    assert ((probability_P > 0.0) & (probability_P < 1.0)).all()

    from sentence_transformers import CrossEncoder as TheirCrossEncoder

    theirs = TheirCrossEncoder(str(tmp_path / "model"), device="cpu")
    passages = [f"{title} {text}" for title, text in zip(texts.titles, texts.texts, strict=True)]
    pairs = [(examples.texts[query], passages[passage]) for query, passage in zip(query_P, passage_P, strict=True)]
    np.testing.assert_allclose(theirs.predict(pairs), probability_P, atol=1e-5)
    assert theirs.max_seq_length == 64


@pytest.mark.invariant
def test_resumed_is_uninterrupted(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    config = config_for(tiny_checkpoint)

    def keep(progress: Progress, save: Callable[[Path], None]) -> None:
        if progress.epoch == 2:
            save(tmp_path)

    whole = make_trainer(tiny_data, config, keep)
    whole.run()
    resumed = make_trainer(tiny_data, config)
    resumed.resume(tmp_path)
    progress = resumed.run()
    assert progress == whole.progress
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], value)


def test_a_checkpoint_without_classifier_cannot_be_taken_as_it_is(tiny_checkpoint: str) -> None:
    with pytest.raises(ModelError, match="is a BertModel without a classifier"):
        CrossEncoder.from_config(CrossEncoderConfig(checkpoint=tiny_checkpoint), must_be_trained=True)
