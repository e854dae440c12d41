"""``raydr benchmark noise``: every method on every set, with another's scores, in a table, records and a page."""

from __future__ import annotations

import csv
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
from conftest import make_sentence
from typer.testing import CliRunner

import raydr
from raydr.config.run import RunConfig
from raydr.errors import ConfigError, DataError
from raydr.noise.labelled import LabelledSet, read_labelled
from raydr.pipeline import noise_benchmark as noise_pipeline
from raydr.pipeline.findings import Noise
from raydr.pipeline.noise_benchmark import METHODS, SetFigures
from raydr.store import Artifact
from raydr.verbs import noise_benchmark
from raydr.verbs.app import app

NUM = 40
#: What a pair's label is, and what a perfect method says of it.
COLUMNS = ("query", "passage", "label", "source", "score")


def write_rows(file: Path, rows: list[tuple[str, ...]]) -> Path:
    with file.open("w", newline="") as opened:
        csv.writer(opened).writerows([COLUMNS, *rows])
    return file


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A query is its passage's words; every third pair has another query's."""
    rows = []
    for at in range(NUM):
        wrong = at % 3 == 0
        passage = make_sentence((at + 7) % NUM if wrong else at, 12)
        rows.append((make_sentence(at, 8), passage, str(int(not wrong)), ("web", "log")[at % 2], str(int(wrong))))
    return write_rows(tmp_path / "pairs.csv", rows)


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    """Each query has two right passages, of which the first is its positive, and two wrong ones."""
    rows = []
    for at in range(20):
        texts = [make_sentence(at, 12), make_sentence(at, 16), make_sentence(at + 20, 12), make_sentence(at + 40, 12)]
        rows += [(make_sentence(at, 8), text, str(int(place < 2)), "", "0") for place, text in enumerate(texts)]
    return write_rows(tmp_path / "candidates.csv", rows)


def test_every_method_is_measured_and_written(
    pairs: Path, candidates: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--candidates", str(candidates), "--scores", f"perfect={pairs}", "--model", tiny_checkpoint]
    options += ["--query-length", "24", "--passage-length", "32"]
    arguments = ["benchmark", "noise", str(pairs), *options, "--samples", "100", "--out", str(out)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {"figures.csv", "figures.json", "page.md"}
    with (out / "figures.csv").open() as file:
        records = list(csv.DictReader(file))
    assert [
        {name: str(value) for name, value in record.items()}
        for record in json.loads((out / "figures.json").read_text())
    ] == records
    by_set: dict[str, set[str]] = {}
    for record in records:
        assert float(record["low"]) <= float(record["value"]) <= float(record["high"])
        by_set.setdefault(record["set"], set()).add(record["method"])
    both = {"cosine", "csls", "self-confidence", "late interaction", "npc"}
    assert by_set["pairs"] == {*both, "consistency", "perplexity", "npc cross-fitted", "perfect", "labels"}
    # The file of scores has the pairs of one set.
    assert by_set["candidates"] == {*both, "nv-retriever", "gist", "near_duplicate", "sieve"}
    assert by_set["pairs"] | by_set["candidates"] == {*METHODS, "perfect", "labels"}
    perfect = {record["measure"]: float(record["value"]) for record in records if record["method"] == "perfect"}
    assert perfect == {"AP": 1.0, "P@R.5": 1.0, "AUROC": 1.0}
    shares = {record["source"] for record in records if record["measure"] == "wrong"}
    assert shares == {"web", "log"}
    page = (out / "page.md").read_text()
    assert "### pairs\n\npairs: 40 pairs of 40 queries, 35.0% wrong pairs." in page
    assert "candidates: 60 candidates of 20 queries, 33.3% false negatives. Rows left out: 20 taken as the" in page
    assert "| `perfect` | 1.000 [1.000, 1.000] |" in page
    # One line a method, in 80 columns.
    assert re.search(r"^│ perfect +│ 1\.00±\.00 │ +1\.00 │ +1\.00 │ +│ +│ +│ +│$", result.output, re.MULTILINE)


def test_a_set_is_named_once(pairs: Path) -> None:
    with pytest.raises(ConfigError, match="at least one, each once"):
        raydr.benchmark_noise()
    with pytest.raises(ConfigError, match="at least one, each once"):
        raydr.benchmark_noise([pairs, pairs])
    with pytest.raises(ConfigError, match="expected a list of paths"):
        raydr.benchmark_noise(str(pairs))
    assert CliRunner().invoke(app, ["benchmark", "noise", str(pairs), "--scores", "mine"]).exit_code == 2


def test_an_interrupt_keeps_the_figures_of_finished_sets(
    pairs: Path, candidates: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, out = noise_benchmark.benchmark_set, tmp_path / "out"

    def interrupted(labelled: LabelledSet, *arguments: Any) -> SetFigures:
        if labelled.subject == "candidates":
            raise KeyboardInterrupt
        return measure(labelled, *arguments)

    monkeypatch.setattr(noise_benchmark, "benchmark_set", interrupted)
    options = ["--candidates", str(candidates), "--model", tiny_checkpoint, "--samples", "100", "--out", str(out)]
    options += ["--query-length", "24", "--passage-length", "32"]
    result = CliRunner().invoke(app, ["benchmark", "noise", str(pairs), *options])
    assert result.exit_code == 130, result.output
    assert "has the figures of the finished sets" in result.output.replace("\n", " ")
    assert {path.name for path in out.iterdir()} == {"figures.csv", "figures.json", "page.md"}
    assert "### pairs" in (out / "page.md").read_text()


def test_scores_that_measure_nothing_are_refused_before_any_work(pairs: Path, tmp_path: Path) -> None:
    strange = write_rows(tmp_path / "strange.csv", [("a", "b", "1", "", "0.5")])
    with pytest.raises(DataError, match=r"--scores mine: .*strange.csv has no pair of any set"):
        raydr.benchmark_noise([pairs], scores={"mine": strange}, out=tmp_path / "out")
    with pytest.raises(ConfigError, match=r"--scores cosine: the benchmark has a method of this name"):
        raydr.benchmark_noise([pairs], scores={"cosine": pairs}, out=tmp_path / "out")
    twice = ["--scores", f"mine={pairs}", "--scores", f"mine={strange}"]
    result = CliRunner().invoke(app, ["benchmark", "noise", str(pairs), *twice])
    assert result.exit_code == 2
    assert not (tmp_path / "out").exists()


def test_an_inconclusive_detector_flags_no_candidate(candidates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labelled = read_labelled(candidates, "candidates")
    count = len(labelled.queries)
    table = pd.DataFrame({"p_wrong": [0.5] * count, "flagged": [False] * count})
    ids = [("q", str(at)) for at in range(count)]
    config = cast(RunConfig, None)
    for reason, num_flagged in (("too few", 0), ("", count)):
        noise = Noise(table, reason, ids, config, cast(Artifact, None))
        monkeypatch.setattr(noise_pipeline, "find_mismatched", lambda *_, noise=noise: noise)
        monkeypatch.setattr(noise_pipeline, "open_session", lambda _: nullcontext())
        detected = noise_pipeline.detect_wrong_labels(labelled, "npc", config)
        assert detected.flagged_N is not None
        assert detected.flagged_N.sum() == num_flagged
