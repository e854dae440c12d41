"""Pairs in a program's memory: checked, and written to a file that the reader ``pairs`` takes."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.inputs import absolute
from raydr.data.judgment_columns import check_classes
from raydr.data.pair_shape import LOOKED_AT, pair_shape
from raydr.data.pairs import label_of
from raydr.data.readers.base import Source
from raydr.data.readers.pairs import PairsReader
from raydr.data.recognition import split_in
from raydr.data.rows import BadRows, RowError
from raydr.data.tables import write_parquet
from raydr.errors import DataError
from raydr.store.filesystems import writing

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

#: Pairs of a split, in memory.
PairTable: TypeAlias = "pd.DataFrame | Dataset | ArrowStream | Sequence[Sequence[str]] | Sequence[Mapping[str, Any]]"
#: Pairs in memory, by split where there are several; or the path of a file or folder, local or an fsspec URL.
Pairs: TypeAlias = "PairTable | Mapping[str, PairTable] | str | Path"

#: Columns of rows without names.
_COLUMNS = ("query", "positive", "negative")
_DIGEST_BYTES = 8


@runtime_checkable
class ArrowFormat(Protocol):
    """Data set of Hugging Face."""

    def with_format(self, type: str) -> Any: ...

    def select(self, indices: list[int]) -> Any: ...

    @classmethod
    def from_list(cls, mapping: list[dict[str, Any]], features: Any) -> Any: ...


@runtime_checkable
class ArrowStream(Protocol):
    """Table that Arrow reads, such as its own or a ``polars.DataFrame``."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def place_pairs(pairs: Pairs, folder: str) -> str:
    """Return the path of a file, or a folder, with the pairs.

    Pairs in memory are written below ``folder``, under a name made from their content, so that equal pairs share it.

    Args:
        pairs: pairs in a form that the Python API takes.
        folder: local folder.

    Raises:
        DataError: a row or a column cannot be used; the message has both.
    """
    if isinstance(pairs, str | Path):
        return absolute(str(pairs))
    if not isinstance(pairs, Mapping):
        table = pair_table(pairs, "pairs")
        return _write(table, Path(folder) / f"pairs-{_digest({'': table})}.parquet")
    tables: dict[str, pa.Table] = {}
    for name, rows in pairs.items():
        split = split_in(str(name))
        if not split or split in tables:
            raise DataError(
                f"pairs has a split {name!r}; expected splits named train, validation or dev, test, each once. For a "
                "dict of columns give pandas.DataFrame(pairs)"
            )
        tables[split] = pair_table(cast("PairTable", rows), f"pairs[{name!r}]")
    if "train" not in tables:
        has = f"the splits {', '.join(tables)}" if tables else "no split"
        raise DataError(f"pairs has {has}; expected a split train. The rows of a split alone are valid pairs too")
    place = Path(folder) / f"pairs-{_digest(tables)}"
    for split, table in tables.items():
        _write(table, place / f"{split}.parquet")
    return str(place)


def check_rows(reader: PairsReader, max_bad_rows: int) -> None:
    """Read placed pairs, and raise an error with argument and row if more rows are bad than allowed.

    Args:
        reader: reader of the files of :func:`place_pairs`.
        max_bad_rows: maximum of bad rows.

    Raises:
        DataError: too many rows are bad.
    """
    bad: list[tuple[str, BadRows]] = []
    for source in reader.sources():
        bad.append((_argument(reader, source), BadRows(source.path, keep=1)))
        for _ in reader.read(source, bad[-1][1]):
            pass
    count = sum(rows.count for _, rows in bad)
    if count > max_bad_rows:
        where, first = next((where, rows.kept[0]) for where, rows in bad if rows.count)
        others = f" ({count:,} such rows)" if count > 1 else ""
        raise DataError(
            f"{where}, row {first.line - 1}: {first.reason}{others}. Change or leave out the row, or allow bad rows: "
            f"settings={{'data': {{'max_bad_rows': {count}}}}}"
        )


def in_rows(message: str, reader: PairsReader) -> str:
    """Return a message on lines of placed pairs as a message on rows of the argument; rows count from 0."""
    for source in reader.sources():
        first, *others = re.split(rf"{re.escape(source.path)}:(\d+)", message)
        rows = [f"{_argument(reader, source)}, row {int(line) - 1}" for line in others[::2]]
        message = first + "".join(map("".join, zip(rows, others[1::2], strict=True)))
    return re.sub(r"--set data\.max_bad_rows=(\d+)", r"settings={'data': {'max_bad_rows': \1}}", message)


def _argument(reader: PairsReader, source: Source) -> str:
    return "pairs" if len(reader.files) == 1 else f"pairs[{source.split!r}]"


def pair_table(pairs: PairTable, where: str) -> pa.Table:
    """Return the pairs of a split as an Arrow table; its queries and positives are checked to be texts.

    Args:
        pairs: a table of pandas, Polars, Arrow or ``datasets``, or rows: tuples (query, passage[, negative]) or dicts.
        where: name of the pairs in messages.

    Raises:
        DataError: there is no row, or a row or a column cannot be used; rows count from 0.

    >>> pair_table([("red river", "A red river flows south.")], "pairs").column_names
    ['query', 'positive']
    """
    table = _as_table(pairs, where)
    if not table.num_rows:
        raise DataError(f"{where} has no rows: give at least some (query, passage) pairs")
    shape = pair_shape(table.slice(0, LOOKED_AT).to_pylist(), where, in_memory=True)
    columns = shape.settings.get("columns", {})
    check_classes(table.schema, columns.get("label", ""), where)
    for name in map(columns.get, ("query", "positive", "split")):
        if name is not None:
            _check_texts(table[name], name, where)
    return table


