"""Arms of the experiment on mismatched pairs, from raw files to results, on a local Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.arms import RESULT, make_arms, run_arms
from experiments.noisy_pairs import declare_arms, equal_steps
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import DataError
from raydr.graph.session import open_session

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
                }
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
    with open_session(config) as session:
        arms = declare_arms(session, session.recipe, ["nce", "npc", "consistency-filtered", "clean"])
        results = run_arms(session, arms, 1)
        made = make_arms(session, arms, [0])
        longer = {arm.name: equal_steps(session, arm).run.config.train.num_epochs for arm in arms}
    assert {result.arm for result in results} == {"nce", "npc", "consistency-filtered", "clean"}
    left = {arm.name: len(Dataset(session.inventory.open(arm.pairs)).qrels("train")) for arm in arms}
    assert config.train.batch_size <= left["consistency-filtered"] < left["nce"] == left["clean"] == left["npc"]
    stamps = {one.folder: Path(one.local(RESULT)).stat().st_mtime_ns for one in made.values()}
    assert len(stamps) == 4
    # Half of the 40 pairs are clean: twice the epochs take the steps of all.
    steps = {"nce": 10, "npc": 10, "consistency-filtered": left["consistency-filtered"] // 4, "clean": 5}
    assert longer == {name: round(10 / num) for name, num in steps.items()}
    assert longer["clean"] == 2
    with open_session(config) as session:
        again = run_arms(session, declare_arms(session, session.recipe, [arm.name for arm in arms]), 1)
    assert again == results
    assert {one.folder: Path(one.local(RESULT)).stat().st_mtime_ns for one in made.values()} == stamps
    # Nothing is trained if a judge leaves too little.
    strict = config_for(tmp_path / "strict", beir_folder, tiny_checkpoint, top_k=1)
    too_large = strict.model_copy(update={"train": strict.train.model_copy(update={"batch_size": 1000})})
    told = r"leaves \d+ of \d+ pairs, fewer than .* 1000"
    with open_session(too_large) as session, pytest.raises(DataError, match=told):
        declare_arms(session, session.recipe, ["consistency-filtered"])
