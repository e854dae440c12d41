"""Faults in real data: each harms what it says, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from experiments.seeded_faults import FAULTS, Part, main
from raydr.config.run import RunConfig
from raydr.diagnosis.diagnosis import Check


@pytest.fixture
def part(beir_folder: Path) -> Part:
    return Part(beir_folder, seed=3)


def test_a_part_depends_on_its_seed_alone(beir_folder: Path, part: Part, tmp_path: Path) -> None:
    again = Part(beir_folder, seed=3)
    assert (again.qrels, list(again.passages)) == (part.qrels, list(part.passages))
    part.write(tmp_path / "written")
    assert Part(tmp_path / "written", seed=3).queries.keys() == part.queries.keys()


def test_pairs_are_exchanged_in_one_split(beir_folder: Path, part: Part) -> None:
    part.exchange("train", 0.5)
    whole = Part(beir_folder, seed=3)
    wrong = [new for new, old in zip(part.qrels["train"], whole.qrels["train"], strict=True) if new != old]
    assert len(wrong) == len(part.qrels["train"]) // 2
    assert sorted(row[1] for row in part.qrels["train"]) == sorted(row[1] for row in whole.qrels["train"])
    assert part.qrels["dev"] == whole.qrels["dev"]


def test_judgments_are_lost_and_queries_leaked(part: Part) -> None:
    part.lose("test", 1)
    assert not any(row[1] in part.passages for row in part.qrels["test"])
    num = len(part.qrels["train"])
    part.leak("dev", 1)
    leaked = part.qrels["train"][num:]
    assert [row[1] for row in leaked] == [row[1] for row in part.qrels["dev"]]
    assert all(row[0] in part.queries for row in leaked)


def test_every_fault_has_a_check_and_settings_that_a_config_takes() -> None:
    for name, fault in FAULTS.items():
        RunConfig.load("example", [f"{key}={value}" for key, value in fault.settings.items()])
        assert fault.check is None or fault.check in Check.choices(), name


def test_an_unknown_fault_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["seeded_faults", "somewhere", "--faults", "none,noise"])
    with pytest.raises(SystemExit):
        main()
    assert "there is no 'noise'; there are none, mismatched" in capsys.readouterr().err