def _as_table(pairs: PairTable, where: str) -> pa.Table:
    columns: Mapping[str, Sequence[Any]]
    if isinstance(pairs, ArrowFormat):
        return cast(pa.Table, pairs.with_format("arrow")[:])
    if hasattr(pairs, "iloc") or isinstance(pairs, ArrowStream):
        named = _named_columns(pairs)
        repeated = [name for name, times in Counter(name for name, _ in named).items() if times > 1]
        if repeated:
            raise DataError(f"{where} has several columns {repeated[0]!r}: rename or drop all but one")
        columns = dict(named)
    elif isinstance(pairs, str | bytes) or not isinstance(pairs, Sequence):
        raise DataError(
            f"{where} is a {type(pairs).__name__}; expected a list of (query, passage) tuples, a DataFrame, an "
            "Arrow table, a datasets.Dataset, or the path of a file"
        )
    elif pairs and isinstance(pairs[0], Mapping):
        for at, row in enumerate(pairs):
            if not isinstance(row, Mapping):
                raise DataError(f"{where}[{at}] is a {type(row).__name__}; expected a dict like the rows before it")
        records = cast("Sequence[Mapping[str, Any]]", pairs)
        names = dict.fromkeys(name for record in records for name in record)
        columns = {str(name): [record.get(name) for record in records] for name in names}
    else:
        for at, row in enumerate(pairs):
            if isinstance(row, str) or not isinstance(row, Sequence) or not 2 <= len(row) <= len(_COLUMNS):
                expected = "expected a tuple (query, passage) or (query, passage, negative)"
                raise DataError(f"{where}[{at}] is {row!r:.80}; {expected}")
            if len(row) != len(pairs[0]):
                raise DataError(f"{where}[{at}] has {len(row)} values, and the rows before it have {len(pairs[0])}")
        third = list(enumerate(value for row in pairs for value in tuple(row)[2:]))
        judgments = [(at, value) for at, value in third if _is_judgment(value)]
        if judgments and not any(isinstance(value, str | list) and not _is_judgment(value) for _, value in third):
            raise DataError(
                f"{where}[{judgments[0][0]}] has the number {judgments[0][1]!r} in third place, where a negative is "
                "expected: for labels give a DataFrame or dicts with query, passage and label"
            )
        columns = dict(zip(_COLUMNS, zip(*pairs, strict=True), strict=False))
    for name in columns:
        if not name.isprintable():
            raise DataError(f"{where} has a column {name!r}: a name has printable characters only")
    return pa.table({name: _column(values, name, where) for name, values in columns.items()})


def _named_columns(table: Any) -> list[tuple[str, list[Any]]]:
    """Return names and values of the columns of a pandas DataFrame, or of a table that Arrow reads."""
    if hasattr(table, "iloc"):
        return [(str(name), table.iloc[:, at].tolist()) for at, name in enumerate(table.columns)]
    arrow = pa.table(table)
    return [(name, arrow.column(at).to_pylist()) for at, name in enumerate(arrow.column_names)]


def _is_judgment(value: Any) -> bool:
    """Return whether a value is a number, or true or false; numpy's too, and in a text, as csv.reader has them."""
    try:
        label_of({"label": value.item() if isinstance(value, np.generic) else value}, "label")
    except RowError:
        return False
    return True


def _column(values: Sequence[Any], name: str, where: str) -> pa.Array:
    """Convert the values to Arrow; pandas' marks of a missing value (NaN, NA, NaT) become null."""
    values = [None if isinstance(value, float | np.floating) and value != value else value for value in values]
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as problem:
        import pandas as pd  # Only here: importing it takes a third of a second.

        filled = [
            (at, value) for at, value in enumerate(values) if not (pd.api.types.is_scalar(value) and pd.isna(value))
        ]
        kind = type(filled[0][1])
        for at, value in filled:
            cell = f"{where}, row {at}, column {name!r}: {value!r:.80}"
            if type(value) is not kind:
                before = f"and the values before it of type {kind.__name__}"
                raise DataError(f"{cell} is of type {type(value).__name__}, {before}") from None
            try:
                pa.array([value])
            except UnicodeEncodeError:
                raise DataError(f"{cell} has half of a surrogate pair, which is no character") from None
            except (pa.ArrowException, OverflowError):
                raise DataError(
                    f"{cell} is no text, number or list of these that a table can hold. Drop the column, or convert it"
                ) from None
        raise DataError(f"{where}, column {name!r}: the values fit no type of a table ({problem})") from None


def _check_texts(column: pa.ChunkedArray, name: str, where: str) -> None:
    """Raise an error at the first value that is no text; the reader checks lists of texts."""
    if pa.types.is_null(column.type):
        raise DataError(f"{where}, row 0, column {name!r}: there is no text")
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise DataError(f"{where}, row 0, column {name!r}: {column[0].as_py()!r:.80} is no text")
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(column), ""), True)
    if (at := pc.index(blank, True).as_py()) >= 0:
        raise DataError(f"{where}, row {at}, column {name!r}: the text is empty or missing. Leave the row out")


def _digest(tables: Mapping[str, pa.Table]) -> str:
    """Hash tables with the names of their splits: the same rows of another split make other data."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for split, table in sorted(tables.items(), key=lambda item: item[0]):
        digest.update(f"{split}:".encode())
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as writer:
            writer.write_table(table.replace_schema_metadata(None).combine_chunks())
        digest.update(sink.getvalue())
    return digest.hexdigest()


def _write(table: pa.Table, path: Path) -> str:
    """Write a file under its final name only when it is complete; return its path."""
    if not path.exists():
        begun = path.with_name(f".{path.name}.begun")
        with writing(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_parquet(table.replace_schema_metadata(None), str(begun))
            begun.replace(path)
    return str(path)
