"""The training loop's promises: worker count, resumption, masks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from made_artefacts import make_dataset
from pydantic import ValidationError

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import Ragged
from raydr.data.tables import to_table
from raydr.errors import ConfigError, DataError
from raydr.losses.base import LOG_DRAW_PROB
from raydr.models.inference import encode_tokens
from raydr.seeding import query_rng
from raydr.training.batches import random_rows
from raydr.training.checkpoint import EpochRow, Progress
from raydr.training.config import TrainConfig
from raydr.training.detection import PairDetector
from raydr.training.dev import DevRetrieval, build_dev_set
from raydr.training.learner import Teacher
from raydr.training.metrics import PARTS, as_numbers
from raydr.training.sections import DevConfig, PairDetectionConfig
from raydr.training.signals import Guide, PlaceSignal, signals_of_examples
from training.harness import Recorder, make_trainer, model_config, run_alone, run_with_ranks

TRAIN: dict[str, Any] = {
    "num_epochs": 2,
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-3},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "nce": {},
    "rcl": {"loss": {"name": "rcl", "beta": {"final": 0.5}}},
    "npc": {
        "loss": {"name": "npc", "warmup_epochs": 1},
        "pair_detection": {"margins": "model", "num_random": 20, "detector": "above_median"},
        "num_epochs": 3,
    },
    "npc, detected once": {
        "loss": {"name": "npc", "warmup_epochs": 1, "consistency_every": 2},
        "pair_detection": {"margins": "model", "num_random": 20, "detector": "above_median", "repeat": "once"},
        "num_epochs": 3,
    },
    "npc, against hard negatives": {
        "loss": {"name": "npc", "warmup_epochs": 1},
        "pair_detection": {"margins": "model", "num_random": 20, "detector": "above_median", "against": "hard"},
    },
    "corrected": {"loss": "corrected_nce", "sampler": {"name": "softmax", "with_replacement": True}},
    "accumulated": {"accumulation_steps": 2},
    "guided": {"guide": {"margin": 0.2}},
    "own negatives": {"in_batch_negatives": False},
    "co-teaching": {"coteaching": {"noise_rate": 0.5, "ramp_epochs": 1}},
}


def test_training_lowers_the_loss_and_improves_dev(tiny_data, tiny_checkpoint):
    progress, _ = run_alone(tiny_data, model_config(tiny_checkpoint), TRAIN | {"num_epochs": 6})
    losses = [row.metrics["loss"] for row in progress.history]
    measures = [row.metrics["dev RR@10"] for row in progress.history]
    assert losses[-1] < 0.7 * losses[0]
    assert max(measures) > measures[0]


@pytest.mark.invariant
@pytest.mark.parametrize("variant", VARIANTS)
def test_two_workers_equal_one(variant, tiny_data, tiny_checkpoint, tmp_path):
    train = TRAIN | VARIANTS[variant]
    config = model_config(tiny_checkpoint)
    alone, weights = run_alone(tiny_data, config, train)
    together, shared = run_with_ranks(2, tmp_path, tiny_data, config, train)
    assert together.clean == alone.clean
    assert "npc" not in variant or sum(alone.clean) == len(alone.clean) / 2
    for epoch, other in zip(alone.history, together.history, strict=True):
        assert other.metrics.keys() == epoch.metrics.keys()
        shown = epoch.metrics.keys() - {"seconds"}
        assert {name: other.metrics[name] for name in shown} == pytest.approx(
            {name: epoch.metrics[name] for name in shown}, rel=1e-3, abs=1e-5
        )
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.invariant
@pytest.mark.parametrize("variant", ["nce", "rcl", "npc", "own negatives", "accumulated"])
def test_three_workers_that_cannot_share_a_batch_evenly_equal_one(variant, tiny_data, tiny_checkpoint, tmp_path):
    """Shares of 3, 3 and 2 queries, the last one filled up: who fills it is learnt from by nobody."""
    train = TRAIN | VARIANTS[variant] | ({"batch_size": 10} if variant == "accumulated" else {})
    config = model_config(tiny_checkpoint)
    alone, weights = run_alone(tiny_data, config, train)
    together, shared = run_with_ranks(3, tmp_path, tiny_data, config, train | {"num_workers": 3})
    assert together.clean == alone.clean
    for epoch, other in zip(alone.history, together.history, strict=True):
        shown = epoch.metrics.keys() - {"seconds"}
        assert {name: other.metrics[name] for name in shown} == pytest.approx(
            {name: epoch.metrics[name] for name in shown}, rel=1e-3, abs=1e-5
        )
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


def test_checkpoints_come_by_minutes_whatever_a_step_takes(tiny_data, tiny_checkpoint, monkeypatch):
    """Ten steps of 25 s: every minute at the next step that is logged, and after each epoch."""
    clock = iter(range(0, 10**6, 25))
    monkeypatch.setattr("raydr.training.trainer.time.monotonic", lambda: next(clock))
    kept = []
    recorder = Recorder()
    monkeypatch.setattr(recorder, "on_checkpoint", lambda progress, save: kept.append(progress.global_step))
    settings = TRAIN | {"checkpoint_minutes": 1, "log_steps": 1}
    run_alone(tiny_data, model_config(tiny_checkpoint), settings, recorder)
    assert {5, 10} < set(kept)
    assert len(kept) > 2
    plain: list[int] = []
    monkeypatch.setattr(recorder, "on_checkpoint", lambda progress, save: plain.append(progress.global_step))
    run_alone(tiny_data, model_config(tiny_checkpoint), TRAIN | {"checkpoint_minutes": None}, recorder)
    assert plain == [5, 10]


def test_after_a_notice_a_state_comes_every_ten_seconds(tiny_data, tiny_checkpoint, monkeypatch):
    """Ten steps of 4 s; the notice comes with the third. Nobody asks for it when a state is younger than that."""
    clock = iter(range(0, 10**6, 4))
    monkeypatch.setattr("raydr.training.trainer.time.monotonic", lambda: next(clock))
    recorder, kept, asked = Recorder(), list[int](), list[int]()
    monkeypatch.setattr(recorder, "on_checkpoint", lambda progress, save: kept.append(progress.global_step))
    monkeypatch.setattr(recorder, "has_notice", lambda: asked.append(len(recorder.steps) + 1) or asked[-1] >= 3)
    settings = TRAIN | {"checkpoint_minutes": None, "num_epochs": 1, "batch_size": 4}
    run_alone(tiny_data, model_config(tiny_checkpoint), settings, recorder)
    assert kept[0] == 3
    assert kept[-1] == 10
    assert max(later - earlier for earlier, later in pairwise(kept)) <= 3
    assert not {4, 5} & set(asked)


def test_figures_stay_on_the_device_until_they_are_told(tiny_data, tiny_checkpoint, monkeypatch):
    """A copy in every step makes the device wait for the program: only steps that are logged, and epochs, take one."""
    copies = []
    monkeypatch.setattr("raydr.training.trainer.as_numbers", lambda figures: copies.append(1) or as_numbers(figures))
    progress, _ = run_alone(tiny_data, model_config(tiny_checkpoint), TRAIN | {"log_steps": 100})
    # Ten steps: the last step of an epoch is logged, then its sums are taken.
    assert len(copies) == 4
    logged, _ = run_alone(tiny_data, model_config(tiny_checkpoint), TRAIN | {"log_steps": 1})
    assert progress.history[1].metrics["loss"] == pytest.approx(logged.history[1].metrics["loss"], rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_workers": [2, 5], "batch_size": 4}, "5 workers share the 4 queries of a micro-batch"),
        ({"batch_size": 10, "accumulation_steps": 4}, "batch_size 10 is not divisible by accumulation_steps 4"),
        ({"num_workers": 3, "coteaching": {"noise_rate": 0.2}}, "which 3 workers cannot share evenly"),
        ({"guide": {"mode": "relative", "margin": 5}}, "is a share of the positive's score; allowed: -1 to 1"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate({"batch_size": 64, **changes})
    # 128 over any number of nodes between 2 and 4.
    assert TrainConfig.model_validate({"batch_size": 128, "num_workers": [2, 4]}).fewest_workers == 2


@pytest.mark.invariant
def test_two_workers_equal_one_with_several_positives_and_verdicts(tiny_data, tiny_checkpoint, tmp_path):
    corpus, data = Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])
    actions = {0: {"action": "drop", "weight": 0.0}, 1: {"action": "down_weight", "weight": 0.2}}
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {"queries": {}, "qrels": {}, "negatives": {}}
    for split in data.splits:
        queries, qrels, negatives = (table.to_pylist() for table in data.training_tables(split))
        second = [row | {"passage_id": f"p{60 + at:03d}"} for at, row in enumerate(qrels)]
        judged = [row | actions.get(at % 4, {}) for at, row in enumerate(negatives)]
        tables["queries"][split], tables["qrels"][split] = queries, [*qrels, *second]
        tables["negatives"][split] = judged
    changed = make_dataset(tmp_path / "dataset", corpus, tables)
    folders = tiny_data[0], str(changed.artifact.folder)
    config = model_config(tiny_checkpoint)
    alone, weights = run_alone(folders, config, TRAIN)
    plain, _ = run_alone(tiny_data, config, TRAIN)
    assert alone.history[-1].metrics["loss"] != pytest.approx(plain.history[-1].metrics["loss"], rel=1e-3)
    together, shared = run_with_ranks(2, tmp_path / "ranks", folders, config, TRAIN)
    for epoch, other in zip(alone.history, together.history, strict=True):
        assert other.metrics["loss"] == pytest.approx(epoch.metrics["loss"], rel=1e-4)
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.invariant
@pytest.mark.parametrize("variant", ["nce", "npc", "npc, detected once", "co-teaching"])
@pytest.mark.parametrize("stop", [3, 5, 7])
def test_resumed_equals_uninterrupted(variant, stop, tiny_data, tiny_checkpoint, tmp_path):
    train = TRAIN | VARIANTS[variant] | {"checkpoint_steps": 1}
    config = model_config(tiny_checkpoint, dropout=0.1)
    recorder = Recorder(keep_at=stop, folder=tmp_path / "state")
    whole, weights = run_alone(tiny_data, config, train, recorder)
    resumed = make_trainer(tiny_data, config, train)
    resumed.resume(tmp_path / "state")
    assert resumed.progress.global_step == stop
    progress = resumed.run()
    assert progress.clean == whole.clean
    for name, tensor in weights.items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name
    for epoch, other in zip(whole.history, progress.history, strict=True):
        assert other.metrics["loss"] == pytest.approx(epoch.metrics["loss"], rel=1e-6)


def test_accumulation_is_the_mean_of_micro_batches(tiny_data, tiny_checkpoint):
    config = model_config(tiny_checkpoint)
    trainer = make_trainer(tiny_data, config, TRAIN | {"accumulation_steps": 2})
    batches = next(iter(trainer.batches.epoch(0)))
    losses = []
    for batch in batches:
        candidates = trainer.view(trainer.learner, batch).candidates()
        losses.append(trainer.config.loss.compute(candidates, 0).per_query_Q.mean().item())
    assert trainer._step(batches)["loss"] == pytest.approx(sum(losses) / 2, rel=1e-5)


def test_batches_do_not_depend_on_the_number_of_ranks(tiny_data, tiny_checkpoint):
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN)
    whole = trainer.batches
    [first] = next(iter(whole.epoch(1)))
    halves = []
    for rank in range(2):
        half = type(whole)(whole.examples, whole.corpus, whole.tokenizers, whole.config, 0, rank, 2)
        halves.append(next(iter(half.epoch(1)))[0])
    assert [*halves[0].query_rows, *halves[1].query_rows] == list(first.query_rows)
    joined = torch.cat([half.passage_hash_P for half in halves])
    assert torch.equal(joined, first.passage_hash_P)


@pytest.mark.invariant
def test_no_query_has_a_known_positive_or_its_copy_among_its_negatives(tiny_data, tiny_checkpoint):
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN)
    [batch] = next(iter(trainer.batches.epoch(0)))
    # Make the second query's positive forbidden for the first, as if both were answered by the same passage.
    batch.forbidden_QF[0] = batch.passage_hash_P[3]
    candidates = trainer.view(trainer.learner, batch).candidates()
    assert candidates.excluded_QC[0, 3]
    assert not candidates.excluded_QC[1, 3]
    assert not candidates.excluded_QC.gather(1, candidates.positive_Q.unsqueeze(1)).any()
    assert candidates.logits_QC()[0, 3] == float("-inf")


@pytest.mark.invariant
def test_a_down_weighted_passage_weighs_less_for_its_query_whoever_brought_it(tiny_data, tiny_checkpoint):
    """Here the third query's positive is a candidate of weight 0.1 of the first query."""
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN)
    batches, [batch] = trainer.batches, next(iter(trainer.batches.epoch(0)))
    examples = batches.examples
    first, third = int(batch.query_rows[0]), int(batch.query_rows[2])
    rows, weights = examples.negatives.values.copy(), examples.weights.values.copy()
    place = int(examples.negatives.offsets[first])
    rows[place], weights[place] = int(examples.positives[third][0]), 0.1
    batches.examples = replace(
        examples,
        negatives=Ragged(rows, examples.negatives.offsets),
        weights=Ragged(weights, examples.weights.offsets),
    )
    batches.signals = signals_of_examples(batches.examples, batches.corpus)
    candidates = trainer.view(trainer.learner, batches.make(batch.query_rows, 0)).candidates()
    column = int(candidates.positive_Q[2])
    assert candidates.log_weight_QC[0, column].item() == pytest.approx(np.log(0.1))
    assert candidates.log_weight_QC[2, column] == 0
    others = candidates.log_weight_QC[1:]
    assert not others.any()


