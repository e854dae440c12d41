"""Pair files: JSONL, CSV, TSV or Parquet with a query and a positive, and perhaps negatives, in each row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field

from raydr.data.inputs import find_input
from raydr.data.json_array import read_json_array
from raydr.data.lines import read_csv, read_json_lines, refuse_pointer
from raydr.data.pairs import Layout, PairColumns, look_at_labels, rows_of_pair
from raydr.data.ranges import ALL_LINES, LineRange
from raydr.data.readers.base import Reader, Row, Source, read_rows
from raydr.data.rows import BadRows
from raydr.errors import DataError
from raydr.store.filesystems import open_file

#: Suffixes of files of pairs.
FORMATS = ("jsonl", "json", "csv", "tsv", "parquet")


class PairsReader(Reader):
    """Pairs in files, with the format in the suffix: .jsonl, .json (an array), .csv, .tsv, each also .gz, or .parquet.

    Passages and queries without ids get ids from their content, so that equal texts share an id. In a Parquet or .json
    file the line is the row's number, from 1.
    """

    identifying: ClassVar[frozenset[str]] = frozenset({"name", "layout", "columns"})
    passages_repeat: ClassVar[bool] = True

    name: Literal["pairs"] = "pairs"
    path: str = ""
    """Folder of the files, local or an fsspec URL."""

    files: Annotated[dict[str, str | list[str]], Field(min_length=1)]
    """File, or files, of each split. With ``columns.split``, a column has the split instead."""

    layout: Layout = "columns"
    """Layout of a row: named columns, or the layout of sentence-transformers or tevatron."""

    columns: PairColumns = PairColumns()
    """Names of the columns, for ``layout: columns``."""

    def sources(self) -> list[Source]:
        sources = []
        for split, names in self.files.items():
            for name in [names] if isinstance(names, str) else names:
                path = find_input(self.path, name, f"pairs of split {split}")
                if format_of(path) not in FORMATS:
                    raise DataError(f"{path} is none of the formats {', '.join(f'.{end}' for end in FORMATS)}[.gz]")
                sources.append(Source(path, "pairs", split))
        return sources

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        again = partial(records_of, source.path, BadRows(source.path))
        graded, remark = look_at_labels(self.layout, self.columns, again, source.path)
        bad_rows.remarks += filter(None, [remark])
        rows_of = partial(rows_of_pair, self.layout, self.columns, source.split, graded)
        return read_rows(records_of(source.path, bad_rows), bad_rows, rows_of)


def format_of(path: str) -> str:
    """Return the format of a file, from its suffix.

    >>> format_of("a/train.jsonl.gz"), format_of("train.CSV")
    ('jsonl', 'csv')
    """
    return path.removesuffix(".gz").rpartition(".")[2].lower().replace("ndjson", "jsonl")


def records_of(path: str, bad_rows: BadRows) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield records by column name, with their line or number; the file's suffix names its format."""
    kind = format_of(path)
    if kind == "parquet":
        return parquet_records(path)
    if kind in ("csv", "tsv"):
        return read_csv(path, "," if kind == "csv" else "\t", bad_rows)
    if kind == "json":
        return read_json_array(path, bad_rows)
    return read_json_lines(path, bad_rows)


def parquet_records(path: str, rows: LineRange = ALL_LINES) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the records of a Parquet file's rows with their numbers, from 1.

    Raises:
        DataError: the file cannot be read, or has a column twice.
    """
    row = rows.number - 1
    with open_file(path) as file:
        refuse_pointer(path, file)
        try:
            table = pq.ParquetFile(file)
            names = table.schema_arrow.names
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise DataError(f"{path} has the columns {', '.join(map(repr, twice))} twice. Rename one of each.")
            batches = table.iter_batches(batch_size=1024, row_groups=range(rows.start, table.num_row_groups))
            records = (record for batch in batches for record in batch.to_pylist())
            for row, record in enumerate(records, start=rows.number):
                if row == rows.end:
                    return
                if row >= rows.first:
                    yield row, record
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            # Some values are valid in Parquet alone: other texts than UTF-8, times beyond the year 9999.
            raise DataError(
                f"{path} cannot be read as Parquet after row {row}: {error}. Fetch or write the file again."
            ) from None
