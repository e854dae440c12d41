"""Code search from installed Python packages: a function's docstring asks for its code.

Query and passage are those of :mod:`raydr.data.docstrings`. Nothing is downloaded, and the same versions give the
same pairs everywhere.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from raydr.data.docstrings import Pair, drop_repeats, fold, pairs_of_module
from raydr.data.quarantine import BadRows
from raydr.data.readers.base import Reader, Row, Source
from raydr.errors import DataError
from raydr.seeding import stable_hash64
from raydr.store.identity import fingerprint_of

_LEFT_OUT_FOLDERS = frozenset(
    ["test", "tests", "_tests", "testing", "vendor", "_vendor", "vendored", "_vendored"]
    + ["third_party", "thirdparty", "thirdparty_files", "externals"]
)
_WORD = re.compile(r"[^\W\d_]{2,}")


class CodeSearchReader(Reader):
    """Pairs of docstring and code from the packages installed beside raydr.

    Both sides are unique after folding case and white space. A query that stands over different code is ambiguous:
    all its pairs are dropped. Code that stands under several queries keeps the first, in the order of distribution,
    file and line. Tests and vendored copies of other packages are left out, as are functions inside functions and
    those without code of their own. One task reads everything, because only the whole tells what is ambiguous and
    which ``num_pairs`` are kept.

    A file that is not UTF-8 or not Python of the running version is a bad row.
    """

    name: Literal["code_search"] = "code_search"
    packages: Annotated[list[str], Field(min_length=1)]
    """Installed distributions, by the names that pip knows."""

    num_pairs: int | None = Field(default=None, ge=1)
    """Keep so many pairs, those with the smallest hash of their query id; all if null."""

    dev: float = Field(default=0.05, ge=0, lt=1)
    """Shares of the pairs in the splits dev and test; the rest is train."""

    test: float = Field(default=0.05, ge=0, lt=1)
    """See ``dev``."""

    min_query_words: int = Field(default=3, ge=1)
    """Words of the query; shorter and longer ones are left out."""

    max_query_words: int = Field(default=60, ge=1)
    """See ``min_query_words``."""

    min_code_lines: int = Field(default=2, ge=1)
    """Lines of code, blank ones included; shorter and longer functions are left out."""

    max_code_lines: int = Field(default=100, ge=1)
    """See ``min_code_lines``."""

    passages_repeat: ClassVar[bool] = False

    @model_validator(mode="after")
    def _check(self) -> CodeSearchReader:
        if self.dev + self.test >= 1:
            raise ValueError(f"dev and test leave nothing to train on: {self.dev} + {self.test} must be below 1")
        for what in ("query_words", "code_lines"):
            least, most = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if least > most:
                raise ValueError(f"min_{what} {least} is above max_{what} {most}")
        return self

    def sources(self) -> list[Source]:
        self._distributions()
        return [Source(path="installed packages", role="distributions")]

    def checksum(self, source: Source) -> str:
        """Return the identity of names and versions: an installed version has the same files everywhere."""
        return fingerprint_of(sorted(self._distributions()))

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        """Yield each pair as a passage, a query and a judgment.

        Raises:
            DataError: there are fewer pairs than ``num_pairs``.
        """
        places = sorted((name, str(installed.locate_file(""))) for name, installed in self._distributions().items())
        documented, bad = _read_installed(tuple(places))
        bad_rows.extend(bad)
        suitable = [pair for pair in documented if self._has_wanted_lengths(pair)]
        pairs = {f"{stable_hash64('query', fold(pair.query)):016x}": pair for pair in drop_repeats(suitable)}
        if self.num_pairs is not None:
            if self.num_pairs > len(pairs):
                raise DataError(
                    f"{', '.join(self.packages)} give {len(pairs)} pairs, data.reader.num_pairs asks for "
                    f"{self.num_pairs}: lower it, set it to null for all, or name more packages"
                )
            kept = set(sorted(pairs, key=lambda query_id: stable_hash64("subset", query_id))[: self.num_pairs])
            pairs = {query_id: pair for query_id, pair in pairs.items() if query_id in kept}
        for query_id, pair in pairs.items():
            passage_id = f"{stable_hash64('passage', fold(pair.code)):016x}"
            split, line = self.split_of(query_id), pair.line
            passage = Row.passage(passage_id, "", pair.code, line)
            yield replace(passage, values={**passage.values, "source": pair.source, "line": line})
            yield Row.query(split, query_id, pair.query, line)
            yield Row.judgment(split, query_id, passage_id, line)

    def split_of(self, query_id: str) -> str:
        """Return the split of a query, a function of its id alone, so that other packages do not move it."""
        at = stable_hash64("split", query_id) / 2**64
        if at < self.test:
            return "test"
        return "dev" if at < self.test + self.dev else "train"

    def content_key(self) -> dict[str, Any]:
        """Return the settings, with the exact version of each distribution."""
        return {**self.model_dump(exclude={"packages"}), "packages": sorted(self._distributions())}

    def _distributions(self) -> dict[str, Distribution]:
        """Return the distributions by ``name==version``.

        Raises:
            DataError: one is not installed, or does not list its files.
        """
        distributions = {}
        for package in self.packages:
            try:
                installed = distribution(package)
            except PackageNotFoundError:
                raise DataError(
                    f"data.reader.packages names {package!r}, which is not installed in this environment: "
                    "install it, or name another distribution (pip list shows them)"
                ) from None
            if installed.files is None:
                raise DataError(f"the distribution {package!r} does not list its files: reinstall it from a wheel")
            distributions[f"{re.sub(r'[-_.]+', '-', installed.name).lower()}=={installed.version}"] = installed
        return distributions

    def _has_wanted_lengths(self, pair: Pair) -> bool:
        return (
            self.min_query_words <= len(_WORD.findall(pair.query)) <= self.max_query_words
            and self.min_code_lines <= pair.code.count("\n") + 1 <= self.max_code_lines
        )


@lru_cache(maxsize=1)
def _read_installed(places: tuple[tuple[str, str], ...]) -> tuple[list[Pair], BadRows]:
    """Return all pairs of some distributions, by name and place. Cached: corpus and data set both read them."""
    bad_rows = BadRows("installed packages")
    installed = ((name, distribution(name.partition("==")[0])) for name, _ in places)
    return [pair for name, package in installed for pair in _pairs_of_distribution(name, package, bad_rows)], bad_rows


def _pairs_of_distribution(name: str, installed: Distribution, bad_rows: BadRows) -> Iterator[Pair]:
    listed = sorted(file for file in installed.files or [] if file.suffix == ".py" and file.parts[0] != "..")
    for file in listed:
        if _LEFT_OUT_FOLDERS.intersection(file.parts[:-1]) or _is_test(file.name):
            continue
        source = f"{name}:{file.as_posix()}"
        try:
            text = Path(str(file.locate())).read_text(encoding="utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)
                pairs = list(pairs_of_module(text, source))
        except FileNotFoundError:
            bad_rows.add(0, f"{source} is listed by its distribution but is not there")
        except UnicodeDecodeError as error:
            bad_rows.add(0, f"{source} is not UTF-8: {error.reason} at byte {error.start}")
        except SyntaxError as error:
            bad_rows.add(error.lineno or 0, f"{source} is not Python source: {error.msg}", error.text or "")
        except ValueError as error:
            bad_rows.add(0, f"{source} is not Python source: {error}")
        else:
            yield from pairs


def _is_test(file_name: str) -> bool:
    return file_name.startswith("test_") or file_name.endswith("_test.py") or file_name == "conftest.py"
