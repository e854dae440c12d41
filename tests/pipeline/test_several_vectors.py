"""A whole run with a vector for each token: judges, training, index, search and evaluation, and a text on its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import small_run

import raydr
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.indexing.searcher import Searcher
from raydr.models.pair_scoring import DualEncoderScorer


def settings(beir_folder: Path, checkpoint: str, folder: Path, **index: Any) -> dict[str, Any]:
    return small_run(
        beir_folder, checkpoint, folder / "w",
        model={"score": "sum_of_max", "scale": 1, "projection": 16},
        judge={"model": "untrained", "judges": ["sieve", "npc"]},
        negatives={"depth": 4}, train={"num_epochs": 1, "loss": {"name": "rcl", "beta": {"final": 0.1}}},
        evaluate={"measures": ["RR@10"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
        index=index, search={"num_nearest": 10_000, "top_k": 20},
    )  # fmt: skip


@pytest.mark.invariant
def test_a_run_has_the_models_scores(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    config = RunConfig.parse(settings(beir_folder, tiny_checkpoint, tmp_path, factory="IVF4,SQfp16", shard_rows=1500))
    raydr.evaluate(config)
    places = Places.of(config.workdir)
    model, index = places.open("models/trained", "model"), places.open("index/trained", "index")
    assert index.info["num_shards"] > 1
    assert places.open("verdicts/sieve-bm25-train", "verdicts").rows()
    corpus = Corpus(places.open("corpus", "corpus"))
    queries = Dataset(places.open("dataset", "dataset")).queries("test").to_pylist()
    texts = {row["query_id"]: row["text"] for row in queries}
    scorer = DualEncoderScorer(model.folder.localize_all(), "float32", "cpu", 4096)
    run = places.open("runs/test/trained", "run")
    rows = [row for part in Run(run).parts() for row in part.to_pylist()]
    assert len(rows) == 20 * len(texts)
    searcher = Searcher.open(index, corpus.artifact, model, config.search)
    for query_id, text in list(texts.items())[:3]:
        own = [row for row in rows if row["query_id"] == query_id]
        passages = corpus.texts(corpus.rows_of([row["passage_id"] for row in own]))
        expected = scorer.score([text], passages, np.zeros(20, dtype=np.int64), np.arange(20))
        assert [row["score"] for row in own] == pytest.approx(expected.tolist(), abs=5e-3)
        [hits] = searcher.search([text])
        assert [hit.passage_id for hit in hits][:5] == [row["passage_id"] for row in own][:5]


def test_an_index_that_cannot_find_the_best_is_refused(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    raw = settings(beir_folder, tiny_checkpoint, tmp_path, factory="HNSW32")
    RunConfig.parse(raw)
    raw["model"]["score"] = "poly"
    with pytest.raises(
        ConfigError, match=r"index.factory 'HNSW32' finds the largest inner products, but .* poly is none"
    ):
        RunConfig.parse(raw)
