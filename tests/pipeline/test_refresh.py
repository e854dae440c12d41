"""Refresh rounds: what a changed setting does again, and two arms from raw data to their table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_runs import recipe_of, small_run

import raydr
from raydr.artefacts.declaration import Node
from raydr.artefacts.evaluation import evaluation
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.pages.refresh import RoundResult
from raydr.pipeline.rounds import Arm, FinishedRounds, lay_out, next_rounds
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
def planned(beir_folder, tiny_checkpoint, tmp_path, here):
    """The arms of small runs; nothing is made."""

    def plan(**sections: Any) -> list[Arm]:
        sections.setdefault("refresh", {"num_rounds": 3})
        sections["refresh"] = {"evaluate_splits": ["dev"]} | sections["refresh"]
        return lay_out(recipe_of(run_config(beir_folder, tiny_checkpoint, tmp_path, **sections)).context)

    return plan


def nodes(arms: list[Arm]) -> list[Node]:
    """All nodes of all arms, each once."""
    return list(
        {
            key: node for arm in arms for refresh_round in arm.rounds for key, node in refresh_round.nodes().items()
        }.values()
    )


def labels(arms: list[Arm]) -> list[str]:
    return [node.label for node in nodes(arms)]


def keys(arms: list[Arm]) -> dict[str, str]:
    return {node.label: node.key for node in nodes(arms)}


def test_every_round_mines_with_the_model_of_the_one_before(planned):
    [arm] = planned()
    first, second, third = arm.rounds
    assert first.mined.inputs["run"].label == "search-bm25-train"
    for later, before in ((second, first), (third, second)):
        ranked = later.mined.inputs["run"]
        assert ranked.inputs["index"].inputs["model"].key == before.model.key
        assert later.model.inputs["start"].key == before.model.key
        assert later.model.inputs["negatives"].key == later.judged.negatives.key
    labels_of_arm = labels([arm])
    for number in (1, 2, 3):
        names = {label.partition("/")[2] for label in labels_of_arm if label.startswith(f"round-{number}/")}
        assert {"statistics", "train", "judge-margin-train", "evaluate-dev"} <= names


def test_only_what_depends_on_a_change_gets_another_key(planned):
    before = keys(planned())
    later = keys(planned(refresh={"num_rounds": 3, "rounds": {3: {"negatives": {"first_rank": 3}}}}))
    changed = {label for label in before if before[label] != later[label]}
    in_round_3 = {label for label in before if label.startswith("round-3/")}
    assert changed == in_round_3
    assert keys(planned(encode={"max_actors": 2}, train={"num_workers": 2})) == before
    other = keys(planned(train={"batch_size": 4}))
    assert other["round-1/train"] != before["round-1/train"]
    assert other["round-1/mine-bm25-train"] == before["round-1/mine-bm25-train"]


def test_arms_share_the_rounds_in_which_they_agree(planned):
    arms = {"plain": {}, "judged": {"rounds": {2: {"judges": ["margin"]}}}}
    both = planned(judge={"judges": []}, refresh={"num_rounds": 2, "arms": arms})
    plain, judged = both
    assert plain.rounds[0].model.key == judged.rounds[0].model.key
    assert plain.rounds[1].mined.key == judged.rounds[1].mined.key
    assert plain.rounds[1].model.key != judged.rounds[1].model.key
    assert plain.rounds[1].judged.negatives.key == plain.rounds[1].mined.key
    assert labels(both).count("round-1/train") == 1
    # From where they part, they stand under their names.
    assert labels(both).count("plain/round-2/train") == labels(both).count("judged/round-2/train") == 1
    # What both mine in the second round is one artefact.
    assert sum(label.endswith("round-2/mine-round-1-train") for label in labels(both)) == 1


def test_a_round_from_scratch_and_a_kept_optimizer_are_other_models(planned):
    base = keys(planned())["round-2/train"]
    scratch = planned(refresh={"num_rounds": 3, "start": "scratch"})
    assert keys(scratch)["round-2/train"] != base
    assert "start" not in scratch[0].rounds[1].model.inputs
    kept = planned(refresh={"num_rounds": 3, "optimizer": "kept"})
    trainings = [refresh_round.model.arguments["training"] for refresh_round in kept[0].rounds]
    assert [training.keep_optimizer for training in trainings] == [True, True, False]
    assert [training.with_optimizer for training in trainings] == [False, True, True]
    adapted = {"train": {"optimizer": {"lora": {}}}}
    message = r"refresh.optimizer is kept in round 1, but train.optimizer.lora starts each training with new adapters"
    with pytest.raises(ConfigError, match=message):
        planned(refresh={"num_rounds": 3, "optimizer": "kept"}, **adapted)
    assert planned(**adapted)[0].rounds[1].model.inputs["start"]


def test_the_classifier_is_trained_once_or_in_each_round(planned):
    def trained(**refresh: Any) -> int:
        planned_nodes = nodes(planned(refresh={"num_rounds": 3, "judges": ["classifier"], **refresh}))
        return sum(node.kind == "cross_encoder" for node in planned_nodes)

    assert trained() == 1
    assert trained(classifier="each_round") == 3


def test_rounds_end_when_patience_does(planned, monkeypatch, capsys):
    """An arm without patience goes on; the caller may look at each round."""
    arms = planned(refresh={"num_rounds": 4, "arms": {"patient": {}, "impatient": {"patience": 1}}})
    quality = {("patient", number): 0.1 for number in range(1, 5)} | {("impatient", 1): 0.1, ("impatient", 2): 0.3}
    by_round = {id(each): quality.get((arm.name, each.number), 0.2) for arm in arms for each in arm.rounds}
    monkeypatch.setattr("raydr.pipeline.rounds._dev_measures", lambda inventory, done: {"RR@10": by_round[id(done)]})

    def run(arms: list[Arm], **options: Any) -> tuple[list[list[int]], list[FinishedRounds]]:
        inventory: Any = None
        finished = list(map(FinishedRounds, arms))
        return [[each.number for each in rounds] for rounds in next_rounds(finished, inventory, **options)], finished

    made, finished = run(arms)
    assert made == [[1, 1], [2, 2], [3, 3], [4]]
    assert [(done.arm.name, len(done.rounds), done.best.number) for done in finished] == [
        ("patient", 4, 1),
        ("impatient", 3, 2),
    ]
    assert "impatient: 1 round without a better RR@10 than round 2's: stopping" in capsys.readouterr().err
    assert run(arms[:1])[0] == [[1, 2, 3, 4]]
    assert run(arms[:1], single_rounds=True)[0] == [[1], [2], [3], [4]]


def test_a_split_without_queries_is_refused_before_anything_is_trained(beir_folder, tiny_checkpoint, tmp_path):
    config = run_config(beir_folder, tiny_checkpoint, tmp_path / "w", refresh={"evaluate_splits": ["dev", "nix"]})
    with pytest.raises(raydr.errors.ConfigError, match=r"no split 'nix'; it has dev, test, train"):
        raydr.refresh(config)
    assert not list((tmp_path / "w" / "times").glob("*train"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"evaluate_splits": ["test"]}, r"refresh\.evaluate_splits has no 'dev'"),
        ({"measure": "R@7"}, r"refresh\.measure 'R@7' is not among evaluate\.measures"),
    ],
)
def test_rounds_whose_best_could_not_be_chosen_do_not_begin(beir_folder, tiny_checkpoint, tmp_path, settings, message):
    with pytest.raises(ConfigError, match=message):
        raydr.refresh(run_config(beir_folder, tiny_checkpoint, tmp_path / "w", refresh=settings))
    assert not (tmp_path / "w" / "store").exists()


def test_rounds_without_a_dev_split_do_not_begin(beir_folder, tiny_checkpoint, tmp_path):
    config = run_config(beir_folder, tiny_checkpoint, tmp_path / "w")
    config = config.model_copy(update={"data": config.data.model_copy(update={"dev_split": ""})})
    with pytest.raises(ConfigError, match=r"^data\.dev_split is empty, but rounds and trials are compared on the dev"):
        raydr.refresh(config, dry_run=True)


def test_a_search_demands_all_its_actors_at_a_time(planned):
    asked = {"search": {"max_actors": 3, "cpus_per_actor": 2, "device": "cpu"}}
    searches = [node for node in nodes(planned(**asked)) if node.kind == "run" and "index" in node.inputs]
    assert {str(node.demand) for node in searches} == {str({"CPU": 6.0})}


def test_a_comparison_is_made_again_for_another_baseline(planned, beir_folder, tiny_checkpoint, tmp_path):
    [arm] = planned(refresh={"num_rounds": 2})
    run = recipe_of(run_config(beir_folder, tiny_checkpoint, tmp_path)).context
    first, second = (refresh_round.runs["dev"] for refresh_round in arm.rounds)
    made = [evaluation(run, "dev", runs) for runs in ({"a": first, "b": second}, {"b": second, "a": first})]
    assert made[0].key != made[1].key


def test_rounds_mine_and_draw_negatives_where_the_config_draws_none(planned):
    [arm] = planned(train={"num_hard_negatives": 0}, refresh={"num_rounds": 2})
    assert [(each.mined is not None, each.config.train.num_hard_negatives) for each in arm.rounds] == [(True, 1)] * 2
    [own] = planned(train={"num_hard_negatives": 3}, refresh={"num_rounds": 1, "num_hard_negatives": 2})
    assert own.rounds[0].config.train.num_hard_negatives == 3


def test_judges_that_nothing_is_mined_for_are_refused(planned):
    nothing_mined: dict[str, Any] = {"num_rounds": 1, "num_hard_negatives": 0}
    with pytest.raises(ConfigError, match=r"refresh.judges: margin judges hard negatives"):
        planned(train={"num_hard_negatives": 0}, refresh=nothing_mined | {"judges": ["npc", "margin"]})
    with pytest.raises(ConfigError, match=r"judge.classifier.num_hard_negatives is 1, but the run mines no"):
        planned(
            train={"num_hard_negatives": 0},
            refresh=nothing_mined | {"judges": ["pair_classifier"]},
            judge={"classifier": {"num_hard_negatives": 1}},
        )


def test_pairs_are_judged_where_nothing_is_mined(planned):
    [arm] = planned(
        train={"num_hard_negatives": 0},
        refresh={"num_rounds": 2, "num_hard_negatives": 0, "judges": ["npc", "pair_classifier"]},
        judge={"classifier": {"num_hard_negatives": 0}},
    )
    assert not [label for label in labels([arm]) if "mine" in label]
    for refresh_round in arm.rounds:
        assert [node.arguments["judge"].name for node in refresh_round.verdicts] == ["npc", "pair_classifier"]
        pairs = refresh_round.model.inputs["dataset"]
        assert {role: node.key for role, node in pairs.inputs.items() if node.kind == "verdicts"} == {
            f"verdicts/{node.arguments['judge'].name}": node.key for node in refresh_round.verdicts
        }


def test_two_arms_to_their_table_and_nothing_twice(beir_folder, tiny_checkpoint, tmp_path, capsys):
    arms = {"plain": {}, "judged": {"rounds": {2: {"judges": ["margin"]}}}}
    refresh = {"num_rounds": 2, "optimizer": "kept", "keep_vectors": 1, "evaluate_splits": ["dev"], "arms": arms}
    config = run_config(beir_folder, tiny_checkpoint, tmp_path, judge={"judges": []}, refresh=refresh)
    assert raydr.refresh(config, dry_run=True) is None
    assert "judged/round-2/train: new" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
    first = raydr.refresh(config)
    capsys.readouterr()
    again = raydr.refresh(config)
    assert "nothing to make" in capsys.readouterr().err
    assert again.rounds == first.rounds
    assert list(first.rounds) == ["plain", "judged"]
    assert [row.number for row in first.rounds["plain"]] == [1, 2]
    plain, judged = (first.rounds[arm][1] for arm in ("plain", "judged"))
    mined = "round-2/mine-round-1-train"
    assert plain.fingerprints[f"plain/{mined}"] == judged.fingerprints[f"judged/{mined}"]
    assert plain.fingerprints["plain/round-2/train"] != judged.fingerprints["judged/round-2/train"]
    assert judged.verdicts["margin"]["drop"] > 0
    assert judged.negatives["used"] == judged.negatives["candidates"] - judged.verdicts["margin"]["drop"]
    check_the_record(first.folder, first.rounds)
    places = Places.of(str(tmp_path))
    story = raydr.why(config, Dataset(places.open("dataset", "dataset")).queries("train")["query_id"][0].as_py())
    found_in = {origin["artifact"].split("/")[2] for negative in story.negatives for origin in negative.provenance}
    assert found_in == {"round-1", "round-2"}
    assert {verdict["judge"] for passage in story.negatives for verdict in passage.verdicts} == {"margin"}
    assert story.of_other_data == ()
    assert raydr.report(config)
    assert "refresh/report.html" in (tmp_path / "report.html").read_text()
    # Vectors of the first round have served; those of the last one are kept.
    kept = {identity["kind"] for identity in (json.loads(file.read_text())["identity"] for file in manifests(tmp_path))}
    assert "embeddings" in kept
    assert "round-1/encode-round-1-passages" not in plain.folders
    assert "plain/round-2/encode-round-2-passages" in plain.folders
    comparison = json.loads((tmp_path / "refresh" / "comparison" / "dev" / "comparisons.json").read_text())
    assert {row["system"] for row in comparison} == {"plain-2", "judged-2"}

    damaged = Path(judged.folders["judged/round-2/judged-margin-train"]) / "negatives" / "train" / "part-00000.arrow"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    longer = config.model_dump()
    longer["refresh"]["arms"]["judged"]["rounds"][2]["train"] = {"num_epochs": 2}
    changed = raydr.refresh(RunConfig.parse(longer))
    output = capsys.readouterr().err
    assert "judged/round-2/judged-margin-train is made again" in output
    assert "train.num_epochs was 1, is 2" in output
    assert changed.rounds["plain"] == first.rounds["plain"]
    mined = f"judged/{mined}"
    assert changed.rounds["judged"][1].fingerprints[mined] == judged.fingerprints[mined]


def test_vectors_go_when_fewer_are_kept_and_no_name_leads_to_removed_ones(beir_folder, tiny_checkpoint, tmp_path):
    names, places = {}, Places.of(str(tmp_path))
    for keep in (None, 1, 2):
        refresh = {"num_rounds": 2, "keep_vectors": keep, "evaluate_splits": ["dev"]}
        raydr.refresh(run_config(beir_folder, tiny_checkpoint, tmp_path, judge={"judges": []}, refresh=refresh))
        names[keep] = [name for name in places.names("refresh") if name.endswith("/passages")]
        for name in names[keep]:
            places.open(name, "embeddings")
    assert names[None] == [f"refresh/refresh/round-{number}/passages" for number in (1, 2)]
    assert names[1] == names[2] == names[None][1:]
    kinds = [json.loads(file.read_text())["identity"]["kind"] for file in manifests(tmp_path)]
    assert kinds.count("index") == 1


def test_names_of_rounds_and_judges_that_a_refresh_no_longer_has_are_removed(beir_folder, tiny_checkpoint, tmp_path):
    places, names = Places.of(str(tmp_path)), []
    for changes, learning_rate in (({"num_rounds": 2, "judges": ["margin"]}, 1e-3), ({"num_rounds": 1}, 2e-3)):
        sections = {"judge": {"judges": []}, "train": {"optimizer": {"learning_rate": learning_rate}}}
        refresh = {"evaluate_splits": ["dev"]} | changes
        raydr.refresh(run_config(beir_folder, tiny_checkpoint, tmp_path, refresh=refresh, **sections))
        names.append({name.removeprefix("refresh/") for name in places.names("refresh")})
    assert {"refresh/round-1/verdicts-margin", "refresh/round-2/model", "comparison/dev"} <= names[0]
    first = {name for name in names[0] if name.startswith("refresh/round-1/")}
    assert names[1] == first - {"refresh/round-1/verdicts-margin"}


def manifests(workdir: Path) -> list[Path]:
    return sorted((workdir / "store").rglob("manifest.json"))


def check_the_record(folder: Folder, rounds: dict[str, list[RoundResult]]) -> None:
    record = folder.read_json("rounds.json")
    for arm, results in rounds.items():
        assert record[arm]["rounds"] == json.loads(json.dumps([row.as_json() for row in results]))
        assert record[arm]["best"] in (1, 2)
        for row in results:
            assert {"train", "encode", "index", "search", "mine", "evaluate"} <= row.seconds.keys()
    page = Path(folder.path("report.html")).read_text()
    assert page.count("<img") == 1
    assert "judged" in page


def test_rounds_are_evaluated_without_flagged_labels_too_where_dev_is_held_out(planned):
    """As ``raydr evaluate`` does; a loss that detects nothing has no models of folds to judge the labels with."""
    data = {"hold_out": {"held": 0.2}, "test_splits": ["held"]}
    refresh = {"num_rounds": 1, "evaluate_splits": ["held", "dev"]}
    [arm] = planned(data=data, train={"loss": "npc"}, refresh=refresh)
    evaluations = arm.rounds[0].evaluations
    assert evaluations["held"].inputs["suspects"].kind == "verdicts"
    assert "suspects" not in evaluations["dev"].inputs
    [plain] = planned(data=data, train={"loss": "nce"}, refresh=refresh)
    assert "suspects" not in plain.rounds[0].evaluations["held"].inputs
