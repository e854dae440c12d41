"""Code search from installed Python packages: a function's docstring is the query for its code.

The query is the first paragraph of the docstring. The passage is the code without docstring and decorators, in which
the function's own name is masked: the name alone would match the prose. Nothing is downloaded, and the same versions
give the same pairs everywhere.
"""

from __future__ import annotations

import ast
import keyword
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from raydr.data.readers.base import Reader, Row, Source
from raydr.data.rows import BadRows
from raydr.errors import DataError
from raydr.seeding import stable_hash64
from raydr.store.identity import fingerprint_of

_STRING_PREFIXES = frozenset(["r", "b", "f", "u", "t", "br", "rb", "fr", "rf", "rt", "tr"])

# Ends of a paragraph's prose: fields, directives, sections, doctests, signatures.
_SECTIONS = "args arguments parameters params returns return yields raises example examples notes note attributes"
_NOT_PROSE = re.compile(
    rf"^(?::\w[\w ]*:(?!`)|\.\. |@\w+|>>>|[-=~^*#+]{{3,}}\s*$|(?:{_SECTIONS.replace(' ', '|')})\s*:?\s*$)",
    re.IGNORECASE,
)
_SIGNATURE = re.compile(r"^[\w.]+\(.*\)(?:\s*->.*)?$")
_TEMPLATE = re.compile(r"%\(\w+\)s|\{\w+\}|\$\{?\w+")
_ROLE = re.compile(r":(?:[a-z]+:)?[a-z]+:`[~!.]*([^`]+)`")
_ROLE_TARGET = re.compile(r"\s*<[^<>]+>$")


class Pair(NamedTuple):
    """Documented function. ``line`` is the line of its ``def``, from 1."""

    query: str
    code: str
    source: str
    line: int


def fold(text: str) -> str:
    """Normalise case, white space and the final full stop of a text, for comparison.

    >>> fold("Return  the SUM.") == fold("return the sum")
    True
    """
    return " ".join(text.lower().split()).rstrip(".")


def drop_repeats(pairs: list[Pair]) -> list[Pair]:
    """Keep the pairs whose query and code are both unique.

    A query with different code is ambiguous: all its pairs are dropped. Code with several queries keeps the first.

    >>> pairs = [Pair("a", "1", "", 1), Pair("A.", "1", "", 2), Pair("b", "1", "", 3), Pair("c", "2", "", 4),
    ...          Pair("c", "3", "", 5)]
    >>> [pair.line for pair in drop_repeats(pairs)]
    [1]
    """
    codes_of: defaultdict[str, set[str]] = defaultdict(set)
    for pair in pairs:
        codes_of[fold(pair.query)].add(fold(pair.code))
    kept, seen_codes = [], set()
    for pair in pairs:
        code = fold(pair.code)
        if len(codes_of[fold(pair.query)]) == 1 and code not in seen_codes:
            seen_codes.add(code)
            kept.append(pair)
    return kept


def pairs_of_module(text: str, source: str) -> Iterator[Pair]:
    """Yield the documented functions and methods of a module, in the order of the file.

    >>> module = '''
    ... class Box:
    ...     @property
    ...     def area(self):
    ...         \"\"\"Compute the covered area.
    ...
    ...         Never negative.
    ...         \"\"\"
    ...         other = self.area
    ...         return self.width * self.height
    ... '''
    >>> pair = next(pairs_of_module(module, "box.py"))
    >>> print(pair.query, pair.line, pair.code, sep="\\n")
    Compute the covered area.
    4
    def f(self):
        other = self.f
        return self.width * self.height

    Raises:
        SyntaxError: the module does not parse.
    """
    # ast counts lines by "\n" only; str.splitlines would also split at form feeds.
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for node in _functions(ast.parse(text).body):
        docstring = ast.get_docstring(node, clean=False)
        if docstring is None:
            continue
        query = first_paragraph(docstring)
        code = _code_without_docstring(node, lines)
        if query and code is not None:
            yield Pair(query, code, source, node.lineno)


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield functions of modules and classes, also below conditions, but not inside other functions."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
        elif isinstance(node, ast.ClassDef | ast.With | ast.If | ast.Try):
            handled = [statement for handler in getattr(node, "handlers", ()) for statement in handler.body]
            yield from _functions([*node.body, *handled, *getattr(node, "orelse", ())])


