"""What vectors and runs of a model are made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

from raydr.config.run import RunConfig
from raydr.graph.recipe import Recipe

pytestmark = [pytest.mark.invariant, pytest.mark.usefixtures("here")]


@pytest.fixture
def keys(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    """By kind of node, of a run whose sections are changed; without candidates, whose keys would change along."""

    def found(**sections: Any) -> dict[str, str]:
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

    return found


@pytest.mark.parametrize(
    ("sections", "changed"),
    [
        ({"search": {"top_k": 7}}, {"run"}),
        ({"index": {"factory": "SQfp16"}}, {"index", "run"}),
        ({"encode": {"token_budget": 2048}}, {"passages", "index", "queries", "run"}),
        ({"encode": {"dtype": "bfloat16"}}, {"passages", "index", "queries", "run"}),
        ({"search": {"max_actors": 2}}, set()),
    ],
    ids=["depth", "factory", "batches", "arithmetic", "actors"],
)
def test_each_setting_reaches_what_is_made_with_it(keys: Any, sections: dict[str, Any], changed: set[str]) -> None:
    before, after = keys(), keys(**sections)
    assert {kind for kind in before if before[kind] != after[kind]} == changed