def test_a_batch_larger_than_the_data_is_refused(tiny_data, tiny_checkpoint):
    with pytest.raises(ConfigError, match="batch_size is 64, but there are only 40"):
        make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | {"batch_size": 64})


def test_short_candidate_lists_are_filled_at_random_and_counted(tiny_data, tiny_checkpoint):
    progress, _ = run_alone(
        tiny_data, model_config(tiny_checkpoint), TRAIN | {"num_epochs": 1, "num_hard_negatives": 7}
    )
    filled = progress.history[0].metrics["filled"]
    assert filled >= 40  # each list has at most 6
    in_pieces, _ = run_alone(
        tiny_data,
        model_config(tiny_checkpoint),
        TRAIN | {"num_epochs": 1, "num_hard_negatives": 7, "accumulation_steps": 2},
    )
    assert in_pieces.history[0].metrics["filled"] == filled


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("loss", ["nce", {"name": "rcl", "beta": {"final": 0.5, "start_epoch": 0}}])
def test_a_place_without_a_passage_is_nobodys_candidate(tiny_data, tiny_checkpoint, loss, in_batch):
    """The places of the seventh and later negatives, which no query has, change neither the loss nor the gradients."""
    own = {"in_batch_negatives": in_batch, "loss": loss, "sampler": {"name": "top", "fill": False}, "num_epochs": 1}
    config = model_config(tiny_checkpoint, dropout=0.0)
    exact, weights = run_alone(tiny_data, config, TRAIN | own | {"num_hard_negatives": 6})
    wide, wide_weights = run_alone(tiny_data, config, TRAIN | own | {"num_hard_negatives": 9})
    assert wide.history[0].metrics["filled"] == 0
    assert wide.history[0].metrics["loss"] == pytest.approx(exact.history[0].metrics["loss"], rel=1e-5)
    for name, tensor in weights.items():
        torch.testing.assert_close(wide_weights[name], tensor, rtol=1e-4, atol=1e-6)


