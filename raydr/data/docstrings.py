"""Documented Python functions as pairs: the first paragraph of the docstring as prose, and the code without it.

The code has neither docstring nor decorators. The function's own name is masked in it: the name alone would match the
prose.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections import defaultdict
from collections.abc import Iterator
from inspect import cleandoc
from typing import NamedTuple

#: Put in place of the function's name.
MASK = "f"

_STRING_PREFIXES = frozenset(["r", "b", "f", "u", "t", "br", "rb", "fr", "rf", "rt", "tr"])

# What ends the prose of a paragraph: fields, directives, sections, doctests, signatures.
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
    """A documented function. ``line`` is that of its ``def``, from 1."""

    query: str
    code: str
    source: str
    line: int


def fold(text: str) -> str:
    """Return the form in which texts are compared.

    >>> fold("Return  the SUM.") == fold("return the sum")
    True
    """
    return " ".join(text.lower().split()).rstrip(".")


def drop_repeats(pairs: list[Pair]) -> list[Pair]:
    """Keep the pairs whose query and code are both unique.

    A query that stands over different code is ambiguous: all its pairs are dropped. Code that stands under several
    queries keeps the first.

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
    """Return the documented functions and methods of a module, in the order of the file.

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
    # A docstring that shares its line with code is rare, and cutting it out would need care: left out.
    if not body or before.strip() or not re.match(r"\s*(#|$)", after):
        return None
    head, rest = lines[node.lineno - 1 : docstring.lineno - 1], lines[docstring.end_lineno : node.end_lineno]
    first = next(at for at, line in enumerate(rest) if line.strip())
    code = "\n".join(_dedent(line, node.col_offset) for line in head + rest[first:])
    return mask_name(code, node.name)


def _does_nothing(statement: ast.stmt) -> bool:
    """Return whether a statement is ``pass``, ``...``, a further string, or ``raise NotImplementedError``."""
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )


def _dedent(line: str, width: int) -> str:
    indent = len(line) - len(line.lstrip(" \t"))
    return line[min(indent, width) :].rstrip()


def mask_name(code: str, name: str) -> str | None:
    """Replace each whole-word occurrence of ``name`` by ``f``, in strings and comments too.

    Returns:
        The masked code; None if the name is also syntax (``match``, a string prefix), so that it cannot be masked.

    >>> mask_name("def area(s): return s.area + areas  # area of s", "area")
    'def f(s): return s.f + areas  # f of s'
    """
    if name.lower() in _STRING_PREFIXES or keyword.issoftkeyword(name):
        return None
    return re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", MASK, code)
