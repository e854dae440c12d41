"""What vectors and runs of a model are made from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.pipeline.recipe import Recipe

pytestmark = [pytest.mark.invariant, pytest.mark.usefixtures("here")]


@pytest.fixture
def keys(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    """By kind of node, of a run whose sections are changed; without candidates, whose keys would change along."""

    def keys_of(**sections: Any) -> dict[str, str]:
        plain = {"negatives": None, "train": {"num_hard_negatives": 0}}
        run = small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **plain, **sections)
        recipe: Recipe = recipe_of(RunConfig.parse(run))
        search = recipe.search("test")
        index, queries = search.inputs["index"], search.inputs["queries"]
        return {
            "passages": index.inputs["embeddings"].key,
            "index": index.key,
            "queries": queries.key,
            "run": search.key,
        }

    return keys_of


@pytest.mark.parametrize(
    ("sections", "changed"),
    [
        ({"search": {"top_k": 7}}, {"run"}),
        ({"index": {"factory": "SQfp16"}}, {"index", "run"}),
        ({"encode": {"token_budget": 2048}}, {"passages", "index", "queries", "run"}),
        ({"encode": {"dtype": "bfloat16"}}, {"passages", "index", "queries", "run"}),
        ({"search": {"max_actors": 2}}, set()),
        ({"partition": {"search": "split"}}, {"run"}),
        ({"partition": {"negatives": "split"}}, set()),
    ],
    ids=["depth", "factory", "batches", "arithmetic", "actors", "partitions", "partitions of negatives"],
)
def test_each_setting_reaches_what_is_made_with_it(keys: Any, sections: dict[str, Any], changed: set[str]) -> None:
    before, after = keys(), keys(**sections)
    assert {kind for kind in before if before[kind] != after[kind]} == changed


@pytest.mark.parametrize(
    ("settings", "demand"),
    [
        ({}, {"CPU": math.inf}),
        # How many shards there will be is not known.
        ({"cpus_per_actor": 4, "device": "cpu"}, {"CPU": math.inf}),
        # Nor whether there are GPUs.
        ({"cpus_per_actor": 4, "max_actors": 3}, {"CPU": math.inf}),
        ({"cpus_per_actor": 4, "max_actors": 3, "device": "cpu"}, {"CPU": 12.0}),
        ({"cpus_per_actor": 4, "max_actors": 3, "device": "cuda"}, {"CPU": 12.0, "GPU": 3.0}),
    ],
)
def test_two_searches_never_hold_a_part_of_the_cluster_each(
    settings: dict[str, Any], demand: dict[str, float], beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    """Each would wait for the rest: one whose actors nobody can count runs alone."""
    run = small_run(beir_folder, tiny_checkpoint, tmp_path, search=settings)
    assert recipe_of(RunConfig.parse(run)).search("test").demand == demand


def test_a_system_is_searched_in_other_partitions_than_the_configs(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    recipe = recipe_of(RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w")))
    for system in ("bm25", "trained"):
        own, as_configured, everywhere = (recipe.search("test", f"{system}{where}") for where in ("@own", "", "@all"))
        assert own.key == as_configured.key != everywhere.key
        assert own.inputs.keys() == everywhere.inputs.keys()
        assert all(node.key == everywhere.inputs[role].key for role, node in own.inputs.items())
        assert recipe.names[f"runs/test/{system}@all"] is everywhere
    # Runs over the training split are for mining.
    assert recipe.search("train", "bm25").settings.get("scope", "own") == recipe.config.partition.negatives
    with pytest.raises(ConfigError, match="unknown scope 'world'; expected after @: own, split, all"):
        recipe.search("test", "bm25@world")