def first_paragraph(docstring: str) -> str:
    """Return the first paragraph as a line of prose; empty if it is not prose.

    >>> first_paragraph(" Return the :class:`~pkg.Box` of\\n   ``width``.\\n\\n   :param width: in metres")
    'Return the pkg.Box of width.'
    >>> first_paragraph("add(x, y)\\n\\nSum of two.")
    ''
    """
    words: list[str] = []
    for line in cleandoc(docstring).split("\n"):
        if not line.strip() or _NOT_PROSE.match(line.strip()):
            break
        words.extend(line.split())
    prose = " ".join(words)
    if _SIGNATURE.match(prose) or _TEMPLATE.search(prose):
        return ""
    prose = _ROLE.sub(lambda role: _ROLE_TARGET.sub("", role.group(1)), prose)
    return prose.replace("`", "").strip()


def _code_without_docstring(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> str | None:
    """Return the function's source, dedented and masked; None if it has no code beside the docstring."""
    body = [statement for statement in node.body[1:] if not _does_nothing(statement)]
    docstring = node.body[0]
    assert docstring.end_lineno is not None
    assert docstring.end_col_offset is not None
    assert node.end_lineno is not None
    before = lines[docstring.lineno - 1][: docstring.col_offset]
    after = lines[docstring.end_lineno - 1].encode()[docstring.end_col_offset :].decode()
    # Functions whose docstring shares its line with code are rare, and are left out.
    if not body or before.strip() or not re.match(r"\s*(#|$)", after):
        return None
    head, rest = lines[node.lineno - 1 : docstring.lineno - 1], lines[docstring.end_lineno : node.end_lineno]
    first = next(at for at, line in enumerate(rest) if line.strip())
    indent = re.compile(rf"[ \t]{{0,{node.col_offset}}}")
    code = "\n".join(indent.sub("", line, count=1).rstrip() for line in head + rest[first:])
    return mask_name(code, node.name)


def _does_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is ``pass``, ``...``, a further string, or ``raise NotImplementedError``."""
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def mask_name(code: str, name: str) -> str | None:
    """Replace each whole-word occurrence of ``name`` by ``f``, in strings and comments too.

    Returns:
        The masked code; None if the name is also syntax (``match``, a string prefix), so that it cannot be masked.

    >>> mask_name("def area(s): return s.area + areas  # area of s", "area")
    'def f(s): return s.f + areas  # f of s'
    """
    if name.lower() in _STRING_PREFIXES or keyword.issoftkeyword(name):
        return None
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "f", code)


_LEFT_OUT_FOLDERS = frozenset(
    ["test", "tests", "_tests", "testing", "vendor", "_vendor", "vendored", "_vendored"]
    + ["third_party", "thirdparty", "thirdparty_files", "externals"]
)
_TEST = re.compile(r"test_.*|.*_test\.py|conftest\.py")
_WORD = re.compile(r"[^\W\d_]{2,}")


class CodeSearchReader(Reader):
    """Pairs of docstring and code from the packages installed beside raydr.

    Both sides are unique after folding case and white space. A query with different code is ambiguous: all its pairs
    are dropped. Code with several queries keeps the first, in the order of distribution, file and line. Tests and
    vendored copies of other packages are left out, as are functions inside functions and functions without code. A
    single task reads everything, because ambiguity and the choice of ``num_pairs`` depend on all pairs.

    A file that is not UTF-8 or not Python of the running version is a bad row.
    """

    name: Literal["code_search"] = "code_search"
    packages: Annotated[list[str], Field(min_length=1)]
    """Installed distributions, by the names that pip knows."""

    num_pairs: int | None = Field(default=None, ge=1)
    """Number of pairs to keep, by the smallest hash of the query id; all if null."""

    dev: float = Field(default=0.05, ge=0, lt=1)
    """Share of the pairs in the split dev; the pairs outside dev and test are train."""

    test: float = Field(default=0.05, ge=0, lt=1)
    """Share of the pairs in the split test."""

    min_query_words: int = Field(default=3, ge=1)
    """Minimum of words of a query; shorter queries are left out."""

    max_query_words: int = Field(default=60, ge=1)
    """Maximum of words of a query; longer queries are left out."""

    min_code_lines: int = Field(default=2, ge=1)
    """Minimum of lines of code, blank lines included; shorter functions are left out."""

    max_code_lines: int = Field(default=100, ge=1)
    """Maximum of lines of code, blank lines included; longer functions are left out."""

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
        return {**self.model_dump(exclude={"packages"}), "packages": sorted(self._distributions())}

    def _distributions(self) -> dict[str, Distribution]:
        """Return the distributions by ``name==version``; an error if one is missing or does not list its files."""
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
        if _LEFT_OUT_FOLDERS.intersection(file.parts[:-1]) or _TEST.fullmatch(file.name):
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
