"""Arms of entity linking by heads: who is drawn for whom, what is chosen, and what is reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph.things import thing

from experiments.arm_report import report_arms
from experiments.arm_training import ArmData, ArmOptions, ArmResult, prepare_arm, run_arm
from experiments.linking_by_heads import ACCURACY, DEPTH, SCORES, SHARES, add_macro, arm_of, choose, named, picture
from experiments.linking_by_heads import states_of as states_node
from experiments.redrawn import redraw_candidates
from experiments.token_states import make_states
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.declaring import Declaring
from raydr.graph.facts import Facts
from raydr.graph.places import Places
from raydr.models.scores.poly import Poly
from raydr.negatives.samplers.mixed import Mixed
from raydr.runtime.cluster import RayConfig, ray_session
from raydr.training.training import Training
from tests.made_linking import NUM_PAGES, make_worlds
from tests.made_stage import make
from tests.stages.test_partitions import prepare

NUM_MENTIONS = 10


def config(folder: Path, checkpoint: str, **model: Any) -> RunConfig:
    sides = {"query": {"max_length": 24}, "passage": {"max_length": 24}}
    return RunConfig.parse(
        {
            "workdir": str(folder / "work"),
            "data": {"reader": {"name": "zeshel", "path": str(folder)}, "dev_split": "train", "test_splits": ["train"]},
            "model": {"checkpoint": checkpoint, "similarity": "cosine", "scale": 5, **sides} | model,
            "train": {"batch_size": 5, "num_hard_negatives": 4, "in_batch_negatives": False, "dtype": "float32"},
            "evaluate": {"measures": ["R@1", "R@4"], "answer_cutoffs": [], "permutations": 100},
        }
    )


@pytest.fixture
def run(tmp_path: Path, tiny_checkpoint: str) -> Declaring:
    """Three worlds, of which two have mentions."""
    run = config(make_worlds(tmp_path, {"train": "ab"}, NUM_MENTIONS), tiny_checkpoint)
    return Declaring(run, Facts(Places.of(run.workdir)), run)


@pytest.fixture
def data(run: Declaring, tmp_path: Path) -> ArmData:
    corpus, dataset = prepare(tmp_path)
    states = make(tmp_path / "states", "states", make_states, dataset, corpus, model=run.config.model, splits=["train"])
    return ArmData(Dataset(dataset), Corpus(corpus), None, states=states)


def training(run: Declaring, score: str, kind: str) -> tuple[Training, ArmOptions]:
    arm = arm_of(run, thing("pairs"), thing("states"), score, kind, 1e-2, 3)
    changed = arm.run.config
    model = changed.model.model_copy(update={"projection": 16})
    return Training(model=model, train=changed.train, train_split="train", dev_split="train", seed=3), arm.options


@pytest.mark.parametrize("score", SCORES)
def test_hard_negatives_are_drawn_from_all_others_of_the_mentions_world(
    score: str, run: Declaring, data: ArmData
) -> None:
    told, options = training(run, score, "hard")
    assert options.redraw_depth == DEPTH
    arm = prepare_arm(told, data, lambda progress: None)
    examples = arm.trainer.setup.batches.examples
    drawn = redraw_candidates(arm.encoder, examples, arm.data.corpus, DEPTH)
    for at in (0, NUM_MENTIONS):
        own = arm.data.corpus.pool({examples.partitions[at]}).rows(np.arange(NUM_PAGES))
        others = own[own != examples.positives[at][0]]
        assert sorted(drawn.negatives[at].tolist()) == others.tolist()
        query = np.zeros(len(others), dtype=np.int64)
        texts = arm.data.corpus.texts(drawn.negatives[at])
        scores = told.model.scale * arm.encoder.score([examples.texts[at]], texts, query, np.arange(len(others)))
        np.testing.assert_allclose(drawn.scores[at], scores, rtol=1e-4, atol=1e-4)
        assert (np.diff(drawn.scores[at]) <= 0).all()


def test_heads_learn_and_the_encoder_does_not(run: Declaring, data: ArmData) -> None:
    told, options = training(run, "dual", "mixed-50")
    test = {"split": "train", "measures": ["R@1"], "top_k": 10}
    result = run_arm(told, data, options, test)
    assert (len(result.history), result.detections) == (3, [])
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert len(result.values["last"][ACCURACY]) == 2 * NUM_MENTIONS
    assert run_arm(told, data, options, test).values == result.values


def test_an_arm_is_what_its_name_says(run: Declaring) -> None:
    with ray_session(RayConfig()):
        made = {
            (score, kind, rate): arm_of(run, thing("pairs"), states_node(run), score, kind, rate, 3)
            for score in SCORES
            for kind in SHARES
            for rate in (1e-3, 1e-2)
        }
        assert len({arm.node(0).key for arm in made.values()}) == len(made)
        # States depend on the encoder alone.
        other = run.of(run.config.model_copy(update={"model": run.config.model.model_copy(update={"scale": 7.0})}))
        assert states_node(other).key == states_node(run).key
        shorter = run.config.model.model_copy(update={"num_layers": 1})
        assert states_node(run.of(run.config.model_copy(update={"model": shorter}))).key != states_node(run).key
    arm = made["poly-16", "random", 1e-2]
    train, model = arm.run.config.train, arm.run.config.model
    assert isinstance(train.sampler, Mixed)
    assert (train.sampler.random_share, train.optimizer.learning_rate, train.num_epochs) == (1.0, 1e-2, 3)
    assert isinstance(model.score, Poly)
    assert (model.score.num_vectors, model.towers, model.projection) == (16, "two", 128)
    assert arm.options == ArmOptions(examined=False)


def test_the_rate_that_is_best_on_dev_is_chosen(run: Declaring) -> None:
    dev = {1e-3: [0.2, 0.5], 1e-2: [0.6, 0.1]}
    made = {
        ("dual", "hard", rate): arm_of(run, thing("pairs"), thing("states"), "dual", "hard", rate, 2) for rate in dev
    }
    tried = {
        arm.name: ArmResult(arm.name, 0, history=[{"dev RR@10": one, "loss": 9.0} for one in dev[rate]])
        for (_, _, rate), arm in made.items()
    }
    best, grid = choose(made, tried)
    assert best == {"dual hard": made["dual", "hard", 1e-2]}
    assert grid.rows == [["dual hard", "0.500", "0.600"]]
    assert named(tried["dual-hard-0.01"], {"dual-hard-0.01": "dual hard"}).arm == "dual hard"


def test_accuracy_is_reported_over_mentions_and_over_worlds(run: Declaring, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"m{at}" for at in range(20)]
    results = []
    for kind in SHARES:
        for seed in (0, 1):
            values: dict[str, dict[str, float]] = {ACCURACY: {one: float(rng.integers(2)) for one in ids}}
            history = [{"dev RR@10": 0.5}]
            results.append(
                ArmResult(f"dual {kind}", seed, history, [], {"last": dict(values), "best": dict(values)}, 0)
            )
    # A world of one mention and one of nineteen.
    add_macro(results, {one: "small" if one == "m0" else "large" for one in ids})
    first = results[0].values["last"]
    hits = np.array(list(first[ACCURACY].values()))
    assert np.mean(list(first["accuracy, macro"].values())) == pytest.approx((hits[0] + hits[1:].mean()) / 2)
    pictures = {"accuracy.png": picture(run.config, ["dual"], results)}
    report_arms(run.config, {"dual": [f"dual {kind}" for kind in SHARES]}, results, tmp_path / "out", pictures=pictures)
    assert (tmp_path / "out" / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "accuracy, macro" in (tmp_path / "out" / "results.md").read_text()
