"""Plant each mutant in a copy of the tree, and say which test sees it.

    python -m tests.mutants                         # all of them: half an hour or more
    python -m tests.mutants --area losses masks     # some
    python -m tests.mutants --tree ../before --mutants LISTS --json before.json

Ends with 1 if a mutant survives.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.planting import (
    Result,
    as_table,
    check_killers,
    copy_tree,
    load_mutants,
    preload,
    try_mutant,
)


def main() -> int:
    """Try the mutants, print a line each and a table of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path.cwd(), help="the checkout that is planted in; stays as it is")
    parser.add_argument("--mutants", type=Path, default=Path(__file__).parent, help="folder of lists, a file an area")
    parser.add_argument("--area", nargs="*", default=[], help="only these")
    parser.add_argument("--name", nargs="*", default=[], help="only these")
    parser.add_argument("--nearest-only", action="store_true", help="do not go on to all tests of the package")
    parser.add_argument("--json", type=Path, help="write the results to this file, anew after each mutant")
    arguments = parser.parse_args()
    mutants = [
        mutant
        for mutant in load_mutants(arguments.mutants)
        if (not arguments.area or mutant.area in arguments.area)
        and (not arguments.name or mutant.name in arguments.name)
    ]
    results = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        tree = Path(place).resolve() / "tree"
        copy_tree(arguments.tree.resolve(), tree)
        preload()
        for number, mutant in enumerate(mutants, start=1):
            started = time.monotonic()
            results.append(try_mutant(tree, mutant, arguments.nearest_only))
            result, seconds = results[-1], time.monotonic() - started
            print(
                f"{number}/{len(mutants)} {mutant.area}/{mutant.name}: {result.outcome} {result.by} ({seconds:.0f} s)"
            )
            sys.stdout.flush()
            _write(arguments.json, results)
        results = check_killers(tree, results)
    _write(arguments.json, results)
    print(as_table(results))
    left = [result for result in results if result.outcome != "killed"]
    print(*(f"{result.mutant.name}: {result.outcome} {result.by}" for result in left), sep="\n")
    return int(bool(left))


def _write(file: Path | None, results: list[Result]) -> None:
    if file is not None:
        file.write_text(json.dumps([result.row() for result in results], indent=1), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
