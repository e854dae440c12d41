"""Refreshes side by side: means over seeds, which pairs are tested, folders that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from experiments.refreshes_compared import compared
from raydr.data.tables import write_parquet
from raydr.errors import ArtifactError, ConfigError

NUM_QUERIES = 200


def refreshed(folder: Path, hits: dict[str, float], seed: int, num: int = NUM_QUERIES) -> str:
    """A working folder in which each arm's second round finds this share of the queries."""
    rng = np.random.default_rng(seed)
    rows = [
        {"query_id": f"q{at:03d}", "system": f"{arm}-2", "measure": "R@1", "value": float(rng.random() < share)}
        for arm, share in hits.items()
        for at in range(num)
    ]
    file = folder / "refresh" / "comparison" / "val" / "per_query.parquet"
    file.parent.mkdir(parents=True)
    write_parquet(pa.Table.from_pylist(rows), str(file))
    return str(folder)


def test_seeds_are_averaged_and_arms_and_settings_tested(tmp_path: Path) -> None:
    dual = [refreshed(tmp_path / f"dual-{seed}", {"random": 0.3, "hard": 0.6}, seed) for seed in range(3)]
    poly = [refreshed(tmp_path / "poly", {"random": 0.3, "hard": 0.9}, 9)]
    means, differences = compared({"dual": dual, "poly": poly}, ["random", "hard"], 2, "val")
    assert [row[:3] for row in means.rows] == [
        [f"{name}, {arm}", seeds, "R@1"] for name, seeds in (("dual", "3"), ("poly", "1")) for arm in ("random", "hard")
    ]
    assert 0.5 < float(means.rows[1][3].split()[0]) < 0.7
    by_arm = {(row[0], row[1]): (float(row[3].split()[0]), float(row[4])) for row in differences.rows}
    assert by_arm.keys() == {
        ("dual, hard", "dual, random"),
        ("poly, hard", "poly, random"),
        ("poly, random", "dual, random"),
        ("poly, hard", "dual, hard"),
    }
    assert by_arm["poly, hard", "dual, hard"][0] > 0.15
    assert by_arm["poly, hard", "dual, hard"][1] < 0.01
    assert by_arm["poly, random", "dual, random"][1] > 0.05


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    result = refreshed(tmp_path / "one", {"hard": 0.5}, 0)
    with pytest.raises(ArtifactError, match="has no refresh that was compared on split 'dev'"):
        compared({"dual": [result]}, ["hard"], 2, "dev")
    with pytest.raises(ConfigError, match=r"there is no 'hard-3' \(ARM-ROUND\); there are hard-2"):
        compared({"dual": [result]}, ["hard"], 3, "val")
    fewer = refreshed(tmp_path / "fewer", {"hard": 0.5}, 0, num=20)
    with pytest.raises(ConfigError, match="evaluated on different queries"):
        compared({"dual": [result, fewer]}, ["hard"], 2, "val")
