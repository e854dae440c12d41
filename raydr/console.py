"""Messages, tables and progress bars on standard error, so that results can be piped."""

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

#: Seconds between two progress lines if there is no bar.
_BETWEEN_LINES_S = 30.0
#: Width of lines in a pipe or file, which are not wrapped.
_WHOLE_LINE = 100_000
#: Control characters other than tab and newline, bidirectional overrides and surrogates: they could clear the screen,
#: overwrite or reorder text, or crash the program.
_CONTROLS = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (
        *range(32), *range(127, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000),
    )
    if code not in (9, 10)
}  # fmt: skip


class _SafeConsole(Console):
    """Console that removes terminal control codes from texts of any origin."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


console = _SafeConsole(stderr=True, highlight=False, soft_wrap=True)
#: Prints warnings while ``console`` is quiet.
_warnings = _SafeConsole(stderr=True, highlight=False, soft_wrap=True)


def output() -> Console:
    """Return the console for results: standard output, wrapped on a terminal."""
    return _SafeConsole(highlight=False, width=None if sys.stdout.isatty() else _WHOLE_LINE)


def print_indented(out: Console, text: str | Text, columns: int, max_chars: int | None = None) -> None:
    """Print a text below its heading, wrapped between words, without trailing spaces.

    Args:
        out: console.
        text: text with any number of lines.
        columns: indentation.
        max_chars: length to truncate the text to.
    """
    if isinstance(text, str):
        text = Text(shown(text if max_chars is None or len(text) <= max_chars else f"{text[:max_chars]}..."))
    for line in text.wrap(out, max(20, out.width - columns)):
        line.rstrip()
        out.print(Text(" " * columns * bool(line)) + line)


def shown(text: str) -> str:
    """Return a text without terminal control codes.

    >>> shown("a\\x1b[2Jb")
    'a\N{REPLACEMENT CHARACTER}[2Jb'
    """
    return text.translate(_CONTROLS)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun, in the plural if needed.

    >>> counted(1, "shard"), counted(2_000, "shard"), counted(0, "query", "queries")
    ('1 shard', '2,000 shards', 'no queries')
    """
    words = noun if number == 1 else plural or f"{noun}s"
    return f"{number:,} {words}" if number else f"no {words}"


def percent(share: float) -> str:
    """Format a share in percent, without rounding it to 100.

    >>> percent(0.95), percent(0.995), percent(0.07)
    ('95%', '99.5%', '7%')
    """
    return f"{100 * share:g}%"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(7.25), duration(100), duration(3661), duration(90 * 3600)
    ('7.2 s', '1 min 40 s', '1 h 01 min', '90 h 00 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def say(message: str) -> None:
    """Print a line on an action or decision, with its reason."""
    console.print(message, markup=False)


def be_verbose() -> None:
    """Show details from now on."""
    _Verbosity.details = True


@contextmanager
def only_warnings() -> Iterator[None]:
    """Print nothing but warnings inside the block, in all threads of the process."""
    _Verbosity.quiet_blocks += 1
    console.quiet = True
    try:
        yield
    finally:
        _Verbosity.quiet_blocks -= 1
        console.quiet = _Verbosity.quiet_blocks > 0


class _Verbosity:
    details = False
    quiet_blocks = 0


def detail(message: str) -> None:
    """Print a line of detail, shown with ``-v``."""
    if _Verbosity.details:
        say(message)


def prose(message: str, style: str = "", out: Console | None = None) -> None:
    """Print sentences, wrapped between words on a terminal, else unwrapped; paths are never cut."""
    width = console.width if console.is_terminal else _WHOLE_LINE
    for line in message.split("\n"):
        whole = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
        (out or console).print(whole, style=style, markup=False)


def warn(message: str) -> None:
    prose(f"warning: {message}", "yellow", _warnings if console.quiet else None)


def show_table(title: str, columns: list[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print a table; numeric columns are right-aligned, even with empty cells."""
    listed = [[str(cell) for cell in row] for row in rows]
    by_column = list(zip(columns, *listed, strict=True))
    longest_words = [max(map(cell_len, " ".join(cells).split()), default=0) for cells in by_column]
    left = console.width - 3 * len(columns) - 1
    if sum(longest_words) > left:
        # The table is too wide: print a block for each row, a line for each cell.
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
    """Print the final summary of a command, a line for each fact, so that paths are not wrapped."""
    console.print(title, style="bold", markup=False)
    width = max(map(len, facts), default=0)
    for key, value in facts.items():
        say(f"  {key:<{width}}  {shown(str(value))}")


def _is_number(cell: str) -> bool:
    return cell.lstrip("+-").replace(",", "").replace(".", "").replace("%", "").strip().isdigit()


class _RateColumn(TextColumn):
    """Column of finished items a second."""

    def __init__(self, unit: str) -> None:
        super().__init__("")
        self.unit = unit

    def render(self, task: ProgressTask) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.1f} {self.unit}/s" if speed else "")


@dataclass
class ProgressBar:
    """Handle of a progress bar."""

    progress: Progress
    task: TaskID
    unit: str
    #: Time of the last display, by :func:`time.monotonic`.
    shown_at: float

    def advance(self, num: float = 1) -> None:
        self.progress.advance(self.task, num)
        self._tell()

    def set(self, completed: float, total: float) -> None:
        self.progress.update(self.task, completed=completed, total=total)
        self._tell()

    def _tell(self) -> None:
        """Print a progress line from time to time if there is no bar."""
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
    """Show a bar with rate and ETA on a terminal; otherwise print two lines a minute."""
    quiet = console.quiet or bool(os.environ.get("CI")) or not sys.stderr.isatty()
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