def test_draw_probabilities_are_known_where_every_list_is_empty(tiny_data, tiny_checkpoint):
    """All negatives are random then, and their probability is known."""
    sampler = {"sampler": {"name": "softmax", "with_replacement": True}, "loss": "corrected_nce"}
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | sampler | {"in_batch_negatives": False})
    batches = trainer.batches
    none = Ragged(np.empty(0, dtype=np.int64), np.zeros(len(batches.examples) + 1, dtype=np.int64))
    no_scores = Ragged(np.empty(0, dtype=np.float32), none.offsets)
    batches.examples = replace(batches.examples, negatives=none, scores=no_scores, weights=no_scores)
    batches.signals = signals_of_examples(batches.examples, batches.corpus)
    [signal] = batches.make(np.arange(2), 0).signals
    assert isinstance(signal, PlaceSignal)
    assert signal.name == LOG_DRAW_PROB
    drawn = signal.value_QG[:, 1:]
    assert torch.allclose(drawn, torch.full_like(drawn, -np.log(len(batches.corpus))))


def test_training_leaves_out_what_the_guide_takes_for_positives(tiny_data, tiny_checkpoint):
    """Against a loop over queries and candidates."""
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | {"guide": {"margin": 0.2}})
    batches = trainer.batches
    [guide] = [signal for signal in batches.signals if isinstance(signal, Guide)]
    [batch] = next(iter(batches.epoch(0)))
    plain = replace(batch, signals=())
    guided, before = (trainer.view(trainer.learner, drawn).candidates().excluded_QC for drawn in (batch, plain))
    contents = batches.corpus.content_hashes(np.arange(len(batches.corpus))).view(np.int64).tolist()
    rows = np.array([contents.index(content_hash) for content_hash in batch.passage_hash_P.tolist()])
    group, left_out = len(rows) // len(batch.query_rows), 0
    for query, at in enumerate(batch.query_rows):
        query_D = guide.queries.take(np.array([at]))[0].astype(np.float32)
        scores = guide.passages.take(rows).astype(np.float32) @ query_D
        for column, score in enumerate(scores):
            own = column == query * group
            like = not own and score > scores[query * group] - 0.2
            assert guided[query, column] == (before[query, column] or like)
            left_out += like and not before[query, column]
    assert left_out > 20


