"""The lists of mutants fit today's tree, and planting them tells good tests from bad ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants.planting import (
    Mutant,
    NotPlantedError,
    Result,
    as_table,
    check_killers,
    copy_tree,
    load_mutants,
    nearest_tests,
    planted,
    try_mutant,
)

ROOT = Path(__file__).parents[2]
MUTANTS = load_mutants(Path(__file__).parent)
AREAS = {"losses", "training", "masks", "identity", "resume", "search", "readers", "verdicts", "detectors", "sampling"}


def test_every_area_that_a_user_trusts_has_mutants() -> None:
    assert {mutant.area for mutant in MUTANTS} == AREAS | {"evaluation"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_can_still_be_planted(mutant: Mutant, tmp_path: Path) -> None:
    source = (ROOT / mutant.file).read_text(encoding="utf-8")
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    (tmp_path / mutant.file).write_text(source, encoding="utf-8")
    with planted(tmp_path, mutant):
        assert (tmp_path / mutant.file).read_text(encoding="utf-8") != source
    assert (tmp_path / mutant.file).read_text(encoding="utf-8") == source
    for test in nearest_tests(ROOT, mutant):
        file, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of two functions of which one is tested, and a test that fails by itself."""
    source, target = tmp_path / "source", tmp_path / "tree"
    files = {
        "raydr/__init__.py": "",
        "raydr/sums/__init__.py": "",
        "raydr/sums/add.py": "def add(a, b):\n    return a + b\n",
        "raydr/sums/less.py": "def less(a, b):\n    return a - b\n",
        "tests/sums/test_add.py": "from raydr.sums.add import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
        "pytest.ini": "[pytest]\naddopts = --doctest-modules\n",
    }
    for name, text in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    subprocess.run(["git", "init", "--quiet", str(source)], check=True)
    copy_tree(source, target)
    return target


def made(file: str, text: str, becomes: str) -> Mutant:
    return Mutant("made", "one", "something", file, text, becomes)


def test_what_a_test_sees_is_killed_and_the_rest_survives(tree: Path) -> None:
    killed = try_mutant(tree, made("raydr/sums/add.py", "a + b", "a - b"))
    assert (killed.outcome, killed.by) == ("killed", "tests/sums/test_add.py::test_add")
    assert check_killers(tree, [killed]) == [killed]
    assert try_mutant(tree, made("raydr/sums/less.py", "a - b", "a + b")).outcome == "survived"
    assert "a + b" in (tree / "raydr/sums/add.py").read_text()


def test_a_test_that_fails_anyhow_proves_nothing(tree: Path) -> None:
    (tree / "tests/sums/test_less.py").write_text("def test_less():\n    assert False\n")
    trial = try_mutant(tree, made("raydr/sums/less.py", "a - b", "a + b"))
    assert trial.outcome == "killed"
    assert [result.outcome for result in check_killers(tree, [trial])] == ["unclear"]


@pytest.mark.parametrize(
    ("text", "becomes", "why"), [("c", "d", "0 times"), ("a", "d", "3 times"), ("a + b", "a +", "no Py")]
)
def test_what_cannot_be_planted_is_said(tree: Path, text: str, becomes: str, why: str) -> None:
    mutant = made("raydr/sums/add.py", text, becomes)
    with pytest.raises(NotPlantedError, match=why), planted(tree, mutant):
        pass
    trial = try_mutant(tree, mutant)
    assert trial.outcome == "not planted"
    assert why in trial.by


def test_the_table_counts_by_area() -> None:
    mutant = made("raydr/sums/add.py", "a + b", "a - b")
    results = [Result(mutant, "killed", "tests/sums/test_add.py::test_add"), Result(mutant, "survived")]
    assert as_table(results).splitlines()[2:] == ["| made | 2 | 1 |", "| all | 2 | 1 |"]
