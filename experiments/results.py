"""Results of an experiment: tables for the console and as Markdown, pictures, and all figures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raydr.config.run import RunConfig
from raydr.console import say, show_table


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """
        >>> print(Table("Scores", ["arm", "R@1"], [["nce", "0.5"]]).markdown())
        **Scores**
        <BLANKLINE>
        | arm | R@1 |
        |---|---|
        | nce | 0.5 |
        """
        lines = [f"**{self.title}**", "", _row(self.columns), "|" + "---|" * len(self.columns)]
        return "\n".join(lines + [_row(row) for row in self.rows])


def write_results(
    out: Path,
    settings: RunConfig | Mapping[str, Any],
    tables: Sequence[Table],
    figures: Mapping[str, Any],
    pictures: Mapping[str, bytes] | None = None,
) -> None:
    """Print the tables, and write ``results.md``, ``results.json`` and the pictures.

    Args:
        out: folder of the files.
        settings: of the run, or of the command.
        tables: to print and write, in order.
        figures: JSON values, by name.
        pictures: PNG, by file name.
    """
    for table in tables:
        show_table(table.title, list(table.columns), table.rows)
    out.mkdir(parents=True, exist_ok=True)
    (out / "results.md").write_text("\n\n".join(table.markdown() for table in tables) + "\n", encoding="utf-8")
    shown = settings.model_dump(mode="json") if isinstance(settings, RunConfig) else dict(settings)
    pictures = pictures or {}
    written = {"config": shown, **figures}
    (out / "results.json").write_text(json.dumps(written, indent=1, default=str) + "\n", encoding="utf-8")
    for name, png in pictures.items():
        (out / name).write_bytes(png)
    say(f"results: {', '.join([f'{out}/results.md', 'results.json', *pictures])}")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
