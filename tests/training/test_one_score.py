"""A pair has one score: in training, dev retrieval, detection, judging and search, with any score function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.indexing.faiss_backend import make_index, resolve_factory
from raydr.indexing.search import ShardSearcher
from raydr.indexing.shards import IndexShards
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import build_tokenizers
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.models.scores.base import ScoreFunction
from raydr.models.scores.dual import Dual
from raydr.noise.judges.npc import NPC
from raydr.noise.random_sample import SampleScorer, draw_sample
from raydr.seeding import query_rng
from raydr.training.trainer import Trainer
from training.harness import make_trainer, model_config, run_alone, run_with_ranks

pytestmark = pytest.mark.invariant

TRAIN: dict[str, Any] = {
    "loss": {"name": "npc", "warmup_epochs": 0},
    "pair_detection": {"detector": "gaussian", "margins": "model", "num_random": 12},
    "batch_size": 8,
    "num_hard_negatives": 2,
    "optimizer": {"learning_rate": 1e-3},
}
SCALE = 3.0


def real(vectors_MD: np.ndarray) -> list[np.ndarray]:
    """Of several vectors a text, those that are no padding."""
    return [vector for vector in vectors_MD if vector.any()]


def softly(query_MD: np.ndarray, passage_D: np.ndarray) -> float:
    """The poly-encoder."""
    products = query_MD @ passage_D
    return float((np.exp(products) / np.exp(products).sum()) @ products)


#: The formulas once more, for one pair.
FORMULAS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "dual": lambda query, passage: sum(query * passage),
    "halves": lambda query, passage: max(sum(query[:16] * passage[:16]), sum(query[16:] * passage[16:])),
    "multi": lambda query, passage: max(query @ vector for vector in real(passage)),
    "poly": softly,
    "genpoly": lambda query, passage: sum(softly(query, vector) for vector in real(passage)),
    "sum_of_max": lambda query, passage: sum(max(vector @ other for other in real(passage)) for vector in real(query)),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "multi": {"num_vectors": 10},
    "poly": {"num_vectors": 3},
    "genpoly": {"num_vectors": 3, "num_passage_vectors": 4},
}
ONE_VECTOR = [(score, similarity) for score in ("dual", "halves") for similarity in ("cosine", "dot")]
SEVERAL = [("multi", "cosine"), ("poly", "dot"), ("genpoly", "cosine"), ("sum_of_max", "cosine"), ("sum_of_max", "dot")]
KINDS = ONE_VECTOR + SEVERAL


@dataclass
class Scored:
    """A model, its trainer, and the similarities of all training queries with all passages by the formula."""

    trainer: Trainer
    saved: Path
    corpus: Corpus
    data: Dataset

    @property
    def config(self) -> ModelConfig:
        return self.trainer.model.config

    @cached_property
    def scorer(self) -> DualEncoderScorer:
        return DualEncoderScorer(self.saved, "float32", "cpu", 4096)

    @cached_property
    def query_QD(self) -> np.ndarray:
        return self.scorer.encode("query", None, self.trainer.batches.examples.texts)

    @cached_property
    def passage_PD(self) -> np.ndarray:
        texts = self.corpus.texts(np.arange(len(self.corpus)))
        return self.scorer.encode("passage", texts.titles, texts.texts)

    def expected(self, query_D: np.ndarray, passage_D: np.ndarray) -> float:
        return FORMULAS[self.config.score.name](query_D.astype(np.float64), passage_D.astype(np.float64))

    def similarity(self, query: int, passage: int) -> float:
        return self.expected(self.query_QD[query], self.passage_PD[passage])


@pytest.fixture(params=KINDS, ids="-".join)
def scored(
    request: pytest.FixtureRequest, tmp_path: Path, ragged_data: tuple[str, str], tiny_checkpoint: str
) -> Scored:
    score, similarity = request.param
    settings = {"name": score} | SETTINGS.get(score, {})
    config = model_config(tiny_checkpoint, score=settings, similarity=similarity, scale=SCALE)
    trainer = make_trainer(ragged_data, config, TRAIN)
    trainer.model.eval()
    trainer.model.save(tmp_path / "model", build_tokenizers(config))
    return Scored(trainer, tmp_path / "model", Corpus.open(ragged_data[0]), Dataset.open(ragged_data[1]))


def close(value: float) -> Any:
    return pytest.approx(value, rel=1e-4, abs=1e-4)


def test_in_training(scored: Scored) -> None:
    [batch] = next(scored.trainer.batches.epoch(0))
    learner = scored.trainer.learner
    learner.start_teacher()
    with torch.no_grad():
        candidates = learner.encode(batch).candidates()
    examples = scored.trainer.batches.examples
    positive_rows = [int(examples.positives[at][0]) for at in batch.query_rows]
    for line, query in enumerate(batch.query_rows.tolist()):
        for other, row in enumerate(positive_rows):
            expected = close(SCALE * scored.similarity(query, row))
            column = int(candidates.positive_Q[other])
            assert float(candidates.scores_QC[line, column]) == expected
            assert float(candidates.signals["teacher_scores_QC"][line, column]) == expected


def test_in_dev_retrieval(scored: Scored) -> None:
    retrieval = scored.trainer.dev
    assert retrieval is not None
    scores_QP = retrieval.scores(scored.trainer.model, torch.float32)
    assert scores_QP is not None
    query_QD = scored.scorer.encode("query", None, retrieval.dev.query_texts)
    for line in (0, 3, 9):
        for column, row in enumerate(retrieval.dev.passage_rows):
            expected = scored.expected(query_QD[line], scored.passage_PD[row])
            assert float(scores_QP[line, column]) == close(expected)


def test_in_detection(scored: Scored) -> None:
    """A pair's margin is log Σ exp(s_random) − s."""
    detector = scored.trainer.detector
    assert detector is not None
    measured = detector.measure(scored.trainer.model, 1, torch.float32)
    examples = detector.examples
    for at in (0, 7, 39):
        drawn = query_rng(detector.seed, 1, examples.query_ids[at], "perplexity").integers(len(examples), size=12)
        rows = np.array([int(examples.positives[place][0]) for place in drawn])
        hashes = scored.corpus.content_hashes(rows).view(np.int64)
        rows = rows[~np.isin(hashes, examples.forbidden[at])]
        random = [SCALE * scored.similarity(at, row) for row in rows]
        positive = SCALE * scored.similarity(at, int(examples.positives[at][0]))
        assert measured.pairs_N[at] == close(np.log(np.exp(np.array(random) - positive).sum()))


