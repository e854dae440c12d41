"""The notebooks run from top to bottom in a folder of their own, and show what they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from patience import PATIENCE_S

nbformat = pytest.importorskip("nbformat", reason="the notebooks need the extra dev: nbclient, ipykernel")
nbclient = pytest.importorskip("nbclient", reason="the notebooks need the extra dev: nbclient, ipykernel")

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
#: What must hold when a notebook has run, in its own names.
SHOWN = {
    "own_pairs": """
means = table.pivot(index="system", columns="measure", values="mean")["nDCG@10"]
assert means["trained"] > means["untrained"] > means["bm25"], means
assert Path("work/own-pairs/report.html").is_file()
""",
    "noisy_pairs": """
assert 0.4 < detection["share_flagged"] < 0.6, detection
assert min(detection["precision"], detection["recall"]) > 0.8, detection
means = found.to_pandas().pivot(index="system", columns="measure", values="mean")["nDCG@10"]
assert means["npc"] > means["untrained"] + 0.2, means
""",
}


def test_every_notebook_is_known() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SHOWN)


@pytest.mark.e2e
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_says(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel is a process of its own.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    notebook.cells.append(nbformat.v4.new_code_cell(SHOWN[path.stem]))
    nbclient.NotebookClient(
        notebook, timeout=None, startup_timeout=PATIENCE_S, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
