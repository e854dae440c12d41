"""Arms: their keys, and what the experiments change of a config."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph.things import thing

from experiments.arm_report import report_arms
from experiments.arm_training import ArmResult
from experiments.arms import Arm, States, plain_arm
from experiments.ccr_beta import beta_arm
from experiments.noise_shares import report as report_shares
from experiments.noise_shares import with_share
from experiments.noisy_pairs import arm_names
from experiments.passage_kinds import kinds_picture, kinds_table
from experiments.perplexity_panels import panels, table
from experiments.sieve_arms import filtered_arms
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.declaring import Declaring
from raydr.graph.facts import Facts
from raydr.graph.judging import Judged
from raydr.graph.nodes.noise import clean_only
from raydr.graph.places import Places
from raydr.graph.recipe import Recipe
from raydr.runtime.cluster import RayConfig, ray_session


def recipe_of(run: RunConfig) -> Recipe:
    return Recipe(Declaring(run, Facts(Places.of(run.workdir)), run))


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
    assert plain.node(0).key != plain.node(1).key
    # Where it lies, who judges, and which state the config would keep play no part.
    other = real(judge={"judges": ["npc"]}, train={"keep": "last", "num_workers": 2})
    assert plain.node(0).key == arm(other.model_copy(update={"workdir": str(tmp_path / "v")})).node(0).key
    different = [
        arm(real(train={"num_epochs": 7})),
        replace(plain, pairs=clean_only(plain.run, "train")),
        arm(real(), redraw_depth=5),
        arm(real(), clean_only=True),
        arm(real(search={"top_k": 500})),
        arm(real(negatives={"miner": "bm25"}, train={"num_hard_negatives": 1})),
        arm(real(negatives={"miner": "bm25", "depth": 7}, train={"num_hard_negatives": 1})),
    ]
    assert len({one.node(0).key for one in [plain, *different]}) == 8


def test_arms_of_noisy_pairs() -> None:
    run = config(variants={"npc": {"loss": "npc"}}, judge={"judges": ["pair_classifier"]})
    assert arm_names(run) == ["nce", "npc", "pair_classifier-filtered", "clean"]
    assert arm_names(run, "clean,nce") == ["clean", "nce"]
    with pytest.raises(ConfigError, match="'npx' is none of nce, npc, pair_classifier-filtered, clean"):
        arm_names(run, "nce,npx")


def test_only_the_share_changes() -> None:
    run = config(inject_noise={"kind": "mismatched", "share": 0.5})
    assert with_share(run, 0.5) == run
    changed = with_share(run, 0.2)
    assert changed.inject_noise is not None
    assert (changed.inject_noise.share, changed.workdir) == (0.2, "w")


def test_co_teaching_is_told_the_share() -> None:
    variants = {"co-teaching": {"coteaching": {"noise_rate": 0.5, "ramp_epochs": 3}}, "npc": {"loss": "npc"}}
    run = config(inject_noise={"kind": "mismatched", "share": 0.5}, variants=variants)
    assert with_share(run, 0.2).variants == {
        "co-teaching": {"coteaching": {"noise_rate": 0.2, "ramp_epochs": 3}},
        "npc": {"loss": "npc"},
    }
    assert run.variants == variants


def test_a_seed_that_ended_early_is_drawn_as_far_as_it_went(tmp_path: Path) -> None:
    results = [result("a", 1, 0.2), result("a", 2, 0.2), result("b", 1, 0.5)]
    results[1].history = results[1].history[:1]
    report_arms(config(), {"": ["a", "b"]}, results, tmp_path)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="no inject_noise of kind mismatched"):
        with_share(config(), 0.2)


def test_beta_and_batch_size_alone_change() -> None:
    train = {"loss": {"name": "rcl", "beta": {"final": 0.0, "start_epoch": 2}}, "batch_size": 64}
    changed = beta_arm(no_data(config(train=train)), 0.25, 16).run.config
    assert changed.train.loss.beta.value(1) == 0  # type: ignore[attr-defined]
    assert changed.train.loss.beta.value(2) == 0.25  # type: ignore[attr-defined]
    assert changed.train.batch_size == 16
    assert beta_arm(no_data(changed), 0.0, 64).run.config == config(train=train)


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
    means = [row["mean"] for row in json.loads((tmp_path / "results.json").read_text())["last"]["one"]["summaries"]]
    assert means[0] == pytest.approx(
        np.mean([one.values["last"]["R@1"][f"q{at}"] for one in results[::3] for at in range(50)])
    )
    assert float(closed.strip().rstrip("%")) / 100 == pytest.approx(gap, abs=0.25)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_shares_are_reported_one_by_one(tmp_path: Path) -> None:
    names = ["nce", "npc", "clean"]
    made = {"nce": 0.2, "npc": 0.6, "clean": 0.9}
    noisy = [result(arm, 1, right) for arm, right in made.items()]
    same = [result(arm, 1, 0.9) for arm in names]
    report_shares(config(), names, {0.0: same, 0.5: noisy}, tmp_path)
    tables = (tmp_path / "results.md").read_text().split("**")
    assert tables[1::2] == [
        f"{share} mismatched, {state}"
        for share in ("0%", "50%")
        for state in ("at the last epoch", "at the epoch that is best on dev")
    ]
    # Without noise there is no gap to close.
    assert "nan" not in tables[2]
    assert "%" in tables[6]
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")


def test_filtered_arms_lie_between_all_and_clean() -> None:
    judged = thing("judged")
    recipe: Any = no_data(config(negatives={"miner": "bm25"}, train={"num_hard_negatives": 1}))
    recipe.judged = lambda judges, split: Judged(judged, None)
    arms = filtered_arms(recipe, ["sieve"], 5)
    assert [arm.name for arm in arms] == ["hn5-all", "hn5-sieve", "hn5-clean"]
    assert {arm.run.config.train.num_hard_negatives for arm in arms} == {5}
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


def test_kinds_are_told_apart() -> None:
    scores = {
        "positives": np.array([0.9, 0.8]),
        "known false negatives": np.array([0.7, 0.3]),
        "hard negatives": np.array([0.5, 0.2]),
        "other queries' positives": np.array([0.1, 0.0]),
    }
    (row,) = kinds_table({"nce": scores}).rows
    assert row[5:] == ["0.750", "1.000", "1.000"]
    assert kinds_picture({"nce": scores}, "made", 1).startswith(b"\x89PNG")
