"""What people see: messages, tables and progress bars on standard error, so that results can be piped."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as ProgressTask
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

#: Seconds between two lines of progress where there is no bar.
_BETWEEN_LINES_S = 30.0
#: Columns of a line that goes into a pipe or a file: it is not broken.
_WHOLE_LINE = 100_000
#: Control characters other than tab and newline, those that turn the direction of writing, and halves of characters: in
#: a text they could clear the screen, write over what is there, show it in another order, or end the program.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (
        *range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000),
    )
    if code not in (9, 10)
}  # fmt: skip


class _SafeConsole(Console):
    """A console that shows texts, whoever wrote them, without what a terminal would obey."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


console = _SafeConsole(stderr=True, highlight=False, soft_wrap=True)


def output() -> Console:
    """Where texts that were asked for are printed: standard output, wrapped on a terminal."""
    return _SafeConsole(highlight=False, width=None if sys.stdout.isatty() else _WHOLE_LINE)


def print_indented(out: Console, text: str | Text, columns: int, max_chars: int | None = None) -> None:
    """Print a text under its heading: broken between words, without spaces behind the lines.

    Args:
        out: where.
        text: of any number of lines.
        columns: in front of each line.
        max_chars: of the text; what comes after them is left out.
    """
    if isinstance(text, str):
        text = Text(shown(text if max_chars is None or len(text) <= max_chars else f"{text[:max_chars]}..."))
    for line in text.wrap(out, max(20, out.width - columns)):
        line.rstrip()
        out.print(Text(" " * columns * bool(line)) + line)


def shown(text: str) -> str:
    """Text from data as a terminal may have it.

    >>> shown("a\\x1b[2Jb")
    'a\N{REPLACEMENT CHARACTER}[2Jb'
    """
    return text.translate(_CONTROLS)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number with its noun, in the plural where it takes one.

    >>> counted(1, "shard"), counted(2_000, "shard"), counted(0, "query", "queries")
    ('1 shard', '2,000 shards', 'no queries')
    """
    words = noun if number == 1 else plural or f"{noun}s"
    return f"{number:,} {words}" if number else f"no {words}"


def duration(seconds: float) -> str:
    """
    >>> duration(7.25), duration(100), duration(3661), duration(90 * 3600)
    ('7.2 s', '1 min 40 s', '1 h 01 min', '90 h 00 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def say(message: str) -> None:
    """One line about what is being done or decided, with its reason."""
    console.print(message, markup=False)


def be_verbose() -> None:
    """From now on details are said too."""
    _Verbosity.details = True


class _Verbosity:
    details = False


def detail(message: str) -> None:
    """One line for those who want to know more: shown with ``-v``."""
    if _Verbosity.details:
        say(message)


def prose(message: str, style: str = "") -> None:
    """Sentences: on a terminal broken between words, elsewhere whole; no path is cut."""
    width = console.width if console.is_terminal else _WHOLE_LINE
    for line in message.split("\n"):
        whole = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        console.print(whole, style=style, markup=False)


def warn(message: str) -> None:
    prose(f"warning: {message}", "yellow")


def show_table(title: str, columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table; numbers are right-aligned, also where some rows have none."""
    listed = [[str(cell) for cell in row] for row in rows]
    by_column = list(zip(columns, *listed, strict=True))
    longest_words = [max(map(cell_len, " ".join(cells).split()), default=0) for cells in by_column]
    left = console.width - 3 * len(columns) - 1
    if sum(longest_words) > left:
        # Words and paths would be cut in two: a block a row, a line a cell.
        console.print(title, style="bold", markup=False)
        for row in listed:
            show_summary(f"{columns[0]} {shown(row[0])}", dict(zip(columns[1:], row[1:], strict=True)))
        return
    widths = [max(map(cell_len, cells)) for cells in by_column]
    while sum(widths) > left:
        widths[max(range(len(widths)), key=lambda at: (widths[at] > longest_words[at]) * widths[at])] -= 1
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for (column, *cells), width in zip(by_column, widths, strict=True):
        filled = [cell for cell in cells if cell]
        numeric = bool(filled) and all(map(_is_number, filled))
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", width=width)
    for row in listed:
        table.add_row(*(Text(shown(cell)) for cell in row))
    console.print(table)


def show_summary(title: str, facts: Mapping[str, Any]) -> None:
    """What ends a command: what was done and where the result is, a line a fact, so that no path is broken."""
    console.print(title, style="bold", markup=False)
    width = max(map(len, facts), default=0)
    for key, value in facts.items():
        say(f"  {key:<{width}}  {shown(str(value))}")


def _is_number(cell: str) -> bool:
    return cell.lstrip("+-").replace(",", "").replace(".", "").replace("%", "").strip().isdigit()


class _RateColumn(TextColumn):
    """Finished items a second."""

    def __init__(self, unit: str) -> None:
        super().__init__("")
        self.unit = unit

    def render(self, task: ProgressTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f} {self.unit}/s" if speed else "")


@dataclass
class ProgressBar:
    """Handle of a running bar."""

    progress: Progress
    task: TaskID
    unit: str
    #: When it was last shown, by the clock of :func:`time.monotonic`.
    shown_at: float

    def advance(self, num: float = 1) -> None:
        self.progress.advance(self.task, num)
        self._tell()

    def set(self, completed: float, total: float) -> None:
        self.progress.update(self.task, completed=completed, total=total)
        self._tell()

    def _tell(self) -> None:
        """A line now and then where there is no bar."""
        now = time.monotonic()
        if not self.progress.disable or now - self.shown_at < _BETWEEN_LINES_S:
            return
        self.shown_at = now
        task = self.progress.tasks[0]
        line = f"{task.description}: {task.completed:,.0f} of {task.total:,.0f} {self.unit}"
        line += f", {task.speed:,.1f} {self.unit}/s" if task.speed else ""
        say(line + (f", {duration(task.time_remaining)} left" if task.time_remaining else ""))

    def describe(self, description: str) -> None:
        self.progress.update(self.task, description=description)


@contextmanager
def progress_bar(description: str, total: float, unit: str) -> Iterator[ProgressBar]:
    """A bar with rate and ETA on a terminal; in CI and where output is redirected a line twice a minute."""
    quiet = bool(os.environ.get("CI")) or not sys.stderr.isatty()
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _RateColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet,
    )
    with progress:
        yield ProgressBar(progress, progress.add_task(description, total=total), unit, time.monotonic())
