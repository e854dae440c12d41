"""What a corpus and a data set are made from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_runs import recipe_of, small_run

from raydr.config.run import RunConfig


@pytest.mark.invariant
@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("file", "line", "changed"),
    [
        ("corpus.jsonl", '{"_id": "new", "text": "one more"}\n', {"corpus", "dataset"}),
        ("queries.jsonl", '{"_id": "new", "text": "one more"}\n', {"dataset"}),
        ("qrels/train.tsv", "q00\tp007\t1\n", {"dataset"}),
    ],
    ids=["passages", "queries", "judgments"],
)
def test_a_changed_file_changes_what_is_read_from_it_and_a_moved_one_nothing(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, file: str, line: str, changed: set[str]
) -> None:
    def keys(folder: Path) -> dict[str, str]:
        recipe = recipe_of(RunConfig.parse(small_run(folder, tiny_checkpoint, tmp_path / "w")))
        return {"corpus": recipe.corpus().key, "dataset": recipe.dataset().key}

    before = keys(beir_folder)
    moved = Path(shutil.copytree(beir_folder, tmp_path / "moved"))
    assert keys(moved) == before
    with (moved / file).open("a") as written:
        written.write(line)
    after = keys(moved)
    assert {kind for kind in before if before[kind] != after[kind]} == changed
