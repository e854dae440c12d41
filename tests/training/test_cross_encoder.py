"""The cross-encoder's training core: what is drawn, that it learns, that it resumes, that ranks share a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from made_language_model import make_language_model
from pydantic import ValidationError

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import Examples, load_examples
from raydr.errors import ConfigError, ModelError
from raydr.losses.nce import NCE
from raydr.models.config import CrossEncoderConfig
from raydr.models.cross_encoder import CrossEncoder, CrossEncoderScorer, PairTokenizer, ProbabilityScorer, log_odds
from raydr.noise.judge_models import ClassifierConfig
from raydr.training.checkpoint import Progress, Save
from raydr.training.cross_encoder import CrossEncoderTrainer, draw_lists
from raydr.training.ranker_config import RankerConfig
from training.harness import make_ranker_trainer, run_in_ranks, some_run


def config_for(checkpoint: str, **changes: object) -> ClassifierConfig:
    model = {"checkpoint": checkpoint, "max_length": 64}
    settings = {"model": model, "batch_size": 8, "num_epochs": 4, "optimizer": {"learning_rate": 3e-3}}
    return ClassifierConfig.model_validate(settings | changes)


def ranker_for(checkpoint: str, **changes: object) -> RankerConfig:
    model = {"checkpoint": checkpoint, "max_length": 64, "dropout": 0.0}
    settings = {
        "model": model,
        "batch_size": 8,
        "num_epochs": 2,
        "num_hard_negatives": 4,
        "optimizer": {"learning_rate": 3e-3},
    }
    return RankerConfig.model_validate(settings | changes)


def load(data: tuple[str, str]) -> tuple[Examples, Corpus]:
    corpus, dataset = Corpus.open(data[0]), Dataset.open(data[1])
    tables = dataset.queries("train"), dataset.qrels("train"), dataset.negatives("train")
    return load_examples(*tables, corpus), corpus


def make_trainer(
    data: tuple[str, str],
    config: ClassifierConfig,
    on_epoch: Callable[[Progress, Callable[[], Save]], None] = lambda progress, copy: None,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> CrossEncoderTrainer:
    model, tokenizer = CrossEncoder.from_config(config.model, seed=1), PairTokenizer(config.model)
    return CrossEncoderTrainer(config, 0, model, tokenizer, *load(data), torch.float32, on_epoch, on_step)


def test_each_step_is_told(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    steps: list[tuple[int, int]] = []
    config = config_for(tiny_checkpoint, num_epochs=2)
    trainer = make_trainer(tiny_data, config, on_step=lambda progress: steps.append((progress.epoch, progress.step)))
    trainer.run()
    assert steps == [(epoch, step + 1) for epoch in (0, 1) for step in range(trainer.num_steps)]


@pytest.mark.invariant
def test_draws_of_a_query_do_not_depend_on_its_batch(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    examples, corpus = load(tiny_data)
    config = config_for(tiny_checkpoint, num_hard_negatives=8, num_random_negatives=2)
    whole = draw_lists(examples, corpus, np.array([3, 7]), config, seed=0, epoch=1)
    alone = [draw_lists(examples, corpus, np.array([at]), config, seed=0, epoch=1) for at in (3, 7)]
    assert whole.passage_rows.tolist() == [row for batch in alone for row in batch.passage_rows.tolist()]
    assert whole.passage_rows.shape == (2, 11)
    other = draw_lists(examples, corpus, np.array([3, 7]), config, seed=0, epoch=2)
    assert whole.passage_rows.tolist() != other.passage_rows.tolist()
    for line, at in enumerate((3, 7)):
        positive, *negatives = whole.passage_rows[line].tolist()
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
    scorer = ProbabilityScorer(tmp_path / "model", "float32", "cpu", token_budget=512)
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


def test_a_language_model_learns_to_answer(tiny_data: tuple[str, str], tmp_path: Path) -> None:
    prompt = {"system": "", "user": "{query} | {passage} ?"}
    model = {"checkpoint": make_language_model(tmp_path / "lm"), "max_length": 300, "dropout": 0.0, "prompt": prompt}
    settings = {"model": model, "batch_size": 8, "num_epochs": 10, "num_hard_negatives": 0, "num_random_negatives": 3}
    config = RankerConfig.model_validate(settings | {"optimizer": {"learning_rate": 3e-3}, "dev": None})
    trainer = make_ranker_trainer(tiny_data, config)
    metrics = [row.metrics for row in trainer.run().history]
    assert metrics[-1]["loss"] < 0.8 * metrics[0]["loss"], metrics
    trainer.model.eval().save(tmp_path / "saved", trainer.tokenizer, "log_odds")
    examples, corpus = load(tiny_data)
    texts, each = corpus.texts(np.arange(6)), np.arange(6)
    scores = CrossEncoderScorer(tmp_path / "saved", "float32", "cpu", 512).score(examples.texts[:6], texts, each, each)
    tokens = trainer.tokenizer(examples.texts[:6], texts.titles, texts.texts)
    np.testing.assert_allclose(scores, log_odds(trainer.model, tokens, 4096, trainer.tokenizer.pad_id), atol=1e-4)


def test_weights_of_a_judge_go_with_the_candidates_that_were_drawn(
    tiny_data: tuple[str, str], tiny_checkpoint: str
) -> None:
    examples, corpus = load(tiny_data)
    weighted = replace(examples, weights=replace(examples.weights, values=examples.weights.values.copy()))
    weighted.weights[3][2] = 0.25
    config = ranker_for(tiny_checkpoint, num_hard_negatives=8)
    lists = draw_lists(weighted, corpus, np.array([3, 7]), config, seed=0, epoch=0)
    [[line, column]] = np.argwhere(lists.weights != 1).tolist()
    assert (line, lists.weights[line, column]) == (0, 0.25)
    assert lists.passage_rows[line, column] == examples.negatives[3][2]
    scores_QC = torch.randn(2, 9, generator=torch.Generator().manual_seed(0))
    candidates = lists.candidates(scores_QC)
    assert candidates.log_weight_QC is not None
    # The softmax over the list, in which that candidate counts a quarter.
    exp_C = scores_QC[0].exp() * torch.from_numpy(lists.weights[0])
    expected = -(exp_C[0] / exp_C.sum()).log()
    torch.testing.assert_close(NCE().compute(candidates, 0).per_query_Q[0], expected)


@pytest.mark.parametrize("loss", [{"name": "nce"}, {"name": "rcl", "beta": {"final": 0.1, "start_epoch": 1}}])
def test_a_ranker_learns_over_the_list_and_opens_with_equal_scores(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path, loss: dict[str, object]
) -> None:
    trainer = make_ranker_trainer(tiny_data, ranker_for(tiny_checkpoint, num_epochs=10, loss=loss, dev=None))
    history = trainer.run().history
    losses = [row.metrics["nce" if loss["name"] == "rcl" else "loss"] for row in history]
    assert losses[-1] < 0.8 * losses[0]
    trainer.model.save(tmp_path, trainer.tokenizer, trainer.config.predicts)
    examples, corpus = load(tiny_data)
    texts, query_P, passage_P = corpus.texts(np.arange(20)), np.repeat(np.arange(4), 5), np.arange(20)
    scores_P = CrossEncoderScorer(tmp_path, "float32", "cpu", token_budget=512).score(
        examples.texts[:4], texts, query_P, passage_P
    )

    from sentence_transformers import CrossEncoder as TheirCrossEncoder

    passages = [f"{title} {text}" for title, text in zip(texts.titles, texts.texts, strict=True)]
    pairs = [(examples.texts[query], passages[passage]) for query, passage in zip(query_P, passage_P, strict=True)]
    np.testing.assert_allclose(TheirCrossEncoder(str(tmp_path), device="cpu").predict(pairs), scores_P, atol=1e-4)
    assert ((scores_P < 0) | (scores_P > 1)).any()


@pytest.mark.invariant
def test_ranks_share_a_batch(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    config = ranker_for(tiny_checkpoint, accumulation_steps=2, num_random_negatives=1)
    alone = make_ranker_trainer(tiny_data, config)
    progress = alone.run()
    shared, weights = run_in_ranks(2, tmp_path, make_ranker_trainer, tiny_data, config)
    for epoch, other in zip(progress.history, shared.history, strict=True):
        assert epoch.metrics == pytest.approx(other.metrics, rel=1e-4)
    # A softmax does not see the bias: its gradient is rounding alone, which AdamW makes steps of.
    learnt = {key: value for key, value in alone.model.state_dict().items() if key != "classifier.classifier.bias"}
    for key, value in learnt.items():
        torch.testing.assert_close(weights[key], value, atol=2e-4, rtol=1e-3)
    # Nor does it matter in how many pieces a batch is read.
    whole = make_ranker_trainer(tiny_data, config.model_copy(update={"accumulation_steps": 1}))
    assert whole.run().history[0].metrics["loss"] == pytest.approx(progress.history[0].metrics["loss"], rel=1e-4)


def test_losses_that_find_nothing_to_read_are_refused(tiny_checkpoint: str) -> None:
    for changes, message in (
        ({"loss": "npc"}, "the loss 'npc' needs an EMA teacher"),
        ({"loss": "ranker_kl"}, "the loss 'ranker_kl' reads scores of another ranker"),
        ({"loss": {"name": "npc", "use_consistency": False}}, "reads flags of mismatched pairs, and a cross-enc"),
        ({"loss": "corrected_nce"}, "drawn uniformly"),
        ({"loss": {"name": "rcl"}, "num_epochs": 1}, "it would never begin"),
        ({"num_hard_negatives": 0}, "needs negatives"),
        ({"accumulation_steps": 3}, "batch_size 8 is not divisible by accumulation_steps 3"),
    ):
        with pytest.raises(ValidationError, match=message):
            ranker_for(tiny_checkpoint, **changes)
    with pytest.raises(ValidationError, match="judges compare probabilities of relevance"):
        config_for(tiny_checkpoint, loss="nce")


def test_too_few_queries_for_a_batch_name_the_setting(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"ranker\.batch_size is 1000, but there are only"):
        make_ranker_trainer(tiny_data, ranker_for(tiny_checkpoint, batch_size=1000))


@pytest.mark.invariant
def test_resumed_is_uninterrupted(tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path) -> None:
    config = config_for(tiny_checkpoint)

    states: list[Save] = []
    whole = make_trainer(tiny_data, config, lambda progress, copy: states.append(copy()))
    whole.run()
    # Written when training is over: what was copied has stayed as it was.
    states[1](tmp_path)
    resumed = make_trainer(tiny_data, config)
    resumed.resume(tmp_path)
    progress = resumed.run()
    assert progress == whole.progress
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], value)


@pytest.mark.invariant
def test_the_epoch_that_orders_dev_best_becomes_the_model(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    """The rate is so high that training gets worse and better; stopped after the third epoch it ends the same."""
    config = ranker_for(tiny_checkpoint, num_epochs=5, optimizer={"learning_rate": 2e-2})
    weights: list[dict[str, torch.Tensor]] = []

    def keep(progress: Progress, copy: Callable[[], Save]) -> None:
        weights.append({key: value.clone() for key, value in whole.model.state_dict().items()})
        if progress.epoch == 3:
            copy()(tmp_path)

    whole = make_ranker_trainer(tiny_data, config, keep)
    progress = whole.run()
    values = [row.metrics["dev RR@10"] for row in progress.history]
    assert progress.best_epoch == int(np.argmax(values))
    assert progress.best_epoch < 4
    assert whole.dev is not None
    assert max(values) == progress.best_measure == whole.dev.measure(whole.model, torch.float32)
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(value, weights[progress.best_epoch][key])
    resumed = make_ranker_trainer(tiny_data, config)
    resumed.resume(tmp_path)
    assert resumed.run() == progress
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], value)


def test_what_a_ranker_orders_on_dev_is_what_the_run_has(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    dev = make_ranker_trainer(tiny_data, ranker_for(tiny_checkpoint, dev={"depth": 3, "measure": "R@3"})).dev
    assert dev is not None
    run = some_run(Dataset.open(tiny_data[1])).filter(pc.field("rank") <= 3)
    positives = {query: set(judged) for query, judged in dev.qrels.items()}
    inside = sum(row["passage_id"] in positives[row["query_id"]] for row in run.to_pylist())
    # Whatever the order: three of the six passages that a query has. The query that the run has not counts as 0.
    model = CrossEncoder.from_config(CrossEncoderConfig(checkpoint=tiny_checkpoint, max_length=64))
    expected = inside / len(positives)
    assert 0 < expected < 1
    assert dev.before() == pytest.approx(expected)
    assert dev.measure(model, torch.float32) == pytest.approx(expected)


def test_a_cross_encoder_is_cut_to_its_first_layers(tiny_checkpoint: str, tmp_path: Path) -> None:
    config = CrossEncoderConfig(checkpoint=tiny_checkpoint, max_length=64, num_layers=1, dropout=0.25)
    whole, cut = (CrossEncoder.from_config(config.model_copy(update={"num_layers": num})) for num in (None, 1))
    assert {module.p for module in cut.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}
    left = {key for key in whole.state_dict() if ".layer.1." not in key}
    assert cut.state_dict().keys() == left < whole.state_dict().keys()
    cut.save(tmp_path, PairTokenizer(config))
    opened = CrossEncoder.load(tmp_path)
    tokens = torch.arange(1, 9).view(1, 8)
    asked = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "token_type_ids": torch.zeros_like(tokens)}
    torch.testing.assert_close(opened.eval()(**asked), cut.eval()(**asked))
    with pytest.raises(ConfigError, match=r"ranker\.model\.num_layers is 9, but .* has 2 layers"):
        CrossEncoder.from_config(config.model_copy(update={"num_layers": 9}), section="ranker")


def test_a_checkpoint_without_classifier_cannot_be_taken_as_it_is(tiny_checkpoint: str) -> None:
    with pytest.raises(ModelError, match="is a BertModel without a classifier"):
        CrossEncoder.from_config(CrossEncoderConfig(checkpoint=tiny_checkpoint, max_length=64), must_be_trained=True)


def test_bfloat16_gives_different_passages_different_scores(
    tiny_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = config_for(tiny_checkpoint).model
    CrossEncoder.from_config(config, seed=1).save(tmp_path, PairTokenizer(config))
    texts = load(tiny_data)[1].texts(np.arange(40))
    of_all = np.zeros(40, dtype=np.int64), np.arange(40)
    scores = {
        dtype: CrossEncoderScorer(str(tmp_path), dtype, "cpu", 2_000).score(["a query"], texts, *of_all)
        for dtype in ("float32", "bfloat16")
    }
    assert [len(set(scores[dtype].tolist())) for dtype in scores] == [40, 40]
