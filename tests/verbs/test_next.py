"""What verbs suggest as the next command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raydr.artefacts.places import Places
from raydr.config.files import apply_override
from raydr.config.run import RunConfig
from raydr.diagnosis.diagnosis import Finding
from raydr.verbs import diagnosis
from raydr.verbs.command import next_by_options, suggest_next

HARD = {"negatives": {"miner": "bm25"}, "train": {"num_hard_negatives": 2}, "variants": {"mine": {"loss": "npc"}}}
FROM_BM25 = ["--set", "negatives.miner=bm25", "--set", "train.num_hard_negatives=1"]


@pytest.mark.parametrize(
    ("verb", "options", "settings", "following"),
    [
        ("train", {"name": "trained"}, HARD, ("evaluate", [])),
        ("train", {"name": "mine"}, HARD, ("evaluate", [])),
        # Only models of the config are evaluated unasked.
        ("train", {"name": "mine"}, {}, ("evaluate", ["--system", "mine"])),
        ("index", {"model": "mine"}, {}, ("evaluate", ["--system", "mine"])),
        ("import_vectors", {"system": "bge", "split": "train"}, {}, ("evaluate", ["--system", "bge"])),
        ("train", {"name": "ranker"}, {}, ("rerank", [])),
        ("train", {"name": "ranker-bce"}, {}, ("rerank", ["--by", "ranker-bce"])),
        # Candidates are drawn by trainings that are set to.
        ("mine", {"miner": "", "split": ""}, HARD, ("train", [])),
        ("mine", {"miner": "", "split": "train"}, {}, ("train", FROM_BM25)),
        ("mine", {"miner": "trained"}, HARD, ("train", ["--set", "negatives.miner=trained"])),
        ("mine", {"miner": "", "split": "test"}, HARD, None),
        ("import_run", {"system": "lucene", "split": ""}, {}, ("evaluate", [])),
        ("import_run", {"system": "lucene", "split": "train"}, {}, ("mine", ["--miner", "lucene"])),
        ("import_run", {"system": "lucene", "split": "dev"}, {}, None),
        ("search", {"model": "trained", "split": "train"}, {}, ("mine", ["--miner", "trained"])),
        ("rerank", {"system": "trained", "split": "test"}, {}, ("evaluate", [])),
        ("gc", {}, {}, None),
    ],
)
def test_the_next_verb_uses_what_was_made(
    verb: str, options: dict[str, Any], settings: dict[str, Any], following: tuple[str, list[str]] | None
) -> None:
    config = RunConfig.parse({"data": {"reader": {"name": "beir", "path": "data"}}, **settings})
    assert next_by_options(verb, options, config) == following


def test_a_suggested_setting_overrides_those_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    suggest_next("train", "my.yaml", ["negatives=null"], options=FROM_BM25)
    shown = " ".join("".join(capsys.readouterr()).split())
    assert shown.endswith(f"train my.yaml --set negatives=null {' '.join(FROM_BM25)}")


@pytest.mark.parametrize(
    ("variants", "options"),
    [
        # The variant that `raydr prepare` writes is the remedy already.
        ({"npc": {"loss": "npc"}}, []),
        ({"npc": {"loss": "npc-paper"}}, ["--set", "variants.remedy.loss=npc"]),
        ({}, ["--set", "variants.remedy.loss=npc"]),
    ],
)
def test_diagnose_suggests_no_second_variant_with_the_same_settings(
    variants: dict[str, Any], options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Finding("mismatched_pairs", 0.4, "", ("train.loss=npc",), "")
    monkeypatch.setattr(diagnosis, "load_result", lambda artifact: SimpleNamespace(faults=[fault]))
    config = RunConfig.parse({"data": {"reader": {"name": "beir", "path": "data"}}, "variants": variants})
    made: Any = [SimpleNamespace(folder="work/store/diagnosis/1")]
    assert diagnosis.next_after_diagnose(made, config) == ("evaluate", options, "to test the first remedy")


def test_the_remedy_of_a_variant_keeps_what_the_variant_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variants: dict[str, Any] = {"long": {"num_epochs": 9, "optimizer": {"learning_rate": 0.01}}, "npc": {"loss": "npc"}}
    fault = Finding("learning_rate", 0.4, "", ("train.optimizer.learning_rate=3e-04",), "")
    monkeypatch.setattr(diagnosis, "load_result", lambda artifact: SimpleNamespace(faults=[fault]))
    data = {"reader": {"name": "beir", "path": "data"}}
    config = RunConfig.parse({"data": data, "variants": variants})
    Places.of(str(tmp_path)).point("diagnoses/long", "diagnosis", "a1")
    made: Any = [SimpleNamespace(folder=f"{tmp_path}/store/diagnosis/a1", fingerprint="a1")]
    _, options, _ = diagnosis.next_after_diagnose(made, config)
    raw: dict[str, Any] = {"data": data, "variants": variants}
    for override in options[1::2]:
        apply_override(raw, override)
    remedied = RunConfig.parse(raw).variant("remedy").train
    assert (remedied.num_epochs, remedied.optimizer.learning_rate) == (9, 3e-4)
