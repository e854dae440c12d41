"""Refresh rounds: what a changed setting does again, and two arms from raw data to their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import BusyError, ConfigError
from raydr.graph.job import open_job
from raydr.graph.refresh import plan_only, run_refresh
from raydr.graph.refresh_plan import plan_refresh
from raydr.graph.refresh_results import RoundResult
from raydr.graph.steps import required
from raydr.store.artifact import Artifact, only_writer
from raydr.store.folder import Folder


def run_config(beir_folder: Path, checkpoint: str, workdir: Path, **sections: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "train": {"num_epochs": 1},
        "model": {"dropout": 0.0},
        "encode": {"token_budget": 1024},
        "evaluate": {"measures": ["RR@10", "R@5"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
        "judge": {"judges": [{"name": "margin"}]},
        "refresh": {"num_rounds": 2},
    }
    for name, changes in sections.items():
        settings[name] = settings.get(name, {}) | changes
    return RunConfig.parse(small_run(beir_folder, checkpoint, workdir, **settings))


@pytest.fixture
def planned(beir_folder, tiny_checkpoint, tmp_path, tiny_data):
    """Plans of small runs: only fingerprints and counts of the data are read."""
    corpus, dataset = Artifact.open(tiny_data[0], "corpus"), Artifact.open(tiny_data[1], "dataset")

    def plan(**sections: Any):
        sections.setdefault("refresh", {"num_rounds": 3})
        sections["refresh"] = {"evaluate_splits": ["dev"]} | sections["refresh"]
        config = run_config(beir_folder, tiny_checkpoint, tmp_path, **sections)
        return plan_refresh(config, Folder(str(tmp_path / "refresh")), dataset, corpus)

    return plan


def labels(plan) -> list[str]:
    return [step.label for step in required(plan.steps)]


def keys(plan) -> dict[str, str]:
    return {step.label: step.key for step in plan.steps}


def test_every_round_mines_with_the_model_of_the_one_before(planned):
    found = labels(planned())
    assert found[:2] == ["round-0/bm25", "round-0/bm25-run-train"]
    for number in (1, 2, 3):
        names = [label.partition("/")[2] for label in found if label.startswith(f"round-{number}/")]
        assert ("run-train" in names) == (number > 1)
        assert {"mine", "statistics", "train", "passages", "index", "run-dev", "evaluate-dev"} <= set(names)


def test_only_what_depends_on_a_change_gets_another_key(planned):
    before = keys(planned())
    later = keys(planned(refresh={"num_rounds": 3, "rounds": {3: {"negatives": {"first_rank": 3}}}}))
    changed = {label for label in before if before[label] != later[label]}
    assert changed == {label for label in before if label.startswith("round-3/")} - {"round-3/run-train"}
    assert keys(planned(encode={"max_actors": 2}, train={"num_workers": 2})) == before
    assert keys(planned(train={"batch_size": 4}))["round-1/train"] != before["round-1/train"]
    assert keys(planned(train={"batch_size": 4}))["round-1/mine"] == before["round-1/mine"]


def test_arms_share_the_rounds_in_which_they_agree(planned):
    arms = {"plain": {}, "judged": {"rounds": {2: {"judges": ["margin"]}}}}
    plan = planned(refresh={"num_rounds": 2, "arms": arms})
    plain, judged = plan.arms
    assert plain.rounds[0].model is judged.rounds[0].model
    assert plain.rounds[1].mined is judged.rounds[1].mined
    assert plain.rounds[1].model is not judged.rounds[1].model
    assert judged.rounds[1].judged is not None
    assert labels(plan).count("round-1/train") == 1
    assert labels(plan).count("round-2/train") == 2


def test_a_round_from_scratch_and_a_kept_optimizer_are_other_models(planned):
    base = keys(planned())["round-2/train"]
    scratch = planned(refresh={"num_rounds": 3, "start": "scratch"})
    assert keys(scratch)["round-2/train"] != base
    assert "start" not in scratch.arms[0].rounds[1].model.needs
    kept = planned(refresh={"num_rounds": 3, "optimizer": "kept"})
    settings = [one.model.settings for one in kept.arms[0].rounds]
    assert [one["keep_optimizer"] for one in settings] == [True, True, False]
    assert [one["with_optimizer"] for one in settings] == [False, True, True]


def test_the_classifier_is_trained_once_or_in_each_round(planned):
    once = planned(refresh={"num_rounds": 3, "judges": ["classifier"]})
    assert labels(once).count("round-1/classifier") == 1
    assert "round-2/classifier" not in labels(once)
    each = planned(refresh={"num_rounds": 3, "judges": ["classifier"], "classifier": "each_round"})
    assert {"round-1/classifier", "round-2/classifier", "round-3/classifier"} <= set(labels(each))


def test_a_split_without_queries_is_refused(planned):
    with pytest.raises(ConfigError, match=r"no queries of split 'nix'; it has dev, train"):
        planned(refresh={"num_rounds": 1, "evaluate_splits": ["nix"]})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"evaluate_splits": ["test"]}, r"refresh\.evaluate_splits has no 'dev'"),
        ({"measure": "R@7"}, r"refresh\.measure 'R@7' is not among evaluate\.measures"),
    ],
)
def test_rounds_whose_best_could_not_be_chosen_do_not_begin(
    ray_local, beir_folder, tiny_checkpoint, tmp_path, settings, said
):
    config = run_config(beir_folder, tiny_checkpoint, tmp_path / "w", refresh=settings)
    with pytest.raises(ConfigError, match=said), open_job(config) as job:
        job.prepare()
        run_refresh(job)
    assert not (tmp_path / "w" / "refresh").exists()


def test_a_search_demands_all_its_actors_at_a_time(planned):
    # 120 passages in shards of 50.
    asked = {"index": {"shard_rows": 50}, "search": {"cpus_per_actor": 2, "device": "cpu"}}
    steps = planned(**asked).steps
    assert {str(step.demand) for step in steps if "/run-" in step.label} == {str({"CPU": 6.0})}


def test_a_comparison_is_made_again_for_another_baseline(planned):
    plan = planned(refresh={"num_rounds": 2})
    first, second = (one.runs["dev"] for one in plan.arms[0].rounds)
    made = [
        plan.book.evaluate(f"comparison/{at}", "dev", plan.arms[0].rounds[0].config, runs).settings
        for at, runs in enumerate(({"a": first, "b": second}, {"b": second, "a": first}))
    ]
    assert made[0] != made[1]


def test_judges_that_nothing_is_mined_for_are_refused(planned):
    nothing_mined: dict[str, Any] = {"train": {"num_hard_negatives": 0}}
    with pytest.raises(ConfigError, match=r"refresh.judges: margin judges hard negatives"):
        planned(**nothing_mined, refresh={"num_rounds": 1, "judges": ["npc", "margin"]})
    with pytest.raises(ConfigError, match=r"judge.classifier.num_hard_negatives is 1, and with"):
        planned(
            **nothing_mined,
            refresh={"num_rounds": 1, "judges": ["pair_classifier"]},
            judge={"classifier": {"num_hard_negatives": 1}},
        )


def test_pairs_are_judged_where_nothing_is_mined(planned):
    plan = planned(
        train={"num_hard_negatives": 0},
        refresh={"num_rounds": 2, "judges": ["npc", "pair_classifier"]},
        judge={"classifier": {"num_hard_negatives": 0}},
    )
    assert not [label for label in labels(plan) if "mine" in label]
    for one in plan.arms[0].rounds:
        assert [step.label.partition("/")[2] for step in one.verdicts] == ["judge-npc", "judge-pair_classifier"]
        pairs = one.model.needs["pairs"]
        assert set(pairs.needs.values()) == set(one.verdicts)


@pytest.mark.ray
def test_two_arms_to_their_table_and_nothing_twice(ray_local, beir_folder, tiny_checkpoint, tmp_path, capsys):
    arms = {"plain": {}, "judged": {"rounds": {2: {"judges": ["margin"]}}}}
    refresh = {
        "num_rounds": 2,
        "optimizer": "kept",
        "keep_vectors": 1,
        "evaluate_splits": ["dev"],
        "arms": arms,
    }
    config = run_config(beir_folder, tiny_checkpoint, tmp_path, refresh=refresh)
    with open_job(config) as job:
        first = run_refresh(job)
        again = run_refresh(job)
        with only_writer(job.workspace.refresh), pytest.raises(BusyError, match=r"another raydr process \(pid \d+\)"):
            run_refresh(job)
    assert again.rounds["plain"] == first.rounds["plain"]
    assert again.rounds["judged"] == first.rounds["judged"]
    assert "steps are done" in capsys.readouterr().err
    assert list(first.rounds) == ["plain", "judged"]
    assert [one.number for one in first.rounds["plain"]] == [1, 2]
    plain, judged = (first.rounds[arm][1] for arm in ("plain", "judged"))
    assert plain.fingerprints["round-2/mine"] == judged.fingerprints["round-2/mine"]
    assert plain.fingerprints["round-2/train"] != judged.fingerprints["round-2/train"]
    assert judged.verdicts["margin"]["drop"] > 0
    assert judged.negatives["used"] == judged.negatives["candidates"] - judged.verdicts["margin"]["drop"]
    check_the_record(first.folder, first.rounds)
    dataset = Dataset.open(job.dataset)
    story = raydr.why(config, dataset.queries("train")["query_id"][0].as_py())
    rounds = {
        place.artifact.split("/")[1] for one in story.negatives for place in one.provenance if "/" in place.artifact
    }
    assert rounds == {"round-1", "round-2"}
    assert {one.judge for passage in story.negatives for one in passage.verdicts} == {"margin"}
    assert story.of_other_data == ()
    assert raydr.report(config)
    assert "refresh/report.html" in (tmp_path / "report.html").read_text()
    assert not plan_only(config).arms[0].rounds[0].vectors[0].folder.exists()
    [comparisons] = (Path(first.folder.root) / "comparison").glob("dev-*/comparisons.json")
    comparison = json.loads(comparisons.read_text())
    assert {row["system"] for row in comparison} == {"plain-2", "judged-2"}

    damaged = Path(judged.folders["round-2/judged"]) / "negatives" / "train" / "part-00000.arrow"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    longer = config.model_dump()
    longer["refresh"]["arms"]["judged"]["rounds"][2]["train"] = {"num_epochs": 2}
    with open_job(RunConfig.parse(longer)) as job:
        changed = run_refresh(job)
    said = capsys.readouterr().err
    assert "train.num_epochs: was 1, is 2" in said
    assert "round-2/judged is made again" in said
    assert changed.rounds["plain"] == first.rounds["plain"]
    assert changed.rounds["judged"][1].fingerprints["round-2/judged"] == judged.fingerprints["round-2/judged"]


def check_the_record(folder: Folder, rounds: dict[str, list[RoundResult]]) -> None:
    record = folder.read_json("rounds.json")
    for arm, found in rounds.items():
        assert record[arm]["rounds"] == json.loads(json.dumps([one.as_json() for one in found]))
        assert record[arm]["best"] in (1, 2)
        for one in found:
            assert {"train", "encode", "index", "search", "mine", "evaluate"} <= one.seconds.keys()
    page = Path(folder.path("report.html")).read_text()
    assert page.count("<img") == 1
    assert "judged" in page
