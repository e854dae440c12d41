"""Reranking: scores, depth, ranges, interruptions, and what does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_evaluation import make_run
from made_stage import interrupt, make

from artefacts.judge_inputs import FLOAT32, NUM_QUERIES, JudgeInputs, make_cross_encoder, make_inputs
from raydr.artefacts.ranker_scores import rerank
from raydr.artefacts.run import KIND, Run
from raydr.artefacts.scoring import PairReader
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.models.cross_encoder import CrossEncoderScorer
from raydr.models.encode_config import EncodeConfig
from raydr.models.pair_scoring import DualEncoderScorer, PairScorer
from raydr.store.artifact import Artifact

NUM_PASSAGES = 8


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("rerank"), tiny_checkpoint)


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> Artifact:
    return make_cross_encoder(tmp_path_factory.mktemp("ranker") / "model", tiny_checkpoint)


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Eight passages for each query, of two queries a part."""
    rows = [
        (f"q{at:02d}", f"p{(at * 3 + 7 * rank) % NUM_QUERIES:02d}", 10.0 - rank)
        for at in range(NUM_QUERIES)
        for rank in range(NUM_PASSAGES)
    ]
    return Artifact.open(make_run(tmp_path_factory.mktemp("run") / "run", rows, 12), KIND)


def rerun(
    inputs: JudgeInputs, ranked: Artifact, model: Artifact, output: Path, pool: Pool | None = None, **changes: Any
) -> Artifact:
    settings = EncodeConfig()
    arguments = {
        "split": "train",
        "depth": 5,
        "system": "a+b",
        "settings": settings,
        "arithmetic": FLOAT32,
    }
    return make(output, KIND, rerank, ranked, model, inputs.dataset, inputs.corpus, pool=pool, **arguments | changes)


def rows_of(run: Artifact) -> list[dict[str, Any]]:
    return [row for part in Run(run).parts() for row in part.to_pylist()]


@pytest.mark.invariant
@pytest.mark.parametrize("kind", ["cross_encoder", "model"])
def test_scores_are_those_of_single_pairs_and_order_the_first_ranks(
    inputs: JudgeInputs, ranked: Artifact, ranker: Artifact, tmp_path: Path, kind: str
) -> None:
    model = ranker if kind == "cross_encoder" else inputs.model
    made = rerun(inputs, ranked, model, tmp_path / "out")
    rows = rows_of(made)
    assert (len(rows), made.info["top_k"], made.info["num_pairs"]) == (NUM_QUERIES * 5, 5, NUM_QUERIES * 5)
    before = {(row["query_id"], row["passage_id"]) for row in rows_of(ranked) if row["rank"] <= 5}
    assert {(row["query_id"], row["passage_id"]) for row in rows} == before
    opened = (CrossEncoderScorer, DualEncoderScorer)[kind == "model"]
    scorer: PairScorer = opened(model.folder.root, "float32", "cpu", 4096)
    data, corpus = Dataset(inputs.dataset), Corpus(inputs.corpus)
    texts = dict(zip(*(data.queries("train")[name].to_pylist() for name in ("query_id", "text")), strict=True))
    each = np.zeros(1, dtype=np.int64)
    for query_id in ("q00", "q11", "q29"):
        mine = [row for row in rows if row["query_id"] == query_id]
        assert [row["rank"] for row in mine] == [1, 2, 3, 4, 5]
        for row in mine:
            passage = corpus.texts(corpus.rows_of([row["passage_id"]]))
            alone = float(scorer.score([texts[query_id]], passage, each, each)[0])
            assert row["score"] == pytest.approx(alone, abs=1e-5)
        scores = [row["score"] for row in mine]
        assert scores == sorted(scores, reverse=True)
    if kind == "cross_encoder":
        assert any(not 0 <= row["score"] <= 1 for row in rows)


@pytest.mark.invariant
def test_interrupted_and_in_small_ranges_it_is_the_same(
    inputs: JudgeInputs, ranked: Artifact, ranker: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = rerun(inputs, ranked, ranker, tmp_path / "whole")
    # A query's rows are not cut up by ranges of 10 rows that queries of 8 straddle.
    monkeypatch.setattr("raydr.artefacts.scoring.PAIRS_READ", 10)
    small = rerun(inputs, ranked, ranker, tmp_path / "small")
    assert len(small.parts()) > 20
    assert [(row["query_id"], row["passage_id"]) for row in rows_of(small)] == [
        (row["query_id"], row["passage_id"]) for row in rows_of(whole)
    ]
    # Broken off in the middle, it goes on behind what is there.
    read, calls = PairReader.scores, []

    def broken(reader: PairReader, query_ids: list[str], passage_ids: list[str]) -> Any:
        calls.append(query_ids)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return read(reader, query_ids, passage_ids)

    monkeypatch.setattr(PairReader, "scores", broken)
    with pytest.raises(KeyboardInterrupt):
        rerun(inputs, ranked, ranker, tmp_path / "broken")
    resumed = rerun(inputs, ranked, ranker, tmp_path / "broken")
    assert resumed.manifest.parts == small.manifest.parts
    assert resumed.info == small.info
    asked = [query for queries in calls[:3] + calls[4:] for query in dict.fromkeys(queries)]
    assert sorted(asked) == sorted({row["query_id"] for row in rows_of(whole)})
    # Killed with some parts recorded: those are left as they are.
    first, *_ = small.parts()
    stamp = Path(small.folder.path(first)).stat().st_mtime_ns
    interrupt(small, first)
    again = rerun(inputs, ranked, ranker, tmp_path / "small")
    assert again.manifest.parts == resumed.manifest.parts
    assert Path(again.folder.path(first)).stat().st_mtime_ns == stamp


@pytest.mark.invariant
def test_both_pools_give_the_same_bytes(
    inputs: JudgeInputs, ranked: Artifact, ranker: Artifact, pool: Pool, tmp_path: Path
) -> None:
    here = rerun(inputs, ranked, ranker, tmp_path / "here")
    other = rerun(inputs, ranked, ranker, tmp_path / "other", pool=pool)
    assert other.manifest.parts == here.manifest.parts


def test_a_run_of_other_queries_or_of_a_shallower_depth(
    inputs: JudgeInputs, ranker: Artifact, ranked: Artifact, tmp_path: Path
) -> None:
    strangers = Artifact.open(make_run(tmp_path / "run", [("x9", "p01", 1.0)], 5), KIND)
    with pytest.raises(DataError, match=r"1 of 1 queries are not in split 'train'.*'x9'"):
        rerun(inputs, strangers, ranker, tmp_path / "out")
    unknown = Artifact.open(make_run(tmp_path / "unknown", [("q01", "x7", 1.0)], 5), KIND)
    with pytest.raises(DataError, match="x7"):
        rerun(inputs, unknown, ranker, tmp_path / "out2")
    deep = rerun(inputs, ranked, ranker, tmp_path / "deep", depth=50)
    assert deep.info["num_pairs"] == NUM_QUERIES * NUM_PASSAGES
