"""Partitions from the files to negatives and runs: each query with the passages that it is confined to."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raydr.artefacts.bm25 import build_bm25, search_bm25
from raydr.artefacts.dataset import prepare_corpus, prepare_dataset
from raydr.artefacts.index import build_index
from raydr.artefacts.negatives import mine
from raydr.artefacts.noisy_dataset import inject_noise
from raydr.artefacts.run import Run
from raydr.artefacts.search import search
from raydr.artefacts.sources import find_sources
from raydr.component import build
from raydr.data.config import DataConfig, NoiseInjectionConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import load_examples, read_examples
from raydr.data.parts import Scope
from raydr.data.readers.zeshel import ZeshelReader
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import DataError
from raydr.indexing.config import IndexConfig, SearchConfig
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.scores.base import ScoreFunction
from raydr.negatives.config import BM25Config, NegativesConfig
from raydr.store.artifact import Artifact
from raydr.training.batches import random_rows
from raydr.training.dev import DevRetrieval, build_dev_set
from raydr.training.sections import DevConfig
from tests.made import integer_sets, integer_vectors, make_embeddings
from tests.made_linking import make_worlds
from tests.made_stage import make

#: A part of 50 passages each; no query is of c, and some are of none.
PASSAGES = ["", "a", "a", "a", "b", "b", "c"]
QUERIES = ["", "a", "b"]
CONFINED: dict[Scope, dict[str, set[str]]] = {
    "own": {"a": {"a"}, "b": {"b"}},
    "split": {"a": {"a", "b"}, "b": {"a", "b"}},
    "all": {},
}


def rows_of(run: Artifact) -> dict[str, list[dict[str, Any]]]:
    rows: dict[str, list[dict[str, Any]]] = {}
    for part in Run(run).parts():
        for row in part.to_pylist():
            rows.setdefault(row["query_id"], []).append(row)
    return rows


def run_over(
    folder: Path, passages: Artifact, queries: Artifact, score: str, factory: str, pool: Pool, scope: Scope, rows: int
) -> Artifact:
    index = make(
        folder / "index", "index", build_index, passages, score=build(ScoreFunction, score),
        settings=IndexConfig(factory=factory, shard_rows=rows),
    )  # fmt: skip
    settings = SearchConfig(batch_queries=7, nprobe=4, num_nearest=5000, num_candidates=5000)
    return make(
        folder / "run", "run", search, index, queries, pool=pool, settings=settings, top_k=60, scope=scope, system="d"
    )


@pytest.mark.invariant
@pytest.mark.parametrize("scope", CONFINED)
@pytest.mark.parametrize(
    ("score", "factory", "shard_rows"),
    [
        ("dual", "Flat", 1000),
        ("dual", "IVF4,Flat", 60),
        ("sum_of_max", "SQfp16", 300),
        ("sum_of_max", "IVF4,Flat", 300),
    ],
)
def test_a_search_is_that_of_the_partitions_alone(
    scope: Scope, score: str, factory: str, shard_rows: int, tmp_path: Path
) -> None:
    """Equal scores included, in shards."""
    search_and_compare(scope, score, factory, shard_rows, ThisProcess(), tmp_path)


@pytest.mark.invariant
def test_actors_search_their_shards_of_a_querys_partition(ray_local: None, tmp_path: Path) -> None:
    search_and_compare("own", "dual", "IVF4,Flat", 60, RayPool(), tmp_path)


def search_and_compare(scope: Scope, score: str, factory: str, shard_rows: int, pool: Pool, tmp_path: Path) -> None:
    several = score == "sum_of_max"
    vectors = integer_sets(350, 8, seed=0) if several else integer_vectors(350, 8, seed=0)
    asked = integer_sets(36, 8, seed=3) if several else integer_vectors(36, 8, seed=3)
    passages = make_embeddings(tmp_path / "passages", vectors, 50, partitions=PASSAGES)
    queries = make_embeddings(tmp_path / "queries", asked, 12, side="query", partitions=QUERIES)
    hits = rows_of(run_over(tmp_path, passages, queries, score, factory, pool, scope, shard_rows))
    by_score = build(ScoreFunction, score)

    def padded(texts: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(texts.padded() if several else texts, dtype=np.float32))

    scores = by_score.all_pairs(padded(asked), padded(vectors)).numpy()
    of_passages = np.repeat(PASSAGES, 50)
    for query in range(36):
        wanted = CONFINED[scope].get(QUERIES[query // 12])
        rows = [at for at in range(350) if wanted is None or of_passages[at] in wanted]
        best = sorted(rows, key=lambda at, q=query: (-scores[q, at], at))[:60]
        mine = hits[f"q{query}"]
        assert {row["passage_id"] for row in mine} == {f"p{at}" for at in best}
        np.testing.assert_array_equal([row["score"] for row in mine], scores[query, best])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three worlds of 30 pages; 10 mentions of each of the first two, one split."""
    return make_worlds(tmp_path, {"train": "ab"}, mentions=10)