def test_a_query_that_everything_is_forbidden_for_is_named(tiny_data, tiny_checkpoint):
    batches = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN).batches
    corpus, examples = batches.corpus, batches.examples
    everything = corpus.content_hashes(np.arange(len(corpus))).view(np.int64)
    offsets = np.arange(len(examples) + 1, dtype=np.int64) * len(everything)
    examples = replace(examples, forbidden=Ragged(np.tile(everything, len(examples)), offsets))
    with pytest.raises(DataError, match=f"query {examples.query_ids[3]}: 2 random negatives are needed"):
        random_rows(examples, corpus, 3, 2, np.random.default_rng(0))


def test_a_pair_is_measured_against_another_passage_than_its_own(tiny_data, tiny_checkpoint):
    """With one random passage a pair it is now and then the pair's own positive, which must not count."""
    loss = {
        "loss": {"name": "npc", "warmup_epochs": 0},
        "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 1},
    }
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | loss)
    detector = trainer.detector
    for epoch in range(20):
        measured = detector.measure(trainer.model, epoch, torch.float32)
        assert np.isfinite(measured.pairs_N).all()
        # There is no other passage to measure a random pair against.
        assert np.isnan(measured.random_N).all()


def test_random_pairs_are_what_mismatched_ones_look_like(tiny_data, tiny_checkpoint):
    """Against a loop over the drawn passages."""
    npc = {
        "loss": {"name": "npc", "warmup_epochs": 0},
        "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 12},
    }
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint, scale=1.0), TRAIN | npc)
    detector, batches = trainer.detector, trainer.batches
    examples, model = batches.examples, trainer.model.eval()
    random_N = detector.measure(model, 1, torch.float32).random_N

    def vector(side: str, title: list[str] | None, text: list[str]) -> np.ndarray:
        tokenizer = batches.tokenizers[side]
        return encode_tokens(model.tower(side), tokenizer(title, text), 1024, tokenizer.pad_id, side)[0]

    for at in (0, 7, 39):
        drawn = query_rng(detector.seed, 1, examples.query_ids[at], "perplexity").integers(len(examples), size=12)
        rows = [int(examples.positives[place][0]) for place in drawn]
        hashes = batches.corpus.content_hashes(np.array(rows)).view(np.int64)
        rows = [row for row, content in zip(rows, hashes, strict=True) if content not in examples.forbidden[at]]
        texts = batches.corpus.texts(np.array(rows))
        query = vector("query", None, [examples.texts[at]])
        scores = [
            float(query @ vector("passage", [title], [text]))
            for title, text in zip(texts.titles, texts.texts, strict=True)
        ]
        expected = np.log(sum(np.exp(score) for score in scores[1:])) - scores[0]
        assert random_N[at] == pytest.approx(expected, rel=1e-3)


