"""The papers' figures: complete, in the words of raydr's evaluation, and compared as they say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from raydr.config.run import RunConfig
from raydr.evaluation.answer_match import answer_label
from raydr.evaluation.comparison import MeasureSummary
from raydr.evaluation.linking import ACCURACY, MACRO_ACCURACY
from raydr.evaluation.metrics import parse_measures

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(JOBS))
    import published as module

    yield module
    del sys.modules["published"]


def recipes() -> set[str]:
    return {path.stem for path in (JOBS / "recipes").glob("*.yaml")} - {"published"}


def test_every_recipe_has_its_figure_or_says_that_there_is_none(published: ModuleType) -> None:
    assert set(published.Published.load().recipes) == recipes()


def test_the_figures_are_ones_that_the_recipe_measures(published: ModuleType) -> None:
    loaded = published.Published.load()
    for name, row in loaded.recipes.items():
        if row == "none published":
            continue
        config = RunConfig.load(JOBS / "recipes" / f"{name}.yaml")
        measured = {answer_label(cutoff) for cutoff in config.evaluate.answer_cutoffs}
        measured |= set(parse_measures(config.evaluate.measures))
        measured |= {ACCURACY, MACRO_ACCURACY} if config.evaluate.linking_depth else set()
        rows = [*row.arms.values()] or [row.figures]
        assert set(row.arms) <= set(config.refresh_arms())
        assert all(figures and set(figures) <= measured for figures in rows)
        assert row.definition in loaded.definitions
        # Two standard errors of a share p over n questions: n = 3,610, 11,313, 2,700, 1,100; 10,000 and 4,784 mentions.
        assert 0.7 <= row.tolerance <= 3.2
        assert all(20 < figure < 95 for figures in rows for figure in figures.values())


def test_readme_and_figures_agree(published: ModuleType) -> None:
    readme = (JOBS / "README.md").read_text()
    for name, row in published.Published.load().recipes.items():
        [line] = [line for line in readme.splitlines() if line.startswith(f"| [{name}](recipes/{name}.yaml)")]
        shown = [cell.strip() for cell in line.split("|")]
        if row == "none published":
            assert "none published" in shown
        else:
            figures = "/".join(
                f"{figure:g}" for figures in [*row.arms.values()] or [row.figures] for figure in figures.values()
            )
            assert any(figures in cell for cell in shown), (name, figures)
            assert f"±{row.tolerance:g}" in shown


def test_a_run_is_compared_with_the_paper(
    published: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def measured(twenty: float) -> list[MeasureSummary]:
        values = {answer_label(20): twenty, answer_label(100): 0.853}
        return [
            MeasureSummary("trained", label, mean, mean - 0.01, mean + 0.01, 3610) for label, mean in values.items()
        ]

    recipe = str(JOBS / "recipes" / "nq-dpr.yaml")
    published.compare_with_published(recipe, measured(0.70), "trained")
    printed = capsys.readouterr().err
    assert "Wang et al. (AAAI 2024), table 4" in printed
    rows = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines() if "accuracy@" in line]
    assert [(row[2], row[4]) for row in rows] == [("78.4", "no"), ("85.4", "yes")]
    published.compare_with_published(str(JOBS / "recipes" / "nq-sieve.yaml"), [], "trained")
    assert "no paper at hand reports this row" in capsys.readouterr().err
    linked = [MeasureSummary("round-4", "recall@64", 0.8450, 0.84, 0.85, 10_000)]
    published.compare_with_published(str(JOBS / "recipes" / "zeshel-dual.yaml"), linked, "round-4", "hard")
    printed = capsys.readouterr().err
    assert "dual encoder, hard" in printed
    [row] = [[cell.strip() for cell in line.split("│")] for line in printed.splitlines() if "recall@64" in line]
    assert (row[2], row[4]) == ("84.9", "yes")
    published.compare_with_published(str(tmp_path / "nq-dpr.yaml"), measured(0.7), "trained")
    assert capsys.readouterr().err == ""