def prepare(folder: Path, pool: Pool | None = None) -> tuple[Artifact, Artifact]:
    reader = ZeshelReader(path=str(folder))
    data = DataConfig(reader=reader, part_rows=20)
    how: dict[str, Any] = {"reader": reader, "sources": find_sources(reader), "data": data, "pool": pool}
    corpus = make(folder / "corpus", "corpus", prepare_corpus, **how)
    return corpus, make(folder / "dataset", "dataset", prepare_dataset, corpus, seed=0, **how)


def test_parts_have_passages_and_queries_of_one_partition(folder: Path, pool: Pool) -> None:
    made, data = prepare(folder, pool)
    corpus, dataset = Corpus(made), Dataset(data)
    parts = zip(corpus.part_names, corpus.parts(), strict=True)
    shown = [(name.rpartition("/")[0], len(part)) for name, part in parts]
    assert shown == [(f"passages/{world}", rows) for world in "abc" for rows in (20, 10)]
    ids = corpus.ids(np.arange(len(corpus)))
    assert corpus.partitions(np.arange(len(corpus))).tolist() == [passage_id[0] for passage_id in ids]
    assert (dataset.splits, dataset.partitions("train")) == (["train"], {"a", "b"})
    queries = dataset.queries("train").to_pylist()
    assert all(row["query_id"][2] == row["partition"] for row in queries)
    assert {row["category"] for row in queries} == {"LOW_OVERLAP"}
    for partitions in (None, {"b"}, {"a", "c"}):
        pool_of = corpus.pool(partitions)
        there = corpus.ids(pool_of.rows(np.arange(len(pool_of))))
        assert there == [passage_id for passage_id in ids if partitions is None or passage_id[0] in partitions]


def test_a_label_of_another_world_is_a_bad_row(folder: Path) -> None:
    file = folder / "mentions" / "train.json"
    file.write_text(file.read_text().replace('"label_document_id": "b3"', '"label_document_id": "c3"', 1))
    with pytest.raises(DataError, match=r"train\.json:\d+: passage 'c3' is of partition 'c', and its query of .*'b'"):
        prepare(folder)


@pytest.mark.parametrize("noise", [{"kind": "near", "ranks": [1, 4]}, {"kind": "mismatched"}])
def test_noise_is_of_the_partition_of_its_query(noise: dict[str, Any], folder: Path) -> None:
    corpus, data = prepare(folder)
    settings = NoiseInjectionConfig.model_validate(noise | {"share": 1.0})
    made = make(folder / "noisy", "dataset", inject_noise, data, corpus, settings=settings, split="train", seed=0)
    changed = [row for row in Dataset(made).qrels("train").to_pylist() if row["noise"]]
    assert len(changed) == 20
    assert all(row["passage_id"][0] == row["query_id"][2] for row in changed)


