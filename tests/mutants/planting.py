"""Mistakes planted on purpose, one at a time, in a copy of a tree; the copy's tests should see each of them."""

from __future__ import annotations

import ast
import importlib
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import yaml

#: Where a mutant's file lies: only the package is planted in.
PACKAGE = "raydr"
#: Tests that take minutes by themselves, or show nothing that the others do not.
_LONG = "not e2e and not cluster and not chaos"
#: Seconds after which the tests of one mutant are ended.
_LIMIT_S = 900
#: Seconds that tests are given to clean up, Ray above all, once they are told to end.
_CLEAN_UP_S = 30
#: What the package and its tests import, and takes seconds.
_HEAVY = (
    "torch.distributed",
    "transformers.models.bert",
    "sklearn.mixture",
    "scipy.stats",
    "pandas",
    "pyarrow.parquet",
)
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)

#: ``killed``: a test failed that passes without the mutant; ``unclear``: one failed, and fails without it too;
#: ``not planted``: its text is not there exactly once, or what comes out is no Python.
Outcome = Literal["killed", "survived", "unclear", "not planted"]


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    Args:
        area: what it is about; the name of the file that lists it.
        name: what it is called.
        suffers: what a user would suffer.
        file: where it is planted, from the root of the tree.
        text: what is there, exactly once.
        becomes: what is there instead.
        tests: the nearest ones, files or single tests; those that mirror the file if empty.
    """

    area: str
    name: str
    suffers: str
    file: str
    text: str
    becomes: str
    tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What the tests said of a mutant.

    Args:
        mutant: which one.
        outcome: whether it was seen.
        by: the test that failed first, or why it was not planted.
    """

    mutant: Mutant
    outcome: Outcome
    by: str = ""

    def row(self) -> dict[str, str]:
        """For JSON."""
        mutant = self.mutant
        return {
            "area": mutant.area,
            "name": mutant.name,
            "suffers": mutant.suffers,
            "outcome": self.outcome,
            "by": self.by,
        }


class NotPlantedError(Exception):
    """A mutant's text is not there exactly once, or what comes out is no Python."""


def load_mutants(folder: Path) -> list[Mutant]:
    """The mutants of a folder's lists, one YAML file an area.

    Raises:
        ValueError: two have the same name, or one changes nothing.
    """
    mutants = [
        Mutant(area=file.stem, **{**row, "tests": tuple(row.get("tests", ()))})
        for file in sorted(folder.glob("*.yaml"))
        for row in yaml.safe_load(file.read_text(encoding="utf-8"))
    ]
    names = [mutant.name for mutant in mutants]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{folder}: {', '.join(twice)}: two mutants have this name")
    if same := [mutant.name for mutant in mutants if mutant.text == mutant.becomes]:
        raise ValueError(f"{folder}: {', '.join(same)}: text and becomes are the same")
    return mutants