def test_dev_queries_without_judgments_are_left_out_and_all_of_them_refused(tiny_data):
    data, corpus = Dataset.open(tiny_data[1]), Corpus.open(tiny_data[0])
    queries, qrels, negatives = data.training_tables("dev")
    config = DevConfig(max_queries=4, random_passages=0)
    dev = build_dev_set(queries, qrels.slice(0, 2), negatives, corpus, config, seed=0)
    assert dev.query_ids == qrels["query_id"].to_pylist()[:2]
    with pytest.raises(DataError, match="none of the 10 dev queries has a judgment"):
        build_dev_set(queries, qrels.slice(0, 0), negatives, corpus, config, seed=0)


def test_what_was_dropped_for_a_dev_query_is_neither_right_nor_wrong(tiny_data, tiny_checkpoint):
    """A query's own passage, where queries are passages: it would come first, and hide what is measured."""
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | {"dev": {"random_passages": 120}})
    retrieval = trainer.dev
    assert retrieval is not None
    before = retrieval.rank_passages(trainer.model, torch.float32, 5)
    assert before is not None
    firsts = {query_id: passage_ids[0] for query_id, passage_ids in before.items()}
    data, corpus = Dataset.open(tiny_data[1]), Corpus.open(tiny_data[0])
    queries, qrels, negatives = data.training_tables("dev")
    rows = [{"query_id": query_id, "passage_id": first, "miner": "test"} for query_id, first in firsts.items()]
    tables = (queries, qrels, pa.concat_tables([negatives, to_table("dropped", rows)]))
    retrieval.dev = build_dev_set(*tables, corpus, DevConfig(random_passages=120), seed=0)
    after = retrieval.rank_passages(trainer.model, torch.float32, 4)
    assert after == {query_id: passage_ids[1:] for query_id, passage_ids in before.items()}


