"""Fusing runs: parts, pools and interruptions, weights from a split, and runs that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_artefacts import make_corpus, make_dataset
from made_evaluation import make_run
from made_stage import interrupt, make

from raydr.artefacts.fused_run import WEIGHTS, choose_fusion_weights, fuse
from raydr.artefacts.run import KIND, Run
from raydr.distributed.pool import Pool
from raydr.errors import DataError
from raydr.evaluation.config import FuseConfig
from raydr.store.artifact import Artifact

NUM_QUERIES = 24
QUERY_IDS = [f"q{at:02d}" for at in range(NUM_QUERIES)]
PASSAGES = [f"p{at:02d}" for at in range(NUM_QUERIES)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("fuse")
    corpus = make_corpus(
        folder / "corpus", [{"passage_id": passage, "text": f"text {passage}"} for passage in PASSAGES]
    )
    queries = [{"query_id": query_id, "text": query_id} for query_id in QUERY_IDS]
    pairs = [
        {"query_id": query_id, "passage_id": passage} for query_id, passage in zip(QUERY_IDS, PASSAGES, strict=True)
    ]
    return make_dataset(folder / "dataset", corpus, {"queries": {"dev": queries}, "qrels": {"dev": pairs}}).artifact


def runs_of(folder: Path, queries_per_part: tuple[int, int] = (5, 9)) -> dict[str, Artifact]:
    """Of a system that knows the even queries and one that knows the others."""
    rng = np.random.default_rng(0)
    runs = {}
    for number, (name, size) in enumerate(zip(("even", "odd"), queries_per_part, strict=True)):
        rows = []
        for at, query_id in enumerate(QUERY_IDS):
            others = [PASSAGES[place] for place in rng.permutation(NUM_QUERIES)[:8] if place != at]
            order = [PASSAGES[at], *others] if at % 2 == number else [*others, PASSAGES[at]]
            rows += [(query_id, passage, float(20 - rank)) for rank, passage in enumerate(order)]
        runs[name] = Artifact.open(make_run(folder / f"{name}-{size}", rows, size), KIND)
    return runs


def refuse(dataset: Artifact, runs: dict[str, Artifact], output: Path, pool: Pool | None = None) -> Artifact:
    settings = FuseConfig(systems=list(runs))
    return make(output, KIND, fuse, dataset, runs, None, pool=pool, settings=settings, split="dev")


def rows_of(run: Artifact) -> list[dict[str, Any]]:
    return [row for part in Run(run).parts() for row in part.to_pylist()]


def is_right(row: dict[str, Any]) -> bool:
    return bool(row["query_id"][1:] == row["passage_id"][1:])


@pytest.mark.invariant
def test_neither_pools_nor_parts_nor_an_interruption_change_it(
    dataset: Artifact, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = runs_of(tmp_path / "a")
    whole = refuse(dataset, runs, tmp_path / "whole")
    assert [row["query_id"] for row in rows_of(whole) if row["rank"] == 1] == QUERY_IDS
    other = refuse(dataset, runs_of(tmp_path / "b", (24, 2)), tmp_path / "other", pool)
    assert other.manifest.parts == whole.manifest.parts
    monkeypatch.setattr("raydr.artefacts.fused_run.QUERIES_PER_PART", 7)
    small = refuse(dataset, runs, tmp_path / "small")
    assert len(small.parts()) == 4
    assert rows_of(small) == rows_of(whole)
    interrupt(small, small.parts()[1])
    assert refuse(dataset, runs, tmp_path / "small").manifest.parts == small.manifest.parts


def test_weights_of_a_split_are_those_that_are_best_there(dataset: Artifact, tmp_path: Path) -> None:
    runs = runs_of(tmp_path)
    settings = FuseConfig(systems=list(runs), by="scores", weights="dev", measure="RR@10")
    chosen = make(
        tmp_path / "weights", WEIGHTS, choose_fusion_weights, dataset, runs, settings=settings, split="dev"
    )  # fmt: skip
    tried = {tuple(mixture["weights"]): mixture["mean"] for mixture in chosen.folder.read_json("tried.json")["tried"]}
    assert len(tried) == 11
    assert chosen.info["value"] == max(tried.values()) == tried[tuple(chosen.info["weights"])]
    # Alone a run has no passages of the other, which share its last value of 0 in a mixture.
    alone = {name: np.mean([1 / row["rank"] for row in rows_of(run) if is_right(row)]) for name, run in runs.items()}
    assert chosen.info["alone"] == pytest.approx(alone)
    assert chosen.info["value"] > max(chosen.info["alone"].values())
    fused = make(tmp_path / "fused", KIND, fuse, dataset, runs, chosen, settings=settings, split="dev")
    assert fused.info["weights"] == dict(zip(runs, chosen.info["weights"], strict=True))
    ranks = [row["rank"] for row in rows_of(fused) if is_right(row)]
    assert np.mean(1.0 / np.array(ranks)) == pytest.approx(chosen.info["value"], abs=0.02)


def test_a_run_of_other_queries_is_named_and_one_of_fewer_said(dataset: Artifact, tmp_path: Path, capsys: Any) -> None:
    runs = runs_of(tmp_path)
    strangers = Artifact.open(make_run(tmp_path / "strangers", [("x9", "p01", 1.0)]), KIND)
    message = r"the run of 'lucene' at .*strangers has no passage for any query of split 'dev'"
    with pytest.raises(DataError, match=message):
        refuse(dataset, {"even": runs["even"], "lucene": strangers}, tmp_path / "out")
    with pytest.raises(DataError, match=message):
        make(
            tmp_path / "w", WEIGHTS, choose_fusion_weights, dataset, {"even": runs["even"], "lucene": strangers},
            settings=FuseConfig(systems=["even", "lucene"], weights="dev"), split="dev",
        )  # fmt: skip
    few = Artifact.open(make_run(tmp_path / "few", [("q01", "p01", 1.0), ("x9", "p01", 1.0)]), KIND)
    fused = refuse(dataset, {"even": runs["even"], "few": few}, tmp_path / "fewer")
    assert len({row["query_id"] for row in rows_of(fused)}) == NUM_QUERIES
    assert "few: 23 of 24 queries have no result in its run" in " ".join(capsys.readouterr().err.split())
