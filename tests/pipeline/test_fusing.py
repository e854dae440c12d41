"""A fusion as a system of a run: what it is made from, what evaluate makes of it, and systems that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

import raydr
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ArtifactError


@pytest.fixture
def configure(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    def parse(**fuse: Any) -> RunConfig:
        plain: dict[str, Any] = {
            "negatives": None,
            "train": {"num_hard_negatives": 0},
            "evaluate": {"measures": ["RR@10", "R@5"], "answer_cutoffs": [], "permutations": 100},
            "fuse": {"systems": ["bm25", "untrained"], "weights": "dev", **fuse},
        }
        return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **plain))

    return parse


def test_a_fusion_is_compared_with_its_systems_and_chosen_without_the_test_split(
    configure: Any, tmp_path: Path
) -> None:
    config = configure()
    [made] = raydr.evaluate(config, system=["bm25", "untrained", "fused"])
    assert made.info["systems"] == ["bm25", "untrained", "fused"]
    fused = Places.of(config.workdir).open("runs/test/fused", "run")
    assert set(fused.info["weights"]) == {"bm25", "untrained"}
    node = recipe_of(config).search("test", "fused")
    weights = node.inputs["weights"]
    assert {run.label.rpartition("-")[2] for name, run in weights.inputs.items() if name.startswith("runs/")} == {"dev"}
    # A text finds what its run has.
    query = Dataset(Places.of(config.workdir).open("dataset", "dataset")).queries("test").to_pylist()[3]
    ranked = [row for part in Run(fused).parts() for row in part.to_pylist() if row["query_id"] == query["query_id"]]
    hits = raydr.search_text(config, query["text"], "fused", 5)
    assert [(hit.rank, hit.passage_id) for hit in hits] == [(row["rank"], row["passage_id"]) for row in ranked[:5]]
    assert [hit.score for hit in hits] == pytest.approx([row["score"] for row in ranked[:5]], abs=1e-3)
    # Nothing is made again, and the verb writes the run for others.
    [again] = raydr.fuse(config, trec=str(tmp_path / "fused.trec"))
    assert again.fingerprint == fused.fingerprint
    first = (tmp_path / "fused.trec").read_text().splitlines()[0].split()
    assert (first[3], first[5]) == ("1", "fused")


@pytest.mark.usefixtures("here")
def test_every_setting_of_a_fusion_is_in_its_key(configure: Any) -> None:
    def key(**changes: Any) -> str:
        return recipe_of(configure(**changes)).search("test", "fused").key

    keys = {
        key(),
        key(by="scores"),
        key(rank_offset=5),
        key(measure="R@5"),
        key(weights="equal"),
        key(weights=[0.3, 0.7]),
        key(systems=["untrained", "bm25"]),
    }
    assert len(keys) == 7
    assert key(by="scores", rank_offset=5) == key(by="scores")
    assert key(weights="equal", measure="R@5") == key(weights="equal")


def test_a_system_that_is_not_there_is_named(configure: Any) -> None:
    message = r"fuse.systems: 'lucene' has no run over split 'dev'.*import-run CONFIG FILE --system lucene --split dev"
    with pytest.raises(ArtifactError, match=message):
        raydr.fuse(configure(systems=["bm25", "lucene"]))