def test_a_deep_dev_measure_sees_as_many_passages(tiny_data, tiny_checkpoint):
    dev = {"measure": "R@120", "random_passages": 120}
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | {"dev": dev})
    assert trainer.dev is not None
    assert trainer.dev.measure(trainer.model, torch.float32) == 1.0


def test_patience_ends_training(tiny_data, tiny_checkpoint):
    train = TRAIN | {"num_epochs": 6, "optimizer": {"learning_rate": 1e-12}, "dev": {"patience": 2}}
    progress, _ = run_alone(tiny_data, model_config(tiny_checkpoint), train)
    assert len(progress.history) == 3
    assert progress.best_epoch == 0


def test_the_best_epoch_is_kept(tiny_data, tiny_checkpoint, monkeypatch):
    # Measures of our own: which epoch is best by real ones depends on the processor's rounding.
    def train(**changes: Any) -> tuple[Progress, dict[str, torch.Tensor]]:
        measures = iter([0.1, 0.3, 0.2])
        monkeypatch.setattr(DevRetrieval, "measure", lambda *_: next(measures))
        optimizer = {"learning_rate": 1e-3, "schedule": "constant", "warmup_share": 0}
        constant = TRAIN | {"num_epochs": 3, "optimizer": optimizer}
        return run_alone(tiny_data, model_config(tiny_checkpoint), constant | changes)

    kept, weights = train()
    last, last_weights = train(keep="last")
    assert [row.metrics["loss"] for row in kept.history] == [row.metrics["loss"] for row in last.history]
    assert kept.best_epoch == 1
    stopped, best_weights = train(num_epochs=2)
    assert len(stopped.history) == 2
    assert all(torch.equal(weights[name], best_weights[name]) for name in weights)
    assert not all(torch.equal(weights[name], last_weights[name]) for name in weights)


@pytest.mark.parametrize(("num_epochs", "best"), [(3, 2), (1, 0)])
def test_the_best_epoch_is_none_of_the_warm_up(tiny_data, tiny_checkpoint, monkeypatch, num_epochs, best):
    """The warm-up is plain NCE: were it kept, the model would be that of another method. Too short a training has
    nothing else."""
    measures = iter([0.5, 0.1, 0.3])
    monkeypatch.setattr(DevRetrieval, "measure", lambda *_: next(measures))
    train = TRAIN | VARIANTS["npc"] | {"num_epochs": num_epochs}
    progress, _ = run_alone(tiny_data, model_config(tiny_checkpoint), train)
    assert (progress.best_epoch, progress.best_measure) == (best, [0.5, 0.1, 0.3][best])


def test_a_best_epoch_of_shared_warm_up_states_is_forgotten():
    row = EpochRow(epoch=1, metrics={})
    plain = Progress(history=[EpochRow(epoch=0, metrics={}), row], best_epoch=0, best_measure=0.9)
    assert plain.measured(0.1, {}, first_epoch=1).best_epoch == 1
    assert plain.measured(0.1, {}).best_epoch == 0