@pytest.mark.invariant
@pytest.mark.parametrize("scope", CONFINED)
def test_negatives_are_of_the_partitions_in_scope_however_they_were_found(
    scope: Scope, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDR_CACHE", str(folder / "cache"))
    made, data = prepare(folder)
    corpus, dataset = Corpus(made), Dataset(data)
    bm25 = make(folder / "bm25", "bm25", build_bm25, made, settings=BM25Config())
    run = make(folder / "run", "run", search_bm25, data, made, bm25, split="train", top_k=90, scope=scope)
    everywhere = make(folder / "all", "run", search_bm25, data, made, bm25, split="train", top_k=90, scope="all")
    how = {"settings": NegativesConfig(depth=90), "scope": scope, "split": "train", "miner": "bm25", "round": 0}
    mined, foreign = (
        make(folder / f"mined-{at}", "negatives", mine, data, made, mined_run, **how)
        for at, mined_run in enumerate((run, everywhere))
    )
    # Searched in scope, or left out afterwards.
    of_run, of_rest = (
        dataset.training_tables("train", negatives)[2].drop_columns(["rank"]) for negatives in (mined, foreign)
    )
    order = [("query_id", "ascending"), ("passage_id", "ascending")]
    assert of_run.sort_by(order).equals(of_rest.sort_by(order))
    assert (mined.info["dropped_elsewhere"], foreign.info["dropped_elsewhere"] > 0) == (0, scope != "all")
    examples = read_examples(dataset, "train", mined, corpus, scope, shared=True)
    drawn: Counter[str] = Counter()
    for at, query_id in enumerate(examples.query_ids):
        wanted = CONFINED[scope].get(query_id[2], {"a", "b", "c"})
        assert set(corpus.partitions(examples.negatives[at])) == wanted
        rows = random_rows(examples, corpus, at, 2000, np.random.default_rng(at))
        assert set(corpus.ids(rows)) == {
            passage_id
            for passage_id in corpus.ids(np.arange(90))
            if passage_id[0] in wanted and passage_id != query_id[2:]
        }
        drawn.update(corpus.partitions(rows))
    # Evenly over all passages in scope.
    shares = [drawn[partition] / drawn.total() for partition in "abc"]
    assert shares == pytest.approx([1 / 3] * 3 if scope == "all" else [1 / 2, 1 / 2, 0], abs=0.03)


def test_dev_queries_are_searched_in_scope(folder: Path) -> None:
    made, data = prepare(folder)
    corpus, tables = Corpus(made), Dataset(data).training_tables("train")
    config = DevConfig(max_queries=6, random_passages=1000)
    dev = build_dev_set(*tables, corpus, config, 0)
    assert {passage_id[0] for passage_id in dev.passage_ids} == {"a", "b"}
    assert dev.elsewhere_QP is not None
    for query, elsewhere in zip(dev.query_ids, dev.elsewhere_QP, strict=True):
        assert [passage_id[0] != query[2] for passage_id in dev.passage_ids] == elsewhere.tolist()
    everywhere = build_dev_set(*tables, corpus, DevConfig(scope="all", **config.model_dump(exclude={"scope"})), 0)
    assert everywhere.elsewhere_QP is None
    assert len(everywhere.passage_ids) == 90


def test_dev_scores_in_scope_are_those_of_all_and_nothing_elsewhere(folder: Path, tiny_checkpoint: str) -> None:
    made, data = prepare(folder)
    corpus, tables = Corpus(made), Dataset(data).training_tables("train")
    score = {"score": "sum_of_max", "projection": 8, "passage": {"max_length": 24}}
    config = ModelConfig.model_validate({"checkpoint": tiny_checkpoint, **score})
    model, tokenizers = DualEncoder.from_config(config), build_tokenizers(config)
    dev, everywhere = (
        DevRetrieval(tables, corpus, tokenizers, DevConfig(scope=scope, max_queries=6, random_passages=1000), 0)
        for scope in ("split", "all")
    )
    own = DevRetrieval(tables, corpus, tokenizers, DevConfig(max_queries=6, random_passages=1000), 0)
    in_own, in_split, in_all = (retrieval.scores(model, torch.float32) for retrieval in (own, dev, everywhere))
    assert in_own is not None
    assert in_split is not None
    assert in_all is not None
    places = [everywhere.dev.passage_ids.index(passage_id) for passage_id in own.dev.passage_ids]
    torch.testing.assert_close(in_split, in_all[:, places])
    elsewhere_QP = torch.from_numpy(own.dev.elsewhere_QP)
    assert 0 < int(elsewhere_QP.sum()) < elsewhere_QP.numel()
    torch.testing.assert_close(in_own, in_split.masked_fill(elsewhere_QP, -torch.inf))


def test_a_partition_of_positives_alone_is_told(folder: Path) -> None:
    made, data = prepare(folder)
    corpus = Corpus(made)
    queries, qrels, negatives = Dataset(data).training_tables("train")
    examples = load_examples(queries, qrels, negatives, corpus)
    forbidden = type(examples.forbidden)(
        np.tile(corpus.content_hashes(np.arange(30)).view(np.int64), 20), np.arange(21) * 30
    )
    at = examples.partitions.index("a")
    with pytest.raises(DataError, match=r"the 30 passages of partition 'a' .* or set partition\.negatives to split"):
        random_rows(dataclasses.replace(examples, forbidden=forbidden), corpus, at, 2, np.random.default_rng(0))
