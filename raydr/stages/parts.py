"""The loop that every artefact of many parts is made by: what is there is left, the rest is made and recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from raydr.errors import ArtifactError
from raydr.runtime.console import progress_bar, say
from raydr.stages.pool import Batch, Feed, Pool
from raydr.store.artifact import Building, Part, finished_parts

#: Makes parts and records them: ``make(folder, name, *arguments)`` returns them by name, the named one among them.
MakePart = Callable[..., Mapping[str, Part]]


def make_parts(
    making: Building,
    pool: Pool,
    make: MakePart,
    calls: Mapping[str, tuple[Any, ...]],
    description: str,
    num_cpus: float = 1,
) -> None:
    """Make the parts that are not there by calls of a function.

    Args:
        making: the artefact; its ``done`` gets the new parts.
        pool: where the function runs.
        make: writes the part that it is told the name of, and perhaps others; see
            :func:`raydr.store.artifact.write_and_record`.
        calls: the further arguments, by the name of the part.
        description: of the progress bar.
        num_cpus: of one call.
    """
    todo = {name: arguments for name, arguments in calls.items() if name not in making.done}
    _say_what_is_there(description, len(calls), len(todo))
    if not todo:
        return
    work = [(making.folder, name, *arguments) for name, arguments in todo.items()]
    for made in pool.map(make, work, description, num_cpus=num_cpus):
        making.done.update(made)
    _check(making, todo)


def feed_parts(
    making: Building, pool: Pool, feed: Feed, items: Mapping[str, Mapping[str, Any]], description: str, unit: str
) -> list[dict[str, Any]]:
    """Make the parts that are not there by workers that hold a model.

    Args:
        making: the artefact; its ``done`` gets the new parts.
        pool: where the workers run.
        feed: the workers; each call returns :func:`part_batch` of what it made, with further columns if it likes.
        items: what a worker is told, by the name of the part; ``rows`` of it counts for the progress bar.
        description: of the progress bar.
        unit: what the rows are.

    Returns:
        What the workers said of each part that was made now.
    """
    todo = {name: item for name, item in items.items() if name not in making.done}
    _say_what_is_there(description, len(items), len(todo))
    if not todo:
        return []
    said = []
    with progress_bar(description, total=sum(int(item["rows"]) for item in todo.values()), unit=unit) as bar:
        for row in pool.feed(feed, list(todo.values())):
            part = Part(rows=int(row["rows"]), bytes=int(row["bytes"]), checksum=str(row["checksum"]))
            # The worker has recorded it on disk already.
            making.done[str(row["name"])] = part
            said.append(row)
            bar.advance(part.rows)
    _check(making, todo)
    return said


def part_batch(name: str, part: Part, **more: Any) -> Batch:
    """A part as the batch of one row that :func:`feed_parts` expects of a worker."""
    row = {"name": name, "rows": part.rows, "bytes": part.bytes, "checksum": part.checksum, **more}
    return {column: [value] for column, value in row.items()}


def scratch_parts(making: Building, name: str) -> Building:
    """A folder of parts that others of the artefact are made from; it goes when the artefact is finished."""
    folder = making.folder / name
    making.scratch.append(folder)
    return Building(folder, making.identity, finished_parts(folder))


def total_counts(making: Building, names: Iterable[str]) -> Counter[str]:
    """The counts that were recorded with some parts, added up; those of an interrupted attempt among them."""
    totals: Counter[str] = Counter()
    for name in names:
        totals.update(making.done[name].counts)
    return totals


def _say_what_is_there(description: str, num_parts: int, num_todo: int) -> None:
    if num_todo < num_parts:
        say(f"{description}: {num_parts - num_todo} of {num_parts} parts are there already, {num_todo} to do")


def _check(making: Building, todo: Iterable[str]) -> None:
    missing = [name for name in todo if name not in making.done]
    if missing:
        raise ArtifactError(f"{len(missing)} parts were not made, the first is {missing[0]}: run it again")
