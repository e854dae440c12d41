"""Work cut into ranges of rows of the input's parts, each of which becomes one part.

Ranges have about the same number of rows, so that memory is bounded and small inputs of few parts still keep several
workers busy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from raydr.data.schema import write_parquet
from raydr.stages.parts import part_batch
from raydr.stages.pool import Batch
from raydr.store.artifact import Artifact, write_and_record
from raydr.store.folder import Folder


@dataclass(frozen=True)
class RowRange:
    """Rows ``start`` to ``end`` of one part of the input; ``name`` is the part that they become."""

    name: str
    part: str
    start: int
    end: int

    @classmethod
    def of(cls, batch: Batch) -> RowRange:
        """The range in a batch of one, as a worker gets it."""
        return cls(str(batch["name"][0]), str(batch["part"][0]), int(batch["start"][0]), int(batch["end"][0]))

    @property
    def item(self) -> dict[str, str | int]:
        """What a worker is told of it."""
        rows = self.end - self.start
        return {"name": self.name, "part": self.part, "start": self.start, "end": self.end, "rows": rows}

    def written(self, output: Folder, table: pa.Table) -> Batch:
        """Write the part, and say so: what a worker returns."""
        return part_batch(self.name, write_and_record(output, self.name, len(table), partial(write_parquet, table)))


def row_ranges(artifact: Artifact, under: str, rows: int, folder: str) -> dict[str, dict[str, str | int]]:
    """The parts below ``under`` in ranges of at most ``rows`` rows: what workers are told, by the part to make.

    Args:
        artifact: the input.
        under: which of its parts.
        rows: of a range, at most.
        folder: of the parts to make; ``part-PART-RANGE.parquet`` in it.
    """
    items = {}
    for at, part in enumerate(artifact.parts(under)):
        num_rows = artifact.manifest.parts[part].rows
        for number, start in enumerate(range(0, num_rows, rows)):
            name = f"{folder}/part-{at:05d}-{number:05d}.parquet"
            items[name] = RowRange(name, part, start, min(start + rows, num_rows)).item
    return items
