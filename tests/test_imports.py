"""The order of the house: files import downwards only, not in circles, and nothing that another one keeps private.

The sources are read, not run: imports inside functions and under ``TYPE_CHECKING`` count like all others.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Top floor first: a room imports from itself and from those below it.
FLOORS = (
    *("__main__", "api", "integrations", "verbs", "tuning", "ops", "pipeline", "artefacts", "pages"),
    *("config", "tracking", "distributed", "console"),
    *("training", "diagnosis", "indexing", "noise", "negatives", "models", "losses", "data", "evaluation"),
    *("store", "component", "errors", "seeding", "version"),
)
#: Tested in milliseconds, usable in a notebook: no Ray, no MLflow.
CORE = FLOORS[FLOORS.index("training") : FLOORS.index("store")]
ABOVE_THE_CORE = {"ray", "mlflow"}

#: Imports that still lead upwards or in a circle: (file, what it imports). An entry that is mended must leave.
KNOWN: set[tuple[str, str]] = set()


@dataclass
class Module:
    """What a file imports.

    Args:
        imports: modules of raydr.
        packages: names of other packages.
        private: names with a leading underscore that belong to another file.
    """

    imports: set[str] = field(default_factory=set)
    packages: set[str] = field(default_factory=set)
    private: set[str] = field(default_factory=set)


@cache
def modules() -> dict[str, Module]:
    """All files of the package by their dotted names."""
    files = {_name(path): path for path in (ROOT / "raydr").rglob("*.py")}
    return {name: _read(path, files.keys()) for name, path in files.items()}


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(path: Path, known: Collection[str]) -> Module:
    result, tree = Module(), ast.parse(path.read_text(encoding="utf-8"))
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        targets: list[tuple[str, str, str]] = []
        if isinstance(node, ast.Import):
            targets = [(alias.name, "", alias.asname or alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            targets = [(node.module or "", alias.name, alias.asname or alias.name) for alias in node.names]
        for module, name, bound in targets:
            package = module.partition(".")[0]
            if package != "raydr":
                result.packages.add(package)
                continue
            whole = f"{module}.{name}"
            result.imports.add(whole if whole in known else module)
            if name.startswith("_") and not name.startswith("__"):
                result.private.add(whole)
            if not name or whole in known:
                aliases[bound] = module if not name else whole
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            owner = aliases.get(ast.unparse(node.value))
            if owner is not None:
                result.private.add(f"{owner}.{node.attr}")
    return result


def room_of(module: str) -> str:
    """The package or file below ``raydr`` that a module belongs to; the face, what ``import raydr`` gives, is of the
    Python API.

    >>> room_of("raydr.artefacts.model"), room_of("raydr.errors"), room_of("raydr")
    ('artefacts', 'errors', 'api')
    """
    return [*module.split("."), "api"][1]


def upward() -> set[tuple[str, str]]:
    return {
        (name, target)
        for name, module in modules().items()
        for target in module.imports
        if FLOORS.index(room_of(name)) > FLOORS.index(room_of(target))
    }


def in_circles() -> set[tuple[str, str]]:
    """Imports of files from which a way of imports leads back."""
    graph = {name: module.imports - {name} for name, module in modules().items()}

    def reaches(start: str, goal: str) -> bool:
        seen, pending = set(), [start]
        while pending:
            at = pending.pop()
            if at == goal:
                return True
            if at not in seen:
                seen.add(at)
                pending.extend(graph[at])
        return False

    return {(name, target) for name, targets in graph.items() for target in targets if reaches(target, name)}


def test_every_file_has_its_floor() -> None:
    assert {room_of(name) for name in modules()} <= set(FLOORS)


def test_imports_go_down_and_never_in_circles() -> None:
    faults = upward() | in_circles()
    assert sorted(faults - KNOWN) == []
    assert sorted(KNOWN - faults) == [], "these are mended: take them out of KNOWN"


def test_the_core_knows_neither_ray_nor_mlflow() -> None:
    offenders = {
        name for name, module in modules().items() if room_of(name) in CORE and module.packages & ABOVE_THE_CORE
    }
    assert sorted(offenders) == []


def test_what_a_file_keeps_private_is_its_own() -> None:
    offenders = {name: module.private for name, module in modules().items() if module.private}
    assert offenders == {}


def test_every_way_of_importing_is_seen(tmp_path: Path) -> None:
    source = tmp_path / "source.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "import raydr.errors as wrong\n"
        "from raydr.data import corpus\n"
        "if TYPE_CHECKING:\n"
        "    from raydr.data.corpus import Corpus, _hidden\n"
        "def late():\n"
        "    import ray.data, raydr.seeding\n"
        "    return wrong._format, corpus._map, raydr.seeding._mix, raydr.seeding.__name__, wrong.shown._own\n"
    )
    module = _read(source, {"raydr.errors", "raydr.data.corpus", "raydr.seeding"})
    assert module.imports == {"raydr.errors", "raydr.data.corpus", "raydr.seeding"}
    assert module.packages == {"typing", "ray"}
    assert module.private == {
        "raydr.data.corpus._hidden",
        "raydr.errors._format",
        "raydr.data.corpus._map",
        "raydr.seeding._mix",
    }
