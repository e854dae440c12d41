"""Second positives of code search: the judged Python code with other variable names and another layout."""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping

from experiments.second_positives.judged import Judged, Passage, SecondPositive
from raydr.seeding import query_rng

#: New names, drawn for each snippet.
_NAMES = (
    "value", "item", "entry", "result", "data", "current", "element", "target", "source", "part", "left", "right",
    "first", "other", "key", "content", "buffer", "record", "output", "found", "state", "group", "total", "node",
)  # fmt: skip
#: A snippet that calls one of these may reach its variables by their names.
_BY_NAME = frozenset({"locals", "globals", "vars", "eval", "exec", "dir"})


def rename_variables(code: str, names: list[str]) -> str | None:
    """The same program with its variables renamed, in the layout of :func:`ast.unparse`, without comments.

    Renamed are names that the code itself binds outside of class bodies (assignments, loops, ``with``, arguments); kept
    are attributes, functions, classes, imports, keyword arguments, names of ``global`` and ``nonlocal``, exception
    names and builtins. The renaming is one to one, so the program computes the same.

    Args:
        code: one or more Python statements.
        names: new names in the order of use; those that the code has already are passed over.

    Returns:
        None if the code is not Python 3, reaches variables by name (``locals``, ``eval``, ...), or has fewer than two
        names to change.

    >>> print(rename_variables("def add(a, b):\\n  c = a+b # sum\\n  return c", ["value", "item", "entry"]))
    def add(value, item):
        entry = value + item
        return entry
    """
    try:
        with warnings.catch_warnings():
            # Invalid escapes in old string literals parse all the same.
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(textwrap.dedent(code))
    except (SyntaxError, ValueError):
        return None
    scan = _Scan()
    scan.visit(tree)
    chosen = [name for name in scan.bound if name not in scan.fixed and not _is_special(name)]
    if scan.by_name or len(chosen) < 2:
        return None
    taken = scan.seen | scan.fixed
    fresh = (name for name in _numbered(names) if name not in taken)
    mapping = {name: next(fresh) for name in chosen}
    return ast.unparse(_Rename(mapping).visit(tree))


def rename_positives(
    judged: Judged, golds: Mapping[str, Passage], seed: int
) -> tuple[list[Passage], list[SecondPositive]]:
    """A renamed copy of each positive that is Python code; it answers every query that the positive answers.

    The two share all operations, called functions, attributes and literals: a second positive that is hard to tell
    from the first, as near-copies in real code collections are.

    Returns:
        The new passages, sorted by id, and the second positives, sorted by query and passage id.
    """
    queries_of = judged.queries_of(golds)
    new: list[Passage] = []
    rows: list[SecondPositive] = []
    for passage_id, gold in sorted(golds.items()):
        rng = query_rng(seed, 0, passage_id, "rename variables")
        text = rename_variables(gold.text, [_NAMES[at] for at in rng.permutation(len(_NAMES)).tolist()])
        if text is not None:
            made = Passage(f"{passage_id}~renamed", gold.title, text)
            new.append(made)
            asked = queries_of[passage_id]
            rows += [SecondPositive(one, made.passage_id, "renamed", (passage_id,)) for one in asked]
    return new, sorted(rows, key=SecondPositive.order)


def _is_special(name: str) -> bool:
    return name.startswith("__") or name in ("self", "cls", "_") or hasattr(builtins, name) or keyword.iskeyword(name)


def _numbered(names: list[str]) -> Iterator[str]:
    yield from names
    number = 2
    while True:
        yield from (f"{name}{number}" for name in names)
        number += 1


class _Scan(ast.NodeVisitor):
    """Which names the code binds (in order), which must stay, and all that occur."""

    def __init__(self) -> None:
        self.bound: dict[str, None] = {}
        self.fixed: set[str] = set()
        self.seen: set[str] = set()
        self.by_name = False
        self._in_class = False

    def visit_Name(self, node: ast.Name) -> None:
        self.seen.add(node.id)
        self.by_name |= node.id in _BY_NAME
        if isinstance(node.ctx, ast.Store | ast.Del):
            if self._in_class:
                self.fixed.add(node.id)
            else:
                self.bound[node.id] = None

    def visit_Constant(self, node: ast.Constant) -> None:
        # Data frames read the variables of their caller out of query strings: "age > @limit".
        if isinstance(node.value, str):
            self.fixed.update(re.findall(r"@(\w+)", node.value))

    def visit_arg(self, node: ast.arg) -> None:
        self.seen.add(node.arg)
        self.bound[node.arg] = None
        super().generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.by_name |= node.attr in _BY_NAME
        self.generic_visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self.fixed.update(((node.asname or node.name).split(".")[0], node.name.split(".")[0]))

    def generic_visit(self, node: ast.AST) -> None:
        """All other names stay: of functions, classes, keyword arguments, exceptions, patterns, ``global``."""
        names = [getattr(node, field, None) for field in ("name", "arg", "rest")]
        self.fixed.update(name for name in [*names, *getattr(node, "names", ())] if isinstance(name, str))
        outer = self._in_class
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self._in_class = isinstance(node, ast.ClassDef)
        super().generic_visit(node)
        self._in_class = outer


class _Rename(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.arg = self.names.get(node.arg, node.arg)
        self.generic_visit(node)
        return node
