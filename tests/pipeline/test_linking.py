"""Entity linking as a run: every mention with the entities of its world, from mining to the reranked run."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_linking import make_worlds
from small_runs import small_run

import raydr
from raydr.artefacts.evaluation import load_result
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.data.dataset import read_split
from raydr.errors import ConfigError


@pytest.mark.invariant
def test_a_run_of_linking_stays_in_its_worlds(tiny_checkpoint: str, tmp_path: Path) -> None:
    folder = make_worlds(tmp_path, {"train": "ab", "val": "cd"}, mentions=12, worlds="abcd")
    config = RunConfig.parse(
        small_run(
            folder, tiny_checkpoint, tmp_path / "w",
            data={"reader": {"name": "zeshel", "path": str(folder)}, "dev_split": "val", "test_splits": ["val"]},
            train={"num_epochs": 1, "sampler": {"name": "mixed"}, "num_hard_negatives": 2},
            ranker={
                "model": {"checkpoint": tiny_checkpoint, "max_length": 64}, "num_hard_negatives": 2, "batch_size": 8,
            },
            evaluate={
                "measures": ["R@5", "R@30"], "linking_depth": 5, "answer_cutoffs": [], "bootstrap_samples": 100,
                "permutations": 100,
            },
            search={"top_k": 200}, rerank={"depth": 5},
        )
    )  # fmt: skip
    systems = ["bm25", "trained", "trained+ranker", "trained@split", "trained@all"]
    [evaluation] = raydr.evaluate(config, systems)
    places = Places.of(config.workdir)
    depths = {"trained": 30, "trained+ranker": 5, "trained@split": 60, "trained@all": 120}
    for system, depth in depths.items():
        retrieved: dict[str, list[str]] = {}
        for part in Run(places.open(f"runs/val/{system}", "run")).parts():
            for row in part.to_pylist():
                retrieved.setdefault(row["query_id"], []).append(row["passage_id"])
        assert {len(ids) for ids in retrieved.values()} == {depth}
        for query_id, ids in retrieved.items():
            own = {"trained@split": "cd", "trained@all": "abcd"}.get(system, query_id[2])
            assert {own_id[0] for own_id in ids} <= set(own)
    mined = read_split(places.open("negatives/bm25-train", "negatives"), "negatives", "train").to_pylist()
    assert mined
    assert all(row["passage_id"][0] == row["query_id"][2] for row in mined)
    result = load_result(evaluation)
    means = {(summary.system, summary.measure): summary.mean for summary in result.summaries}
    # The whole world is found, and what is reranked is what was found first.
    assert means["trained", "recall@30"] == 1
    assert means["trained+ranker", "recall@5"] == means["trained", "recall@5"]
    assert means["trained@all", "recall@5"] <= means["trained", "recall@5"]
    of_worlds = {(group.group, group.num_queries) for group in result.groups if group.grouping == "partition"}
    assert {("c", 12), ("d", 12)} <= of_worlds

    hits = raydr.search_text(config, "red river", top_k=40, partition="b")
    assert {hit.passage_id for hit in hits} == {f"b{at}" for at in range(30)}
    with pytest.raises(ConfigError, match="has no partition 'z': it has a, b, c, d"):
        raydr.search_text(config, "red river", partition="z")
