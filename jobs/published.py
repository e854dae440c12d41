"""Published figures of the recipes, and their comparison with a run."""

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
    """A row of a paper's table."""

    source: str
    definition: str
    """Key of :attr:`Published.definitions`."""

    tolerance: float
    """Largest difference, in points, that counts as agreement."""

    figures: dict[str, float] = {}
    """Figures in percent, by the label of the measure."""

    arms: dict[str, dict[str, float]] = {}
    """Figures of each arm of a refresh, in place of ``figures``."""


class Published(Config):
    """The file of published figures."""

    definitions: dict[str, str]
    """Definitions of the figures, by name."""

    recipes: dict[str, PublishedRow | Literal["none published"]]

    @classmethod
    def load(cls) -> Published:
        return cls.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def compare_with_published(config_file: str, measured: Sequence[MeasureSummary], system: str, arm: str = "") -> None:
    """Compare a system, or an arm of a refresh, with the paper's figures if the config is a recipe."""
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
