"""Rounds of AR2: a ranker step and a retriever step on what the sieve leaves, in nodes of the refresh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

import raydr
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.pipeline.rounds import Round, lay_out


@pytest.fixture
def configure(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> Any:
    def parse(num_rounds: int = 3, **refresh: Any) -> RunConfig:
        settings: dict[str, Any] = {
            "train": {"num_epochs": 1, "num_hard_negatives": 3, "loss": "ar2", "in_batch_negatives": False},
            "ranker": {
                "model": {"checkpoint": tiny_checkpoint, "max_length": 48},
                "batch_size": 8,
                "num_hard_negatives": 3,
                "dtype": "float32",
            },
            "evaluate": {"measures": ["RR@10"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
            "judge": {"judges": ["sieve"]},
            "refresh": {
                "num_rounds": num_rounds,
                "evaluate_splits": ["dev"],
                "rounds": {1: {"train": {"loss": "nce"}, "judges": []}, 2: {"ranker": {"num_epochs": 2}}},
            }
            | refresh,
        }
        return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))

    return parse


def rounds_of(config: RunConfig) -> list[Round]:
    [arm] = lay_out(recipe_of(config).context)
    return arm.rounds


@pytest.mark.usefixtures("here")
def test_rankers_and_retrievers_go_on_from_each_other(configure: Any) -> None:
    warmup, second, third = rounds_of(configure())
    assert warmup.ranker is None
    assert "ranker_scores" not in warmup.model.inputs
    for after, before in ((second, warmup), (third, second)):
        assert after.ranker is not None
        assert after.judged.negatives is not None
        # What the last retriever mined and the sieve left is what both learn from.
        assert after.judged.negatives.inputs["negatives"].inputs["run"].inputs["index"].inputs["model"] is before.model
        assert after.ranker.inputs["negatives"] is after.model.inputs["negatives"] is after.judged.negatives
        scores = after.model.inputs["ranker_scores"]
        assert (scores.inputs["model"], scores.inputs["negatives"]) == (after.ranker, after.judged.negatives)
        assert after.model.inputs["start"] is before.model
    assert second.ranker is not None
    assert third.ranker is not None
    assert [later.ranker.arguments["settings"].num_epochs for later in (second, third)] == [2, 1]
    assert "start" not in second.ranker.inputs
    assert third.ranker.inputs["start"] is second.ranker
    # From scratch, and with a ranker that stays as the second round left it.
    scratch = rounds_of(configure(start="scratch"))
    assert scratch[2].ranker is not None
    assert "start" not in scratch[2].ranker.inputs
    still = rounds_of(configure(rounds={1: {"train": {"loss": "nce"}}, 3: {"ranker": {"num_epochs": 0}}}))
    assert still[2].ranker is still[1].ranker
    # A teacher of its own name is the same in all rounds.
    fixed = rounds_of(configure(rounds={number: {"train": {"ranker": "untrained"}} for number in (1, 2, 3)}))
    teachers = {ar2_round.model.inputs["ranker_scores"].inputs["model"].key for ar2_round in fixed}
    assert [ar2_round.ranker for ar2_round in fixed] == [None, None, None]
    assert len(teachers) == 1


def test_two_rounds_from_data_to_their_table(configure: Any, capsys: Any) -> None:
    config = configure(num_rounds=2)
    raydr.refresh(config)
    places = Places.of(config.workdir)
    ranker = places.open("refresh/refresh/round-2/ranker", "cross_encoder")
    model = places.open("refresh/refresh/round-2/model", "model")
    assert model.info["history"][0]["metrics"].keys() >= {"adversarial", "distillation"}
    judged = places.open("refresh/refresh/round-2/judged", "negatives")
    assert ranker.manifest.identity.inputs["negatives"] == judged.fingerprint
    [rounds] = json.loads((Path(config.workdir) / "refresh" / "rounds.json").read_text()).values()
    assert [row["number"] for row in rounds["rounds"]] == [1, 2]
    assert rounds["rounds"][1]["seconds"]["train"] > 0
    stories = [row["ranker"] and row["ranker"]["info"] for row in rounds["rounds"]]
    assert stories == [None, ranker.info]
    assert ranker.info["mined_by"] == "round-1, judged by sieve"
    page = (Path(config.workdir) / "refresh" / "report.html").read_text()
    assert f"{ranker.info['history'][ranker.info['best_epoch']]['metrics']['loss']:.4f}" in page
    capsys.readouterr()
    raydr.refresh(config)
    assert "nothing to make" in capsys.readouterr().err
