"""``raydr audit`` and ``raydr report``: what is asked is asked of the right model, and lands on the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import small_run
from typer.testing import CliRunner

import raydr
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.places import Places
from raydr.verbs import app


@pytest.fixture
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    settings: dict[str, Any] = {
        "name": "mine",
        "inject_noise": {"share": 0.25},
        "train": {"num_epochs": 1},
        "negatives": {"depth": 4},
        "judge": {"judges": [{"name": "consistency", "num_random": 20}]},
    }
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))


def invoke(config: RunConfig, verb: str, *options: str) -> str:
    file = Path(config.workdir).parent / "run.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    result = CliRunner().invoke(app, [verb, str(file), *options])
    assert result.exit_code == 0, result.output
    return result.output


def test_judges_are_separated_by_commas_and_the_report_shows_what_they_say(config: RunConfig) -> None:
    said = invoke(config, "audit", "--judges", "consistency, margin,", "--split", "train")
    # There is no trained model, and an audit does not train one.
    assert "there is no model 'trained'" in said
    places = Places.of(config.workdir)
    assert places.names("verdicts") == [
        "verdicts/consistency-train-untrained",
        "verdicts/margin-bm25-train-untrained",
    ]
    audit = places.open("audits/untrained-train", "audit")
    assert audit.manifest.identity.config["judges"] == ["consistency", "margin"]
    invoke(config, "report", "--set", "name=other")
    page = Path(config.workdir, "report.html").read_text()
    assert "other" in page
    assert "audits/untrained-train/" in page


def test_without_judges_those_of_the_config_are_asked(config: RunConfig) -> None:
    [audit] = raydr.audit(config, model="untrained")
    assert audit.manifest.identity.config["judges"] == ["consistency"]


def test_the_truth_is_no_judge(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="truth is no judge that could be audited"):
        raydr.audit(config, judges="truth")
    with pytest.raises(ConfigError, match="unknown judge 'oracle'"):
        raydr.audit(config, judges="oracle")
