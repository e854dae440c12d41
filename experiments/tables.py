"""Tables of an experiment: on the console, and as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raydr.runtime.console import show_table


@dataclass(frozen=True)
class Table:
    """A title, column names and rows of text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def show(self) -> None:
        """Print it."""
        show_table(self.title, list(self.columns), self.rows)

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


def write_markdown(tables: Sequence[Table], path: Path) -> None:
    """All tables in one file."""
    path.write_text("\n\n".join(table.markdown() for table in tables) + "\n", encoding="utf-8")


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
