"""Code search: which functions become pairs, and that the choice is a function of the packages alone."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from raydr.data.readers.base import Row
from raydr.data.readers.code_search import CodeSearchReader, fold
from raydr.data.rows import BadRows
from raydr.errors import DataError

ALPHA = '''
def area(width, height):
    """Compute the covered area.

    Args:
        width: in metres
    """
    if width < 0:
        raise ValueError("area needs a width")
    return width * height


class Box:
    def area(self):
        """Give the size of this box."""
        def helper():
            """Count things inside a function."""
            return 1
        return area(self.width, self.height)

    def abstract(self):
        """Do something in a subclass."""
        raise NotImplementedError

    def load(self):
        """Read everything there is."""
        return 1
'''
BETA = '''
def load(path):
    """Read everything  there is"""
    return open(path)

def surface(width, height):
    """Tell how large something is."""
    if width < 0:
        raise ValueError("surface needs a width")
    return width * height

def count(rows):
    """Count all the rows."""
    return len(rows)
'''


@pytest.fixture
def site_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two installed distributions, ``alpha-lib`` 1.0 and ``beta`` 2.0."""
    for name, module, version, text in (("alpha_lib", "alpha", "1.0", ALPHA), ("beta", "beta", "2.0", BETA)):
        install(tmp_path, name, version, {f"{module}/main.py": text, f"{module}/tests/test_main.py": text})
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    for file, text in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(text.encode("latin-1"))


def read(reader: CodeSearchReader) -> tuple[list[Row], BadRows]:
    bad_rows = BadRows("packages")
    return [row for source in reader.sources() for row in reader.read(source, bad_rows)], bad_rows


def queries_of(rows: list[Row]) -> list[str]:
    return [row.values["text"] for row in rows if row.table == "queries"]


def test_pairs_are_unique_on_both_sides_and_name_their_place(site_packages: Path) -> None:
    rows, bad_rows = read(CodeSearchReader(packages=["beta", "alpha-lib"]))
    # "Read everything there is" stands over two codes, so both are dropped; area and surface are the same code
    # once masked, so the first in the order of distributions stays.
    assert queries_of(rows) == ["Compute the covered area.", "Give the size of this box.", "Count all the rows."]
    assert bad_rows.count == 0
    first = next(row.values for row in rows if row.table == "passages")
    assert first["source"] == "alpha-lib==1.0:alpha/main.py"
    assert first["line"] == 2
    assert first["text"] == (
        'def f(width, height):\n    if width < 0:\n        raise ValueError("f needs a width")\n'
        "    return width * height"
    )


def test_order_of_packages_changes_nothing(site_packages: Path) -> None:
    reader, other = CodeSearchReader(packages=["alpha-lib", "beta"]), CodeSearchReader(packages=["beta", "Alpha_Lib"])
    assert read(reader)[0] == read(other)[0]
    assert reader.content_key() == other.content_key()
    assert reader.content_key()["packages"] == ["alpha-lib==1.0", "beta==2.0"]


def test_a_subset_is_nested_and_keeps_its_splits(site_packages: Path) -> None:
    everything = read(CodeSearchReader(packages=["alpha-lib", "beta"], dev=0.3, test=0.3))[0]
    two = read(CodeSearchReader(packages=["alpha-lib", "beta"], dev=0.3, test=0.3, num_pairs=2))[0]
    one_pair = read(CodeSearchReader(packages=["alpha-lib", "beta"], dev=0.3, test=0.3, num_pairs=1))[0]
    assert len(queries_of(two)) == 2
    assert set(queries_of(one_pair)) < set(queries_of(two))
    assert all(row in everything for row in two)


def test_more_pairs_than_there_are_is_an_error(site_packages: Path) -> None:
    with pytest.raises(DataError, match=r"give 3 pairs.*num_pairs asks for 4"):
        read(CodeSearchReader(packages=["alpha-lib", "beta"], num_pairs=4))


def test_a_package_that_is_not_installed_is_named() -> None:
    with pytest.raises(DataError, match="'no-such-package', which is not installed"):
        CodeSearchReader(packages=["no-such-package"]).sources()


def test_files_that_are_not_python_are_bad_rows(site_packages: Path) -> None:
    files = {"gamma/old.py": "print 'x'\n", "gamma/latin.py": "# caf\xe9\n", "gamma/ok.py": BETA}
    install(site_packages, "gamma", "3.0", files)
    rows, bad_rows = read(CodeSearchReader(packages=["gamma"]))
    assert len(queries_of(rows)) == 3
    assert [row.reason.split(":")[1].split(" is not ")[0] for row in bad_rows.kept] == [
        "gamma/latin.py",
        "gamma/old.py",
    ]
    assert "Python source" in bad_rows.kept[1].reason


def test_splits_have_their_shares() -> None:
    reader = CodeSearchReader(packages=["pytest"], dev=0.2, test=0.1)
    splits = [reader.split_of(f"{at:x}") for at in range(4000)]
    assert splits.count("dev") / 4000 == pytest.approx(0.2, abs=0.03)
    assert splits.count("test") / 4000 == pytest.approx(0.1, abs=0.03)


def test_shares_that_leave_no_training_data_are_refused() -> None:
    with pytest.raises(ValidationError, match="leave nothing to train on"):
        CodeSearchReader(packages=["pytest"], dev=0.5, test=0.5)


def test_real_code_stays_valid_and_unique() -> None:
    rows, _ = read(CodeSearchReader(packages=["pytest"]))
    passages = [row.values for row in rows if row.table == "passages"]
    assert len(passages) > 100
    for passage in passages:
        ast.parse(passage["text"])
    assert len({fold(passage["text"]) for passage in passages}) == len(passages)
    assert len({fold(query) for query in queries_of(rows)}) == len(passages)


def test_reading_imports_nothing(site_packages: Path) -> None:
    read(CodeSearchReader(packages=["alpha-lib"]))
    assert "alpha" not in sys.modules