@contextmanager
def planted(tree: Path, mutant: Mutant) -> Iterator[None]:
    """The tree with the mutant in it.

    Raises:
        NotPlantedError: it cannot be planted.
    """
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8") if path.exists() else ""
    count = source.count(mutant.text)
    if count != 1:
        raise NotPlantedError(f"its text is {count} times in {mutant.file}")
    changed = source.replace(mutant.text, mutant.becomes)
    try:
        ast.parse(changed)
    except SyntaxError as error:
        raise NotPlantedError(f"{mutant.file} would be no Python: {error}") from error
    path.write_text(changed, encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")


def copy_tree(source: Path, target: Path) -> None:
    """Copy what git knows or would add: neither compiled files nor what runs have left."""
    listed = subprocess.run(
        ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (source / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, target / name)


def nearest_tests(tree: Path, mutant: Mutant) -> list[str]:
    """The docstring examples of its file, and the test files that are nearest to it."""
    file = Path(mutant.file)
    mirrored = f"tests/{'/'.join(file.parts[1:-1])}/test_{file.name}"
    named = list(mutant.tests) or [mirrored] * (tree / mirrored).exists()
    return [mutant.file, *named]


def wider_tests(tree: Path, mutant: Mutant) -> list[str]:
    """All tests of its package."""
    folder = f"tests/{Path(mutant.file).parts[1]}"
    return [folder] * (tree / folder).is_dir()


def try_mutant(tree: Path, mutant: Mutant, nearest_only: bool = False) -> Result:
    """Plant a mutant and run the nearest tests, those without Ray first; then, if none saw it, all of its package."""
    near, wide = nearest_tests(tree, mutant), [] if nearest_only else wider_tests(tree, mutant)
    rounds = [(near, f"{_LONG} and not ray"), (near, f"{_LONG} and ray"), (wide, _LONG)]
    try:
        with planted(tree, mutant):
            for tests, marked in rounds:
                failed = run_tests(tree, [*tests, "-x", "-m", marked]) if tests else []
                if failed:
                    return Result(mutant, "killed", failed[0])
    except NotPlantedError as error:
        return Result(mutant, "not planted", str(error))
    return Result(mutant, "survived")


def check_killers(tree: Path, results: Sequence[Result]) -> list[Result]:
    """Run each test that killed a mutant on the tree as it is: one that fails there too is no proof."""
    killers = sorted({result.by for result in results if result.outcome == "killed"})
    failing = set(run_tests(tree, killers)) if killers else set()
    return [
        replace(result, outcome="unclear") if result.outcome == "killed" and result.by in failing else result
        for result in results
    ]


def preload() -> None:
    """Import what takes seconds to import once, and not for every mutant; nothing of the package or of its tests."""
    # As conftest has it, which is too late for what is imported here.
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    for name in _HEAVY:
        importlib.import_module(name)


def run_tests(tree: Path, arguments: Sequence[str]) -> list[str]:
    """The tests that failed, by their ids; all of them together if they did not end in time.

    Raises:
        RuntimeError: pytest itself went wrong.
    """
    output = tree.with_name("output.txt")
    running = multiprocessing.get_context("fork").Process(target=_run_pytest, args=(tree, arguments, output))
    running.start()
    running.join(_LIMIT_S)
    if running.is_alive():
        assert running.pid is not None
        os.kill(running.pid, signal.SIGINT)
        running.join(_CLEAN_UP_S)
        running.kill()
        return [f"no end after {_LIMIT_S} s"]
    # 5: there is no such test.
    if running.exitcode in (0, 5):
        return []
    log = output.read_text(encoding="utf-8", errors="replace")
    failed = [test.strip() for test in _FAILED.findall(log)]
    if not failed:
        raise RuntimeError(f"pytest ended with {running.exitcode}:\n{log[-2000:]}")
    return failed


def _run_pytest(tree: Path, arguments: Sequence[str], output: Path) -> None:
    """Become a pytest that knows this tree only; in a process of its own."""
    sys.stdout = sys.stderr = file = output.open("w", encoding="utf-8")
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    own = {PACKAGE, "tests"}
    for name in [name for name in sys.modules if name.partition(".")[0] in own]:
        del sys.modules[name]
    elsewhere = {"", os.getcwd()}
    os.chdir(tree)
    sys.path[:] = [str(tree), str(tree / "tests"), *(path for path in sys.path if path not in elsewhere)]
    sys.argv = ["pytest", *arguments]
    # Of processes that tests spawn.
    multiprocessing.process.ORIGINAL_DIR = str(tree)  # type: ignore[attr-defined]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])
    # Files are changed within the second, and a compiled one would be taken for that of the file before.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    module_file = importlib.import_module(PACKAGE).__file__
    if not Path(str(module_file)).is_relative_to(tree):
        raise RuntimeError(f"tests in {tree} would import {module_file}")
    import pytest

    sys.stdout.flush()
    status = pytest.main(["-q", "-p", "no:cacheprovider", *arguments])
    sys.stdout.flush()
    os._exit(int(status))


def as_table(results: Sequence[Result]) -> str:
    """Markdown: how many mutants of each area were planted, and how many of them killed."""
    lines = ["| area | planted | killed |", "|---|---|---|"]
    planted_in, killed_in = (
        Counter(result.mutant.area for result in results if outcome in (None, result.outcome))
        for outcome in (None, "killed")
    )
    lines += [f"| {area} | {count} | {killed_in[area]} |" for area, count in sorted(planted_in.items())]
    return "\n".join([*lines, f"| all | {planted_in.total()} | {killed_in.total()} |"])
