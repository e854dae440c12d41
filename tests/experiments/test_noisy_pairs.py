"""Arms of the experiment on mismatched pairs, from raw files to results, on a local Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.arms import RESULT, make_arms, run_arms, seeded_recipes
from experiments.noisy_pairs import declare_arms, equal_steps
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import DataError
from raydr.pipeline.session import open_session

pytestmark = pytest.mark.ray


def config_for(folder: Path, beir: Path, checkpoint: str, top_k: int) -> RunConfig:
    sides = {"query": {"max_length": 24}, "passage": {"max_length": 24}}
    train = {"num_epochs": 1, "batch_size": 4, "dtype": "float32", "dev": {"random_passages": 5}}
    judges = [{"name": "consistency", "top_k": top_k, "num_random": 20}]
    return RunConfig.parse(
        {
            "workdir": str(folder),
            "data": {"reader": {"name": "beir", "path": str(beir)}},
            "inject_noise": {"share": 0.5},
            "model": {"checkpoint": checkpoint, "similarity": "cosine", "scale": 5, **sides},
            "train": train,
            "encode": {"dtype": "float32"},
            "variants": {
                "npc": {
                    "loss": {"name": "npc", "warmup_epochs": 0},
                    "pair_detection": {"detector": "local_fdr", "margins": "cross_fitted"},
                },
                "teacher": {"loss": {"name": "npc", "warmup_epochs": 1}},
            },
            "cross_fit": {"num_epochs": 1, "num_random": 10, "num_draws": 2},
            "judge": {"model": "untrained", "judges": judges},
            "evaluate": {"measures": ["RR@10"]},
            "tracking": {"enabled": False},
        }
    )


def test_filtered_arms_train_on_what_the_judge_leaves_and_are_found_again(
    ray_local: None, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = config_for(tmp_path / "work", beir_folder, tiny_checkpoint, top_k=5)
    names = ["nce", "npc", "teacher-clean", "consistency-filtered", "clean"]
    with open_session(config) as session:
        arms = declare_arms(session, session.recipe, names)
        results = run_arms(session, arms)
        made = make_arms(session, arms)
        all_pairs = session.recipe.dataset()
        longer = {arm.name: equal_steps(session, all_pairs, arm).context.config.train for arm in arms}
    assert [result.arm for result in results] == names
    left = {arm.name: len(Dataset(session.inventory.open(arm.pairs)).qrels("train")) for arm in arms}
    assert config.train.batch_size <= left["consistency-filtered"] < left["nce"]
    assert left["nce"] == left["clean"] == left["npc"] == left["teacher-clean"]
    assert [arm.name for arm in arms if arm.options.clean_only] == ["teacher-clean", "clean"]
    stamps = {arm.folder: Path(arm.local(RESULT)).stat().st_mtime_ns for arm in made.values()}
    assert len(stamps) == len(names)
    # Half of the 40 pairs are clean: twice the epochs, of warm-up too, take the steps of all.
    steps = {"nce": 10, "npc": 10, "consistency-filtered": left["consistency-filtered"] // 4}
    steps |= {"clean": 5, "teacher-clean": 5}
    assert {name: train.num_epochs for name, train in longer.items()} == {
        name: round(10 / num) for name, num in steps.items()
    }
    assert longer["clean"].num_epochs == longer["teacher-clean"].loss.num_warmup_epochs == 2
    with open_session(config) as session:
        again = run_arms(session, declare_arms(session, session.recipe, [arm.name for arm in arms]))
    assert again == results
    assert {arm.folder: Path(arm.local(RESULT)).stat().st_mtime_ns for arm in made.values()} == stamps
    # Nothing is trained if a judge leaves too little.
    strict = config_for(tmp_path / "strict", beir_folder, tiny_checkpoint, top_k=1)
    too_large = strict.model_copy(update={"train": strict.train.model_copy(update={"batch_size": 1000})})
    message = r"leaves \d+ of \d+ pairs, fewer than .* 1000"
    with open_session(too_large) as session, pytest.raises(DataError, match=message):
        declare_arms(session, session.recipe, ["consistency-filtered"])


def test_a_seed_draws_noise_folds_and_order_anew_on_the_same_queries(
    ray_local: None, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    config = config_for(tmp_path / "work", beir_folder, tiny_checkpoint, top_k=5)
    few = config.model_copy(update={"data": config.data.model_copy(update={"max_queries": {"train": 20}})})
    with open_session(few) as session:
        recipes = seeded_recipes(session, 2)
        arms = [declare_arms(session, recipe, ["npc"])[0] for recipe in recipes]
        assert [arm.seed for arm in arms] == [few.seed, few.seed + 1]
        nodes = [arm.node() for arm in arms]
        assert nodes[0].inputs["corpus"].key == nodes[1].inputs["corpus"].key
        assert nodes[0].inputs["margins"].key != nodes[1].inputs["margins"].key
        datasets = [Dataset(made) for made in session.make(*(arm.pairs for arm in arms))]
    first, second = (data.qrels("train") for data in datasets)
    assert first["query_id"].to_pylist() == second["query_id"].to_pylist()
    assert first["noise"].to_pylist() != second["noise"].to_pylist()
    assert datasets[0].qrels("test").equals(datasets[1].qrels("test"))
    # A run of its own with the second seed draws these queries anew.
    with open_session(few.model_copy(update={"seed": few.seed + 1})) as session:
        [alone] = declare_arms(session, session.recipe, ["npc"])
    with open_session(few) as session:
        redrawn = declare_arms(session, seeded_recipes(session, 2, redraw=True)[1], ["npc"])[0]
    assert redrawn.node().key == alone.node().key != nodes[1].key
