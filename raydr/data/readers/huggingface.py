"""Hugging Face datasets, from the hub or from disk, with the column mapping of pair files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from raydr.data.inputs import absolute, checksum
from raydr.data.pairs import Layout, PairColumns, look_at_labels, rows_of_pair
from raydr.data.readers.base import Reader, Row, Source, read_rows
from raydr.data.rows import BadRows
from raydr.errors import DataError

if TYPE_CHECKING:
    from datasets import Dataset


class HuggingFaceReader(Reader):
    """Pairs in a Hugging Face data set; the line of a row is its number, from 1."""

    package_needed: ClassVar[str] = "datasets"
    identifying: ClassVar[frozenset[str]] = frozenset({"name", "layout", "columns"})
    passages_repeat: ClassVar[bool] = True

    name: Literal["huggingface"] = "huggingface"
    path: str
    """Name on the hub, or a local folder of ``save_to_disk`` or of data files."""

    subset: str = ""
    """Configuration of the data set on the hub."""

    revision: str = ""
    """Branch, tag or commit on the hub."""

    splits: Annotated[dict[str, str], Field(min_length=1)] = {"train": "train"}
    """Split of the data set for each of raydr's splits."""

    layout: Layout = "columns"
    """Layout of a row: named columns, or the layout of sentence-transformers or tevatron."""

    columns: PairColumns = PairColumns()
    """Names of the columns, for ``layout: columns``."""

    def sources(self) -> list[Source]:
        if find_spec(self.package_needed) is None:
            raise DataError(
                f"data.reader {self.name} needs the package {self.package_needed}, which is not installed: pip install "
                f"{self.package_needed}"
            )
        path = absolute(self.path) if Path(self.path).is_dir() else self.path
        return [Source(path, f"huggingface:{theirs}", ours) for ours, theirs in self.splits.items()]

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        rows = self._load(source)
        name = f"{source.path}, split {source.split}"
        graded, remark = look_at_labels(self.layout, self.columns, partial(enumerate, rows), name)
        bad_rows.remarks += filter(None, [remark])
        rows_of = partial(rows_of_pair, self.layout, self.columns, source.split, graded)
        return read_rows(enumerate(rows, start=1), bad_rows, rows_of)

    def checksum(self, source: Source) -> str:
        """Return the identity of the Arrow files that hold the split."""
        files = [checksum(entry["filename"]) for entry in self._load(source).cache_files]
        return hashlib.blake2b(" ".join(files).encode(), digest_size=16).hexdigest()

    def _load(self, source: Source) -> Dataset:
        from datasets import DatasetDict, load_dataset, load_from_disk

        split = source.role.partition(":")[2]
        folder = Path(source.path)
        # In memory, as an environment variable may set it, a data set has no files for the checksum.
        mapped = {"keep_in_memory": False}
        try:
            if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
                loaded = load_from_disk(source.path, **mapped)
                return loaded[split] if isinstance(loaded, DatasetDict) else loaded
            return load_dataset(source.path, self.subset or None, split=split, revision=self.revision or None, **mapped)
        except (FileNotFoundError, ValueError, KeyError, ConnectionError) as error:
            raise DataError(
                f"cannot load split {split!r} of the data set {source.path}: {error}. "
                "Check data.reader.path, subset, revision and splits."
            ) from error
