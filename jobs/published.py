"""The papers' figures beside the recipes, and a run's own beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import yaml

from raydr.component import Config
from raydr.config.files import CONFIGS, located
from raydr.console import say, show_table
from raydr.evaluation.comparison import MeasureSummary

RECIPES = Path(__file__).with_name("recipes")
FILE = RECIPES / "published.yaml"


class PublishedRow(Config):
    """One row of a paper's table."""

    source: str
    definition: str
    """Key of :attr:`Published.definitions`."""

    tolerance: float
    """Points that a run may differ by and still agree."""

    figures: dict[str, float] = {}
    """In percent, by the label of the measure."""

    arms: dict[str, dict[str, float]] = {}
    """In place of these, the figures of each arm of a refresh."""


class Published(Config):
    """The file of published figures."""

    definitions: dict[str, str]
    """What a figure counts, by name."""

    recipes: dict[str, PublishedRow | Literal["none published"]]

    @classmethod
    def load(cls) -> Published:
        return cls.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def compare_with_published(config_file: str, measured: Sequence[MeasureSummary], system: str, arm: str = "") -> None:
    """If the config is a recipe, show the paper's figures beside those of a system, or of an arm of a refresh."""
    path = located(config_file, CONFIGS, "config file").resolve()
    if path.parent != RECIPES.resolve():
        return
    published = Published.load()
    row = published.recipes.get(path.stem, "none published")
    if row == "none published":
        say(f"{path.stem}: no paper at hand reports this row")
        return
    summaries = {summary.measure: summary for summary in measured if summary.system == system}
    rows = []
    for label, figure in row.arms.get(arm, row.figures).items():
        own = summaries.get(label)
        if own is None:
            rows.append([label, f"{figure:.1f}", "not measured", ""])
            continue
        agrees = abs(100 * own.mean - figure) <= row.tolerance
        interval = f"{100 * own.mean:.1f} [{100 * own.low:.1f}, {100 * own.high:.1f}]"
        rows.append([label, f"{figure:.1f}", interval, "yes" if agrees else "no"])
    title = f"{row.source}, {arm}" if arm in row.arms else row.source
    show_table(title, ["measure", "published", "here", f"within {row.tolerance} points"], rows)
    say(published.definitions[row.definition])
