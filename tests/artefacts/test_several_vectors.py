"""Several vectors a text from the encoders to the run: whole, in shards, killed and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raydr.artefacts.embeddings import encode_texts, finite_texts
from raydr.artefacts.index import build_index
from raydr.artefacts.run import Run
from raydr.artefacts.search import search, settings_in_use
from raydr.component import build
from raydr.data.embeddings import Embeddings, VectorSets
from raydr.distributed.arithmetic import resolve_arithmetic
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import DataError
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.indexing.shards import IndexShards
from raydr.models.config import ModelConfig, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.encode_config import EncodeConfig
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.models.scores.base import ScoreFunction
from raydr.store.artifact import Artifact
from raydr.store.building import Building
from raydr.store.folder import publish_files
from tests.conftest import make_sentence
from tests.made import integer_sets, integer_vectors, make_corpus, make_dataset, make_embeddings
from tests.made_stage import interrupt, make

PASSAGES = [make_sentence(at, 3 + at * 5 % 13) for at in range(47)]
QUERIES = [make_sentence(100 + at, 2 + at % 5) for at in range(13)]
SCORES: dict[str, dict[str, Any]] = {
    "multi": {"num_vectors": 4},
    "poly": {"num_vectors": 3},
    "genpoly": {"num_vectors": 3, "num_passage_vectors": 4},
    "sum_of_max": {},
}


def save(making: Building, pool: Pool, *, config: ModelConfig) -> dict[str, Any]:
    model = DualEncoder.from_config(config, seed=0)
    publish_files(making.folder, lambda path: model.save(path, build_tokenizers(config)))
    making.record_files()
    return {}


@pytest.mark.invariant
@pytest.mark.parametrize("name", ["multi", "poly", "genpoly"])
def test_a_run_has_the_scores_of_all_pairs(name: str, tiny_checkpoint: str, tmp_path: Path) -> None:
    run_and_compare(name, ThisProcess(), tiny_checkpoint, tmp_path)


@pytest.mark.invariant
def test_a_run_of_late_interaction_has_the_scores_of_all_pairs(
    pool: Pool, tiny_checkpoint: str, tmp_path: Path
) -> None:
    run_and_compare("sum_of_max", pool, tiny_checkpoint, tmp_path)


def run_and_compare(name: str, pool: Pool, tiny_checkpoint: str, tmp_path: Path) -> None:
    """From the model's texts to the run, in shards, beside the judge's scores of every pair."""
    sides = {"query": SideConfig(max_length=24), "passage": SideConfig(max_length=24)}
    settings = {"checkpoint": tiny_checkpoint, "score": {"name": name} | SCORES[name], "projection": 16, **sides}
    config = ModelConfig.model_validate(settings)
    model = make(tmp_path / "model", "model", save, config=config)
    corpus = make_corpus(tmp_path / "corpus", PASSAGES, part_rows=10)
    dataset = make_dataset(tmp_path / "dataset", "test", QUERIES, part_rows=8)
    encode = EncodeConfig(dtype="float32")
    how = {"settings": encode, "arithmetic": resolve_arithmetic(encode, pool), "pool": pool}
    passages = make(tmp_path / "passages", "embeddings", encode_texts, model, corpus, **how)
    queries = make(tmp_path / "queries", "embeddings", encode_texts, model, dataset=dataset, split="test", **how)
    assert (Embeddings(passages).several, Embeddings(queries).several) == (name != "poly", name != "multi")
    index = make(
        tmp_path / "index", "index", build_index, passages, pool=pool, score=config.score,
        settings=IndexConfig(shard_rows=25 if name == "poly" else Embeddings(passages).num_vectors // 2),
    )  # fmt: skip
    assert index.info["num_shards"] > 1
    run = make(
        tmp_path / "run", "run", search, index, queries, pool=pool, settings=SearchConfig(batch_queries=5), top_k=47,
        system="dense",
    )  # fmt: skip
    scorer = DualEncoderScorer(model.folder.localize_all(), "float32", "cpu", 4096)
    query, passage = (
        torch.from_numpy(scorer.encode(side, titles, texts))
        for side, titles, texts in (
            ("query", None, QUERIES), ("passage", [f"title {at}" for at in range(47)], PASSAGES),
        )
    )  # fmt: skip
    expected = config.score.all_pairs(query, passage).numpy()
    rows = [row for part in Run(run).parts() for row in part.to_pylist()]
    assert len(rows) == 13 * 47
    for row in rows:
        of_pair = expected[int(row["query_id"][1:]), int(row["passage_id"][1:])]
        # Stored in half precision.
        assert row["score"] == pytest.approx(of_pair, abs=5e-3)
    for at in range(13):
        own = [row["score"] for row in rows if row["query_id"] == f"q{at}"]
        assert own == sorted(own, reverse=True)


def made_index(folder: Path, passages: Artifact, factory: str, pool: Pool | None = None, **changes: Any) -> Artifact:
    score = build(ScoreFunction, "sum_of_max")
    settings = IndexConfig(factory=factory, shard_rows=400, **changes)
    return make(folder, "index", build_index, passages, pool=pool, score=score, settings=settings)


def made_run(folder: Path, index: Artifact, queries: Artifact, pool: Pool | None = None, **settings: Any) -> Artifact:
    config = SearchConfig(batch_queries=7, **settings)
    return make(folder, "run", search, index, queries, pool=pool, settings=config, top_k=20, system="dense")


@pytest.fixture
def passages(tmp_path: Path) -> Artifact:
    return make_embeddings(tmp_path / "passages", integer_sets(300, 8, seed=0), part_rows=50)


@pytest.fixture
def queries(tmp_path: Path) -> Artifact:
    return make_embeddings(tmp_path / "queries", integer_sets(20, 8, seed=7), part_rows=12, side="query")


@pytest.mark.invariant
@pytest.mark.parametrize("factory", ["SQfp16", "IVF4,SQfp16"])
def test_killed_and_resumed_equals_uninterrupted(
    factory: str, passages: Artifact, queries: Artifact, tmp_path: Path
) -> None:
    resumed_equals_uninterrupted(factory, ThisProcess(), passages, queries, tmp_path)


@pytest.mark.invariant
def test_killed_and_resumed_on_ray_equals_uninterrupted(
    ray_local: None, passages: Artifact, queries: Artifact, tmp_path: Path
) -> None:
    resumed_equals_uninterrupted("IVF4,SQfp16", RayPool(), passages, queries, tmp_path)


def resumed_equals_uninterrupted(
    factory: str, pool: Pool, passages: Artifact, queries: Artifact, tmp_path: Path
) -> None:
    """What is made whole in this process, beside what was half made and goes on in a pool."""
    index = made_index(tmp_path / "index", passages, factory)
    assert index.info["num_shards"] == 3
    again = made_index(tmp_path / "again", passages, factory)
    assert again.manifest.parts == index.manifest.parts
    files = sorted(again.parts())
    assert any(name.endswith("001.faiss") for name in files) == (factory != "SQfp16")
    interrupt(again, *[name for name in files if "shard-000" in name or name == "shard-001.vectors.arrow"])
    assert made_index(tmp_path / "again", passages, factory, pool).manifest.parts == index.manifest.parts

    run = made_run(tmp_path / "run", index, queries)
    assert len(Run(run).part_names) == 4
    half = made_run(tmp_path / "half", index, queries)
    interrupt(half, *half.parts()[:2])
    assert made_run(tmp_path / "half", index, queries, pool).manifest.parts == run.manifest.parts


@pytest.mark.invariant
def test_candidates_that_cover_the_corpus_give_the_exact_run(
    passages: Artifact, queries: Artifact, tmp_path: Path
) -> None:
    exact = made_run(tmp_path / "exact", made_index(tmp_path / "flat", passages, "SQfp16"), queries)
    cells = made_index(tmp_path / "cells", passages, "IVF4,SQfp16")
    cells_run = made_run(tmp_path / "found", cells, queries, num_nearest=10_000)
    assert cells_run.manifest.parts == exact.manifest.parts
    fewer = made_run(tmp_path / "fewer", cells, queries, num_nearest=2)
    assert sum(part.num_rows for part in Run(fewer).parts()) < 20 * 20


def test_an_index_of_codes_holds_no_other_vectors(passages: Artifact, queries: Artifact, tmp_path: Path) -> None:
    index = made_index(tmp_path / "index", passages, "IVF4,SQ8", vectors="codes")
    assert not any("vectors" in name for name in index.parts())
    codes_run = made_run(tmp_path / "found", index, queries, num_nearest=10_000)
    exact = made_run(tmp_path / "exact", made_index(tmp_path / "flat", passages, "SQfp16"), queries)
    scores = [np.concatenate([part["score"].to_numpy() for part in Run(run).parts()]) for run in (codes_run, exact)]
    # Eight bits of small integers.
    np.testing.assert_allclose(scores[0], scores[1], atol=0.3)
    assert np.abs(scores[0]).max() > 5


def test_queries_of_another_model_are_refused(passages: Artifact, tmp_path: Path) -> None:
    index = made_index(tmp_path / "index", passages, "SQfp16")
    others = {
        "of another model": make_embeddings(tmp_path / "q", integer_sets(9, 8, seed=7), 9, side="query", model="other"),
        "of another width": make_embeddings(tmp_path / "w", integer_sets(9, 4, seed=7), 9, side="query"),
        "of one vector each": make_embeddings(tmp_path / "o", integer_vectors(9, 8, seed=7), 9, "query", "other"),
    }
    for what, queries in others.items():
        message = (
            r"the passages at .* have 8 dimensions and are of model-0, the queries at .*: search with vectors of one"
        )
        with pytest.raises(DataError, match=message):
            made_run(tmp_path / what, index, queries)


def test_the_index_holds_the_vectors_of_each_passage(passages: Artifact, tmp_path: Path) -> None:
    shards = IndexShards(made_index(tmp_path / "index", passages, "SQfp16"))
    expected = integer_sets(300, 8, seed=0)
    row = 0
    for shard in range(shards.num_shards):
        for piece in shards.load_sets(shard):
            np.testing.assert_array_equal(piece.padded(), expected.slice(row, row + len(piece)).padded())
            row += len(piece)
        assert row == shards.starts[shard + 1]
    assert row == 300
    assert shards.artifact.info["num_vectors"] == len(expected.vectors_TD)


def test_how_many_vectors_are_looked_for_changes_a_run_of_candidates_only() -> None:
    def has(factory: str, score: str) -> bool:
        settings = SearchConfig(num_nearest=77, num_candidates=78)
        in_use = settings_in_use(settings, factory, build(ScoreFunction, score)).differing_settings()
        return {"num_nearest", "num_candidates"} <= in_use.keys()

    assert has("auto", "sum_of_max")
    assert has("IVF4,Flat", "multi")
    assert not has("SQfp16", "sum_of_max")
    assert not has("IVF4,Flat", "dual")


def test_texts_with_numbers_that_are_not_finite_are_found() -> None:
    vectors = np.ones((5, 2), dtype=np.float16)
    vectors[3, 1] = np.inf
    assert finite_texts(VectorSets(vectors, np.array([0, 1, 3, 5]))).tolist() == [True, True, False]
    assert finite_texts(vectors).tolist() == [True, True, True, False, True]
