"""Known answers: figures are held against them, those that come with raydr are complete, and met where the data are."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import small_run
from typer.testing import CliRunner

import raydr
from raydr.config.run import RunConfig
from raydr.evaluation.metrics import parse_measures
from raydr.verbs.app import app

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in (ROOT / "configs" / "benchmarks").glob("*.yaml"))
#: Where the data sets of ``configs/benchmarks`` are looked for, each in a folder of its own.
DATA = Path(os.environ.get("RAYDR_BENCHMARKS", ROOT.parent / "shared" / "data"))


@pytest.fixture
def settings(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> dict[str, Any]:
    evaluate = {"measures": ["nDCG@10", "R@5"], "bootstrap_samples": 100, "permutations": 100}
    return small_run(beir_folder, tiny_checkpoint, tmp_path / "w", evaluate=evaluate)


def known(value: float, system: str = "bm25", **changes: Any) -> dict[str, Any]:
    return {"system": system, "measure": "nDCG@10", "value": value, "tolerance": 0.01, "source": "a table"} | changes


def test_figures_are_held_against_what_is_known(settings: dict[str, Any], tmp_path: Path) -> None:
    [measured] = raydr.evaluate(RunConfig.parse(settings), ["bm25"])
    mean = measured.info["means"]["bm25"]["nDCG@10"]
    answers = [known(mean + 0.009), known(mean - 0.011), known(0.5, "trained"), known(0.5, split="dev")]
    settings["benchmark"] = {"systems": ["bm25"], "known": answers}
    checked = raydr.benchmark(RunConfig.parse(settings))
    assert [answer.agrees for answer in checked] == [True, False, None, None]
    assert checked[0].measured is not None
    assert checked[0].measured.mean == pytest.approx(mean)

    def run(number_of_answers: int) -> Any:
        settings["benchmark"]["known"] = answers[:number_of_answers]
        file = tmp_path / "mine.yaml"
        file.write_text(yaml.safe_dump(settings))
        return CliRunner().invoke(app, ["benchmark", str(file)])

    assert run(1).exit_code == 0
    failed = run(2)
    assert failed.exit_code == 1
    assert re.search(rf"bm25 +│ nDCG@10 +│ +{mean:.4f} │ +{mean - 0.011:.4f} │ ±0.01 +│ NO", failed.output)
    assert "nothing to compare" in run(0).output
    assert "not measured: trained nDCG@10 on test, bm25 nDCG@10 on dev" in " ".join(run(4).output.split())
    assert raydr.benchmark(RunConfig.parse(settings), dry_run=True) is None


@pytest.mark.parametrize("name", SHIPPED)
def test_what_is_known_is_measured(name: str) -> None:
    config = RunConfig.load(name)
    measured = parse_measures(config.evaluate.measures)
    for answer in config.benchmark.known:
        assert answer.system in config.benchmark.systems
        assert answer.split in config.data.test_splits
        assert set(parse_measures([answer.measure])) <= set(measured)
        # Wide enough for another tokeniser, too narrow for another method.
        assert 0 < answer.tolerance <= 0.02


def test_the_page_has_what_is_known() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    for name in SHIPPED:
        assert f"raydr benchmark {name}" in page
        for answer in RunConfig.load(name).benchmark.known:
            begins = re.escape(f"| {name} | `{answer.system}` | {answer.measure} | ")
            ends = re.escape(f" | {answer.value:.4f} ±{answer.tolerance:g} | yes")
            assert re.search(rf"^{begins}0\.\d{{4}}{ends}", page, flags=re.MULTILINE), (name, answer)


@pytest.mark.parametrize("name", ["scifact", "vaswani"])
def test_bm25_meets_the_known_answers_where_the_data_are(name: str, tmp_path: Path) -> None:
    if not (DATA / name).is_dir():
        pytest.skip(f"no {name} in {DATA}: set RAYDR_BENCHMARKS to the folder that has it")
    overrides = [f"data.reader.path={DATA / name}", f"workdir={tmp_path}", "tracking.enabled=false"]
    config = RunConfig.load(name, overrides)
    of_bm25 = [answer for answer in raydr.benchmark(config, ["bm25"]) if answer.known.system == "bm25"]
    assert of_bm25
    assert [answer.agrees for answer in of_bm25] == [True] * len(of_bm25)