def test_in_judging_negatives(scored: Scored) -> None:
    examples = scored.trainer.batches.examples
    query_P, passage_P = np.array([0, 1, 7, 7]), np.array([3, 0, 2, 3])
    rows = np.array([5, 17, 80, 119])
    scores = scored.scorer.score(examples.texts, scored.corpus.texts(rows), query_P, passage_P)
    for score, query, passage in zip(scores, query_P, rows[passage_P], strict=True):
        assert score == close(scored.similarity(int(query), int(passage)))


def test_in_judging_pairs(scored: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks, without passages that say what a known positive says."""
    examples, corpus = scored.trainer.batches.examples, scored.corpus
    rows = draw_sample(scored.data, corpus, "train", NPC(num_random=30), seed=0)
    assert len(rows) == 30
    monkeypatch.setattr("raydr.noise.random_sample._BLOCK_SCORES", 3 * len(rows))
    lines = [0, 5, 5, 11, 39, 20, 21]
    query_ids = [examples.query_ids[at] for at in lines]
    passage_rows = np.array([int(rows[0]), int(rows[1]), 6, 7, 8, 9, 10])
    positives = {examples.query_ids[at]: corpus.ids(np.array([rows[2]])) for at in lines}
    texts = dict(zip(examples.query_ids, examples.texts, strict=True))
    sample = SampleScorer(scored.scorer, corpus, rows)
    blocks = list(sample.score(query_ids, corpus.ids(passage_rows), texts, positives))
    assert [block.num_queries for block in blocks] == [3, 3, 1]
    others = np.delete(rows, 2)
    random = np.concatenate([block.scores_M for block in blocks]).reshape(len(lines), len(others))
    scores = np.concatenate([block.positives("npc") for block in blocks])
    for place, at in enumerate(lines):
        assert scores[place] == close(SCALE * scored.similarity(at, int(passage_rows[place])))
        assert random[place].tolist() == [close(SCALE * scored.similarity(at, int(row))) for row in others]
    assert list(sample.score([], [], {}, {})) == []


class TwoShards:
    """An index of given vectors, one a passage."""

    several = False

    def __init__(self, vectors: np.ndarray, score: ScoreFunction) -> None:
        self.score = score
        self.factory = resolve_factory(IndexConfig(factory="Flat"), *vectors.shape, score)[0]
        self.starts = np.array([0, 50, len(vectors)])
        self.partitions = ["", ""]
        self.vectors = vectors

    def load(self, shard: int) -> Any:
        index = make_index(self.factory, self.vectors.shape[1])
        index.add(self.vectors[self.starts[shard] : self.starts[shard + 1]])
        return index


@pytest.mark.parametrize("scored", ONE_VECTOR, ids="-".join, indirect=True)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_in_search(scored: Scored, num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of vectors that half precision holds as they are: what it rounds off is no matter of the score."""
    monkeypatch.setattr("raydr.indexing.search.QUERIES_PER_THREAD", 1)
    query_QD, passage_PD = (
        vectors.astype(np.float16).astype(np.float32) for vectors in (scored.query_QD, scored.passage_PD)
    )
    index = cast(IndexShards, TwoShards(passage_PD, scored.config.score))
    hits = ShardSearcher(index, [0, 1], SearchConfig(), num_threads).search(query_QD, 10)
    for query in (0, 7, 39):
        exact = np.array([scored.expected(query_QD[query], passage_D) for passage_D in passage_PD])
        np.testing.assert_allclose(hits.scores[query], exact[hits.rows[query]], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(hits.scores[query], -np.sort(-exact)[:10], rtol=1e-4, atol=1e-4)


def test_an_index_of_inner_products_is_refused_for_another_score() -> None:
    halves = ScoreFunction.choices()["halves"]()
    assert isinstance(halves, ScoreFunction)
    assert resolve_factory(IndexConfig(), 5_000_000, 8, halves)[0] == "SQfp16"
    assert resolve_factory(IndexConfig(), 5_000_000, 8, Dual())[0].startswith("IVF")
    assert resolve_factory(IndexConfig(factory="HNSW32"), 10, 8, Dual())[0] == "HNSW32"
    with pytest.raises(ConfigError, match=r"the score function halves is none: set index\.factory to auto, or to Flat"):
        resolve_factory(IndexConfig(factory="HNSW32"), 10, 8, halves)


@pytest.mark.parametrize("score", [name for name in FORMULAS if name != "dual"])
def test_another_score_function_trains_alike_on_one_worker_and_on_two(
    score: str, ragged_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = model_config(tiny_checkpoint, score={"name": score} | SETTINGS.get(score, {}), scale=5)
    train = TRAIN | {"loss": "nce", "pair_detection": None, "num_epochs": 4}
    alone, weights = run_alone(ragged_data, config, train)
    losses = [row.metrics["loss"] for row in alone.history]
    assert losses[-1] < 0.9 * losses[0]
    dual, _ = run_alone(ragged_data, model_config(tiny_checkpoint), train)
    assert dual.history[0].metrics["loss"] != pytest.approx(losses[0], rel=1e-3)
    # In small pieces at that, whose texts have other numbers of tokens.
    together, shared = run_with_ranks(2, tmp_path, ragged_data, config, train | {"cache_tokens": 64})
    assert [row.metrics["dev RR@10"] for row in together.history] == pytest.approx(
        [row.metrics["dev RR@10"] for row in alone.history]
    )
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


def test_several_vectors_are_taught_and_detected_alike_on_one_worker_and_on_two(
    ragged_data: tuple[str, str], tiny_checkpoint: str, tmp_path: Path
) -> None:
    """The teacher, and the margins against passages of which each worker has encoded a part."""
    config = model_config(tiny_checkpoint, score="sum_of_max", scale=1, projection=8)
    loss = {"name": "npc", "warmup_epochs": 1}
    train = TRAIN | {
        "loss": loss,
        "pair_detection": {"margins": "model", "num_random": 12, "detector": "above_median"},
        "num_epochs": 2,
    }
    alone, weights = run_alone(ragged_data, config, train)
    together, shared = run_with_ranks(2, tmp_path, ragged_data, config, train)
    assert alone.clean is not None
    assert sum(alone.clean) == len(alone.clean) / 2
    assert together.clean == alone.clean
    for name, tensor in weights.items():
        torch.testing.assert_close(shared[name], tensor, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("score", [name for name, similarity in SEVERAL if similarity == "cosine"])
def test_scores_are_float32_whatever_encoded_the_texts(
    score: str, ragged_data: tuple[str, str], tiny_checkpoint: str
) -> None:
    config = model_config(tiny_checkpoint, score={"name": score} | SETTINGS.get(score, {}), scale=1)
    scores = {}
    for dtype in ("float32", "bfloat16"):
        trainer = make_trainer(ragged_data, config, TRAIN | {"dtype": dtype, "loss": "nce"})
        [batch] = next(trainer.batches.epoch(0))
        learner = trainer.learner
        scores[dtype] = learner.encode(batch).candidates().scores_QC
        loss = trainer.config.loss.compute(learner.encode(batch).candidates(), 0).per_query_Q.mean()
        learner.optimization.backward(loss)
        grads = [parameter.grad for parameter in learner.model.parameters() if parameter.grad is not None]
        assert all(bool(torch.isfinite(grad).all()) for grad in grads)
        assert len(grads) == len(list(learner.model.parameters()))
    assert scores["bfloat16"].dtype == torch.float32
    num_tokens = 24 if score == "sum_of_max" else 4
    torch.testing.assert_close(scores["bfloat16"], scores["float32"], rtol=0, atol=0.02 * num_tokens)