def test_logged_steps_say_where_their_time_went(tiny_data, tiny_checkpoint):
    recorder = Recorder()
    loss = {
        "loss": {"name": "npc", "warmup_epochs": 0},
        "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 20},
    }
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | loss | {"log_steps": 2}, recorder)
    trainer.run()
    logged = [metrics for metrics in recorder.steps if metrics]
    assert len(logged) < len(recorder.steps)
    for metrics in logged:
        parts = {name.removeprefix("seconds/"): value for name, value in metrics.items() if "seconds/" in name}
        assert set(parts) == set(PARTS)
        assert all(seconds >= 0 for seconds in parts.values())
        assert sum(parts.values()) <= metrics["seconds"]
    assert not any("seconds/" in name for name in trainer.progress.history[0].metrics)


def test_the_teacher_is_asked_as_often_as_the_loss_says(tiny_data, tiny_checkpoint, monkeypatch):
    loss = {
        "loss": {"name": "npc", "warmup_epochs": 1, "consistency_every": 3},
        "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 20},
    }
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), TRAIN | loss | {"num_epochs": 4})
    asked, encode = [], Teacher.encode

    def counted(self: Teacher, *arguments: Any) -> Any:
        asked.append(trainer.progress.global_step)
        return encode(self, *arguments)

    monkeypatch.setattr(Teacher, "encode", counted)
    trainer.run()
    assert asked == [step for step in range(trainer.num_steps, 4 * trainer.num_steps) if step % 3 == 0]


def test_flags_of_one_positive_are_not_applied_to_another(tiny_data, tiny_checkpoint):
    train = TRAIN | VARIANTS["npc, detected once"]
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), train)
    examples, config = trainer.batches.examples, trainer.config
    second = Ragged(np.repeat(examples.positives.values, 2), 2 * examples.positives.offsets)
    several = replace(examples, positives=second)
    arguments = (several, trainer.batches.corpus, trainer.batches.tokenizers, config.pair_detection)
    with pytest.raises(ConfigError, match="40 training queries have several positives.*set train.positive to first"):
        PairDetector(*arguments, config, 0)
    PairDetector(*arguments, config.model_copy(update={"positive": "first"}), 0)


def test_random_pairs_are_not_taken_from_hard_negatives():
    assert PairDetectionConfig.model_validate({"detector": "anchored"}).detector.reads_random_pairs
    with pytest.raises(ValidationError, match="detector anchored compares with random pairs: against must be random"):
        PairDetectionConfig.model_validate({"detector": "anchored", "margins": "model", "against": "hard"})


def test_accumulated_gradients_are_those_of_the_mean(tiny_data, tiny_checkpoint):
    """The step is AdamW's, which hardly sees a factor; but clipping, the log and epsilon do."""
    config, train = model_config(tiny_checkpoint), TRAIN | {"accumulation_steps": 2}
    trainer, other = (make_trainer(tiny_data, config, train) for _ in range(2))
    batches = next(iter(trainer.batches.epoch(0)))
    losses = [
        other.config.loss.compute(other.view(other.learner, batch).candidates(), 0).per_query_Q.mean()
        for batch in batches
    ]
    (sum(losses) / 2).backward()
    expected = torch.nn.utils.get_total_norm(
        [parameter.grad for parameter in other.model.parameters() if parameter.grad is not None]
    )
    assert trainer._step(batches)["grad_norm"] == pytest.approx(float(expected), rel=1e-4)


def test_a_training_that_was_resumed_after_its_best_epoch_keeps_it(tiny_data, tiny_checkpoint, tmp_path, monkeypatch):
    def measured(*values: float) -> None:
        measures = iter(values)
        monkeypatch.setattr(DevRetrieval, "measure", lambda *_: next(measures))

    train, config = TRAIN | {"num_epochs": 3}, model_config(tiny_checkpoint)
    measured(0.3, 0.2, 0.1)
    whole, weights = run_alone(tiny_data, config, train, Recorder(keep_at=10, folder=tmp_path / "state"))
    assert whole.best_epoch == 0
    resumed = make_trainer(tiny_data, config, train)
    resumed.resume(tmp_path / "state")
    assert resumed.progress.epoch == 2
    measured(0.1)
    resumed.run()
    assert all(torch.equal(resumed.model.state_dict()[name], tensor) for name, tensor in weights.items())
