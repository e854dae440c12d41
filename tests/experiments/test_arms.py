"""Arms: their keys, and what the experiments change of a config."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pipeline.things import thing

from experiments.arm_report import compare_arms, report_arms, seeds_and_queries
from experiments.arm_training import ArmResult
from experiments.arms import Arm, States, plain_arm
from experiments.noisy_pairs import arm_names
from experiments.perplexity_panels import panels, table
from experiments.sieve_arms import filtered_arms
from raydr.artefacts.context import Context, Facts
from raydr.artefacts.judged import known_clean
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.distributed.cluster import RayConfig, ray_session
from raydr.errors import ConfigError
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.significance import bootstrap_intervals
from raydr.pipeline.judging import Judged
from raydr.pipeline.recipe import Recipe


def recipe_of(run: RunConfig) -> Recipe:
    return Recipe(Context(run, Facts(Places.of(run.workdir)), run))


@pytest.fixture
def session() -> Iterator[None]:
    """Where facts are found."""
    with ray_session(RayConfig()):
        yield


def no_data(run: RunConfig) -> Recipe:
    """A recipe of a run whose files are not there."""
    recipe: Any = recipe_of(run)
    recipe.dataset, recipe.candidates = (lambda: thing("dataset")), (lambda split: thing("candidates"))
    return recipe


def config(**sections: Any) -> RunConfig:
    raw: dict[str, Any] = {"data": {"reader": {"name": "beir", "path": "x"}}, "workdir": "w"}
    return RunConfig.parse(raw | sections)


def test_an_arms_key_depends_on_what_changes_its_result(
    session: None, beir_folder: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    def arm(run: RunConfig, **options: Any) -> Arm:
        return plain_arm(recipe_of(run), "nce", **options)

    def real(**sections: Any) -> RunConfig:
        return config(
            data={"reader": {"name": "beir", "path": str(beir_folder)}},
            workdir=str(tmp_path / "w"),
            model={"checkpoint": tiny_checkpoint, "passage": {"max_length": 64}},
            **sections,
        )

    plain = arm(real())
    assert plain.node().key != arm(real(seed=1)).node().key
    # Where it lies, who judges, and which state the config would keep play no part.
    other = real(judge={"judges": ["npc"]}, train={"keep": "last", "num_workers": 2})
    assert plain.node().key == arm(other.model_copy(update={"workdir": str(tmp_path / "v")})).node().key
    different = [
        arm(real(train={"num_epochs": 7})),
        replace(plain, pairs=known_clean(plain.context, "train")),
        arm(real(), clean_only=True),
        arm(real(search={"top_k": 500})),
        arm(real(negatives={"miner": "bm25"}, train={"num_hard_negatives": 1})),
        arm(real(negatives={"miner": "bm25", "depth": 7}, train={"num_hard_negatives": 1})),
    ]
    assert len({arm.node().key for arm in [plain, *different]}) == 1 + len(different)


def test_arms_of_noisy_pairs() -> None:
    run = config(variants={"npc": {"loss": "npc"}}, judge={"judges": ["pair_classifier"]})
    assert arm_names(run) == ["nce", "npc", "pair_classifier-filtered", "clean"]
    assert arm_names(run, "clean,nce") == ["clean", "nce"]
    assert arm_names(run, "npc-clean") == ["npc-clean"]
    for unknown in ("npx", "nce-clean"):
        with pytest.raises(ConfigError, match=f"'{unknown}' is none of nce, npc, pair_classifier-filtered, clean"):
            arm_names(run, f"nce,{unknown}")


def test_a_seed_that_ended_early_is_drawn_as_far_as_it_went(tmp_path: Path) -> None:
    results = [result(arm, seed, 0.2) for arm in ("a", "b") for seed in (1, 2)]
    results[1].history = results[1].history[:1]
    report_arms(config(), {"": ["a", "b"]}, results, tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def result(arm: str, seed: int, right: float) -> ArmResult:
    rng = np.random.default_rng(seed)
    values = {f"q{at}": float(rng.random() < right) for at in range(50)}
    states = {state: {"R@1": values} for state in ("last", "best")}
    return ArmResult(arm, seed, [{"dev RR@10": 0.1}, {"dev RR@10": right}], [], states, 1, 2.0)


def test_a_report_compares_within_groups(tmp_path: Path) -> None:
    results = [result(arm, seed, right) for seed in (1, 2) for arm, right in (("a", 0.2), ("b", 0.8), ("c", 0.9))]
    report_arms(config(), {"one": ["a", "b", "c"], "two": ["b", "c"]}, results, tmp_path, references={"c"})
    written = (tmp_path / "results.md").read_text()
    first, second = written.split("**")[2], written.split("**")[4]
    assert "minus a" in first
    assert "minus b" in second
    gap = (0.8 - 0.2) / (0.9 - 0.2)
    closed = next(line for line in first.splitlines() if line.startswith("| R@1 | b")).split("|")[-2]
    figures = json.loads((tmp_path / "results.json").read_text())["last"]["one"]
    values = [run.values["last"]["R@1"][f"q{at}"] for run in results[::3] for at in range(50)]
    assert figures[0]["value"][0] == pytest.approx(np.mean(values))
    assert float(closed.strip().rstrip("%")) / 100 == pytest.approx(gap, abs=0.25)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_no_gap_is_closed_where_there_may_be_none(tmp_path: Path) -> None:
    # One of the two seeds has a gap, the other its opposite.
    results = [result("nce", 1, 0.2), result("nce", 2, 0.9), result("clean", 1, 0.9), result("clean", 2, 0.3)]
    results += [result("npc", 1, 0.8), result("npc", 2, 0.8)]
    report_arms(config(), {"": ["nce", "npc", "clean"]}, results, tmp_path, references={"clean"})
    rows = [line.split("|") for line in (tmp_path / "results.md").read_text().splitlines() if line.startswith("| R@1")]
    assert [row[2].strip() for row in rows[:3]] == ["nce", "npc", "clean"]
    assert {row[-2].strip() for row in rows} == {""}


def test_arms_need_the_same_seeds() -> None:
    with pytest.raises(ValueError, match="same seeds"):
        compare_arms(EvaluateConfig(), 0, ["a", "b"], [result("a", 1, 0.5), result("b", 2, 0.5)], "last")


def test_intervals_over_one_seed_are_those_over_queries() -> None:
    values_QC = np.random.default_rng(0).random((80, 2))
    intervals, _ = seeds_and_queries(values_QC[None], 0.95, 500, seed=3)
    for mine, theirs in zip(intervals, bootstrap_intervals(values_QC, 0.95, 500, seed=3), strict=True):
        np.testing.assert_allclose(mine, theirs)


def test_the_width_of_an_interval_is_that_of_draws_of_queries_and_seeds() -> None:
    rng = np.random.default_rng(0)
    num, of_seeds, of_queries = 300, 0.03, 0.4

    def drawn() -> np.ndarray[Any, Any]:
        effects = rng.normal(0, of_seeds, (4, 1, 1)) + rng.normal(0, of_queries, (1, 250, 1))
        return np.asarray(effects)

    means = [drawn().mean() for _ in range(num)]
    widths = [high - low for [(_, low, high)], _ in (seeds_and_queries(drawn(), 0.95, 400, 0) for _ in range(60))]
    assert np.mean(widths) == pytest.approx(2 * 1.96 * np.std(means), rel=0.15)


def test_a_difference_between_seeds_is_not_told_from_nothing_by_queries_alone() -> None:
    agreeing = np.random.default_rng(0).normal(0.05, 0.1, (3, 400, 1))
    apart = agreeing + np.array([-0.2, 0.0, 0.2])[:, None, None]
    (_, [sure]), (_, [unsure]) = (seeds_and_queries(values, 0.95, 1000, 0) for values in (agreeing, apart))
    assert sure < 0.01
    assert unsure > 0.1


def test_filtered_arms_lie_between_all_and_clean() -> None:
    judged = thing("judged")
    recipe: Any = no_data(config(negatives={"miner": "bm25"}, train={"num_hard_negatives": 1}))
    recipe.judged = lambda judges, split: Judged(judged, None)
    arms = filtered_arms(recipe, ["sieve"], 5)
    assert [arm.name for arm in arms] == ["hn5-all", "hn5-sieve", "hn5-clean"]
    assert {arm.context.config.train.num_hard_negatives for arm in arms} == {5}
    assert [arm.negatives is judged for arm in arms] == [False, True, False]
    assert [arm.options.clean_only for arm in arms] == [False, False, True]
    controlled = filtered_arms(recipe, ["sieve"], 5, controls=True)
    assert [arm.name for arm in controlled] == ["hn5-all", "hn5-sieve", "hn5-random-as-sieve", "hn5-clean"]
    assert [arm.negatives is judged for arm in controlled] == [False, True, True, False]
    assert [arm.options.drop_at_random for arm in controlled] == [False, False, True, False]


def test_panels_are_four_states_split_by_truth() -> None:
    rng = np.random.default_rng(0)
    wrong_N = np.arange(200) % 2 == 0
    apart = np.abs(rng.normal(np.where(wrong_N, 6.0, 0.5), 0.4))
    mixed = np.abs(rng.normal(3.0, 1.0, size=200))
    random_EN = np.abs(rng.normal(6.0, 0.4, size=(3, 200)))
    plain = States(np.stack([mixed, apart, mixed]), random_EN, wrong_N)
    states = panels(plain, States(np.stack([mixed, apart, apart]), random_EN, wrong_N), 1, "npc")
    warm = "after the warm-up (1 of 2 epochs)"
    assert list(states) == ["before training", warm, "NCE, after the last epoch", "NPC, after the last epoch"]
    aurocs = [float(row[3]) for row in table(states).rows]
    assert aurocs[1] == aurocs[3] == 1.0
    assert max(aurocs[0], aurocs[2]) < 0.7
