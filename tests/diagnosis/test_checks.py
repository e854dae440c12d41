"""Checks on made arrays: what they must find, and what must not mislead them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from raydr.artefacts.diagnosis import trial_settings
from raydr.config.run import RunConfig
from raydr.diagnosis.diagnosis import Diagnosis, diagnose
from raydr.diagnosis.evidence import Evidence, Lengths

RNG = np.random.default_rng(0)
NUM = 400


def ranks(values: np.ndarray) -> np.ndarray:
    """Round to reciprocal ranks in [0, 1]."""
    return np.clip(np.round(values, 1), 0.0, 1.0)


START = RNG.uniform(0.0, 0.9, NUM)
RIGHT, UNIFORM = RNG.beta(0.1, 8, NUM), RNG.uniform(size=NUM)
#: Right pairs that are hard, as code is by its question's words: the p of many are above ½.
HARD = np.where(np.arange(NUM) % 5 < 2, UNIFORM, RIGHT)
#: A reader that hardly tells right pairs from others.
WEAK = RNG.beta(0.8, 1.2, NUM)
COSINES_QC = RNG.normal(0.1, 0.1, (NUM, 32)) + np.eye(32)[0] * 0.4
VECTORS_PD = RNG.normal(size=(600, 64))

HEALTHY = Evidence(
    split="dev",
    num_ranked=2400,
    num_passages=5000,
    held_out={
        "bm25": ranks(START + 0.05),
        "bm25, texts cut": ranks(START + 0.04),
        "untrained": ranks(START),
        "trained": ranks(START + RNG.normal(0.1, 0.2, NUM)),
    },
    training={"untrained": ranks(START), "trained": ranks(START + 0.3)},
    p_held_out={"bm25": RIGHT, "untrained": RNG.beta(0.1, 8, NUM), "cross-fitted": RNG.beta(0.1, 8, NUM)},
    p_training={"bm25": RNG.beta(0.1, 8, NUM), "untrained": RIGHT, "cross-fitted": RNG.beta(0.1, 8, NUM)},
    similarities={"untrained": COSINES_QC, "trained": COSINES_QC},
    scale=20.0,
    vectors_PD=VECTORS_PD,
    outscores={reader: RNG.uniform(size=NUM) < 0.2 for reader in ("bm25", "untrained", "trained")},
    leaked={"dev": np.arange(100) < 3, "test": np.zeros(100, bool)},
    unanswered={"train": np.zeros(500, bool), "dev": np.arange(100) < 2},
    repeated={"positives of train": np.arange(NUM) < 8, "training queries": np.arange(500) < 10},
    lengths={"passage": Lengths(RNG.integers(5, 200, 500), 128)},
    losses=(2.0, 1.2, 0.9),
    dev=(0.5, 0.53, 0.54),
    num_steps=300,
    learning_rate=2e-5,
    weight_size=0.05,
)
HALF = {reader: np.where(np.arange(NUM) % 2, p, RNG.uniform(size=NUM)) for reader, p in HEALTHY.p_training.items()}
THIRD = {"cross-fitted": np.where(np.arange(NUM) % 3, RIGHT, UNIFORM)}
HALF_OF_ALL = {
    reader: np.where(np.arange(NUM) % 2, p, RNG.uniform(size=NUM)) for reader, p in HEALTHY.p_held_out.items()
}
WORSE = HEALTHY.training | {"trained": ranks(START * 0.3)}
SAME = HEALTHY.training | {"trained": ranks(START + 0.001)}
NOBODY = dict.fromkeys(("bm25", "untrained", "trained"), UNIFORM)
#: No step too many: nothing is learnt, and nothing gained.
STILL = {"training": SAME, "held_out": HEALTHY.held_out | SAME}
FAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "half of the training pairs": ("mismatched_pairs", {"p_training": HALF}),
    "half of all pairs": ("mismatched_pairs", {"p_training": HALF, "p_held_out": HALF_OF_ALL}),
    "half of the pairs that dev was held out of": (
        "mismatched_pairs",
        {"p_training": HALF, "p_held_out": HALF_OF_ALL, "same_pairs": True},
    ),
    "a third of them": ("mismatched_pairs", {"p_training": THIRD, "p_held_out": THIRD, "same_pairs": True}),
    "judgments of dev": (
        "mismatched_pairs",
        {"p_held_out": NOBODY, "held_out": dict.fromkeys(HEALTHY.held_out, ranks(START * 0))},
    ),
    "ids of another corpus, or texts that are damaged": (
        "mismatched_pairs",
        {"p_held_out": NOBODY, "p_training": NOBODY, "held_out": dict.fromkeys(HEALTHY.held_out, ranks(START * 0))},
    ),
    "second positives": (
        "false_negatives",
        {"outscores": {reader: RNG.uniform(size=NUM) < 0.55 for reader in HEALTHY.outscores}},
    ),
    "copies": ("duplicates", {"repeated": {"positives of train": np.arange(NUM) < 150}}),
    "same queries": ("duplicates", {"repeated": {"training queries": np.arange(NUM) < 90}}),
    "test in train": ("leakage", {"leaked": {"dev": np.zeros(80, bool), "test": np.ones(90, bool)}}),
    "another corpus": ("unanswered_queries", {"unanswered": {"test": np.arange(90) < 40}}),
    "hot": (
        "learning_rate",
        {"training": WORSE, "learning_rate": 2e-3, "losses": (2.1, 1.7), "held_out": HEALTHY.held_out | WORSE},
    ),
    "learning a bad ranker's scores": (
        "forgetting",
        {"training": WORSE, "learning_rate": 2e-3, "losses": (0.4, 0.01), "held_out": HEALTHY.held_out | WORSE},
    ),
    "cold": ("learning_rate", {"training": SAME, "learning_rate": 2e-7, "held_out": HEALTHY.held_out | SAME}),
    "a flat softmax": ("temperature", {"scale": 0.5}),
    "a steep softmax": ("temperature", {"scale": 2000.0}),
    "two directions": ("collapsed_vectors", {"vectors_PD": VECTORS_PD[:, :2] @ RNG.normal(size=(2, 64))}),
    "four tokens": (
        "truncation",
        {"held_out": HEALTHY.held_out | {"bm25, texts cut": ranks(START * 0.2)}},
    ),
    "three steps": ("too_few_steps", {"training": SAME, "num_steps": 3, "held_out": HEALTHY.held_out | SAME}),
    "a steep curve": ("too_few_steps", {"num_steps": 20, "dev": (0.2, 0.5)}),
    "five steps that helped": ("too_few_steps", {"num_steps": 5, "dev": (0.5,), "losses": (2.0,)}),
    "frozen layers, random weights": ("too_few_steps", STILL),
    "other queries than trained on": (
        "forgetting",
        {"held_out": HEALTHY.held_out | {"trained": ranks(START * 0.6)}},
    ),
}


def test_nothing_is_wrong_with_what_is_healthy() -> None:
    diagnosis = diagnose(HEALTHY)
    assert [(finding.check, finding.observation) for finding in diagnosis.faults] == []
    assert diagnosis.missing == {}
    assert len(diagnosis.findings) == 11
    assert list(diagnosis.gains) == ["bm25", "trained"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_first(fault: str) -> None:
    check, changes = FAULTS[fault]
    diagnosis = diagnose(replace(HEALTHY, **changes))
    assert [finding.check for finding in diagnosis.faults][:1] == [check]
    assert diagnosis.faults[0].remedy
    # Settings that a config takes.
    RunConfig.load("example", diagnosis.faults[0].settings)
    trial = trial_settings(diagnosis.faults[0], "work", {})
    remedied, is_variant = (
        RunConfig.load("example", trial),
        not any(override.startswith("workdir=") for override in trial),
    )
    assert is_variant == all(setting.startswith("train.") for setting in diagnosis.faults[0].settings)
    assert (remedied.train == RunConfig.load("example").train) or not is_variant
    assert not diagnosis.faults[0].settings or remedied.variant("remedy") != RunConfig.load("example")
    assert Diagnosis.from_json(json.loads(json.dumps(diagnosis.to_json()))) == diagnosis


INNOCENT: dict[str, dict[str, Any]] = {
    "right pairs, some of them held out": {"same_pairs": True},
    "a weak model of folds, dev held out": {
        "p_training": {"cross-fitted": WEAK},
        "p_held_out": {"cross-fitted": WEAK},
        "same_pairs": True,
    },
    # Hard pairs suit their query hardly better than others, in training as held out.
    "hard pairs": {"p_training": {"bm25": WEAK, "untrained": RIGHT}, "p_held_out": {"bm25": WEAK, "untrained": RIGHT}},
    # No reader tells anything of either.
    "nobody can read": {"p_training": {"bm25": UNIFORM}, "p_held_out": {"bm25": UNIFORM}},
    "a weak cross-fitted model": {"p_training": {"cross-fitted": WEAK}, "p_held_out": {"cross-fitted": WEAK}},
    # One reader has a blind spot in the training split, another sees that the pairs are right.
    "other words": {"p_training": HEALTHY.p_training | {"bm25": UNIFORM}},
    "hard negatives of a miner": {
        "outscores": {"bm25": np.ones(NUM, bool), "untrained": np.arange(NUM) < 100, "trained": np.arange(NUM) > 380}
    },
    "an encoder with high cosines": {"vectors_PD": VECTORS_PD + 12.0},
    "nothing left to learn": {"training": dict.fromkeys(("untrained", "trained"), np.full(NUM, 0.97)), "num_steps": 8},
    "a low rate that is enough": {"learning_rate": 1e-6},
    "a high rate that is not too high": {"learning_rate": 1e-2},
    "long passages with the answer first": {"lengths": {"passage": Lengths(np.full(500, 600), 128)}},
    "training pairs of another kind, which are hard": {
        "p_training": {"bm25": HARD, "untrained": HARD},
        "other_kind": 0.8,
    },
    "a language that only the trained model reads": {
        "p_training": {"bm25": UNIFORM, "untrained": UNIFORM},
        "p_held_out": {"bm25": UNIFORM, "untrained": UNIFORM, "trained": RIGHT},
    },
    "a gain for held-out queries alone": {"training": SAME},
    "few samples": {"leaked": {"test": np.arange(4) < 1}},
}


@pytest.mark.parametrize("innocent", INNOCENT)
def test_what_looks_bad_and_is_not_is_left_alone(innocent: str) -> None:
    assert [
        (finding.check, finding.observation) for finding in diagnose(replace(HEALTHY, **INNOCENT[innocent])).faults
    ] == []


def test_causes_stand_before_what_they_lead_to() -> None:
    wrong = {"p_training": HALF, "training": SAME, "num_steps": 3, "held_out": HEALTHY.held_out | WORSE}
    diagnosis = diagnose(replace(HEALTHY, **wrong))
    assert [finding.check for finding in diagnosis.faults] == ["mismatched_pairs", "too_few_steps", "forgetting"]
    assert diagnosis.faults[2].severity > diagnosis.faults[0].severity


@pytest.mark.parametrize(("dev", "fewer"), [((0.5,), ""), ((0.4, 0.5), ""), ((0.5, 0.4), "train.num_epochs=1")])
def test_fewer_epochs_are_a_remedy_where_an_earlier_epoch_was_best(dev: tuple[float, ...], fewer: str) -> None:
    diagnosis = diagnose(replace(HEALTHY, **FAULTS["other queries than trained on"][1], dev=dev))
    [advice] = [finding.advice for finding in diagnosis.faults if finding.check == "forgetting"]
    assert ("num_epochs" in advice, fewer in advice) == (bool(fewer), True)


def test_what_was_not_measured_is_said() -> None:
    diagnosis = diagnose(Evidence())
    assert diagnosis.findings == ()
    assert len(diagnosis.missing) == 11
    assert all(diagnosis.missing.values())


def test_where_bm25_finds_nothing_it_does_not_blame_the_cut() -> None:
    nothing = dict.fromkeys(HEALTHY.held_out, np.zeros(NUM))
    diagnosis = diagnose(replace(HEALTHY, held_out=nothing, lengths={"passage": Lengths(np.full(500, 600), 128)}))
    assert "truncation" in diagnosis.missing


def test_wrong_judgments_are_looked_for_where_they_are() -> None:
    changes: dict[str, dict[str, Any]] = {"train": {"p_training": HALF}, "dev": {"p_held_out": HALF}}
    for split, change in changes.items():
        [fault] = diagnose(replace(HEALTHY, **change)).faults
        assert ("of the training pairs suit" in fault.observation.split(",")[0]) == (split == "train")
        assert ("judgments of dev" in fault.remedy) == (split == "dev")


def test_a_cut_that_loses_nothing_is_not_said_to_fall() -> None:
    held_out = HEALTHY.held_out | {"bm25, texts cut": ranks(START + 0.06)}
    [truncation] = [
        finding for finding in diagnose(replace(HEALTHY, held_out=held_out)).findings if finding.check == "truncation"
    ]
    assert truncation.level == "ok"
    assert "falls" not in truncation.observation
    means = [f"{held_out[reader].mean():.3f} over" for reader in ("bm25", "bm25, texts cut")]
    assert all(mean in truncation.observation for mean in means)
