"""Spaces: what is refused before anything starts, and what the default trial is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from optuna.trial import FixedTrial

from raydr.errors import ConfigError
from raydr.training.sections import PairDetectionConfig
from raydr.tuning.plan import num_side_by_side, open_plan, plan_search
from raydr.tuning.settings import Entry
from raydr.tuning.space import build_space, with_values
from tuning.made_space import make_config, make_space

ROOT = Path(__file__).parents[2]
SPACES = sorted((ROOT / "tune_spaces").glob("*.yaml"))


def test_a_space_knows_the_defaults_of_its_config():
    space = make_space(fixed={"train": {"pair_detection": {}}})
    assert space.defaults == {
        "train.loss.warmup_epochs": 2,
        "train.optimizer.learning_rate": 2e-5,
        # As the space writes it, and not with all its settings.
        "train.sampler": "top",
    }
    assert space.config.train.pair_detection == PairDetectionConfig()
    assert make_config().train.pair_detection == "auto"


def test_fixed_settings_keep_what_the_config_says_of_the_same_component():
    config = make_config(train={"loss": {"name": "npc", "consistency_weight": 0.3}})
    space = make_space({"model.scale": {"uniform": [10, 30]}}, config, fixed={"train": {"loss": {"name": "npc"}}})
    assert space.config.train.loss.model_dump()["consistency_weight"] == 0.3
    replaced = make_space({"model.scale": {"uniform": [10, 30]}}, config, fixed={"train": {"loss": {"name": "nce"}}})
    assert replaced.config.train.loss.name == "nce"


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"train.loss.warmup": {"int": [1, 2]}}, "no setting 'warmup'; did you mean 'warmup_epochs'"),
        (
            {"train.pair_detection.num_random": {"int": [1, 2]}},
            "train.pair_detection is auto and has no settings; change it",
        ),
        ({"model.scale.x": {"int": [1, 2]}}, "model.scale is 20 and has no settings"),
        ({"seed": {"int": [1, 2]}}, "seed cannot be searched"),
        ({"data.train_split": {"choice": ["a", "b"]}}, "data.train_split cannot be searched"),
        ({"train.dev.max_queries": {"int": [1, 2]}}, "must be the same for all"),
        ({"model.scale": {"normal": [1, 2]}}, "expected one of uniform"),
        ({"model.scale": [1, 2]}, "expected one of uniform"),
        ({"model.scale": {"uniform": [2, 1]}}, r"low <= high"),
        ({"model.scale": {"loguniform": [0, 1]}}, r"low > 0"),
        ({"model.scale": {"grid": [2, 1]}}, "ascending"),
        ({"model.scale": {"grid": [1, 2], "steps": 3}}, "steps is for"),
        ({"model.scale": {"uniform": [1, 2], "steps": 1}}, "steps: Input should be greater than or equal to 2"),
        ({"train.sampler": {"choice": ["top", "top"]}}, "twice"),
        ({"model.similarity": {"times": [1, 2]}}, "set a number other than 0"),
        ({"model.scale": {"uniform": [0, 2]}}, r"model.scale = 0: model.scale: Input should be greater than 0"),
        ({"train.batch_size": {"loguniform": [8, 64]}}, r"train.batch_size = 25.83: .*a valid integer"),
        ({"train.num_epochs": {"uniform": [4, 8]}}, r"train.num_epochs = 5.273: .*a valid integer"),
        ({"train.sampler": {"choice": ["top", "bottom"]}}, "unknown sampler 'bottom'"),
        ({"train.loss": {"choice": ["nce"]}, "train.loss.warmup_epochs": {"int": [1, 2]}}, "lies within train.loss"),
        ({}, "nothing to search"),
    ],
)
def test_wrong_spaces_are_refused_with_their_key(space, message):
    with pytest.raises(ConfigError, match=message):
        build_space({"space": space}, make_config(), "wrong")


def test_a_space_for_another_similarity_is_refused():
    with pytest.raises(ConfigError, match=r"made for model.similarity 'dot', the config has 'cosine'"):
        make_space(requires={"model.similarity": "dot"})


def test_distributions_are_read_as_they_are_written():
    space = make_space(
        {
            "model.scale": {"times": [0.5, 1, 2]},
            "train.num_hard_negatives": {"grid": [1, 2, 4]},
            "train.optimizer.weight_decay": {"uniform": [0, 0.1], "steps": 3},
            # YAML takes 1e-4 for text.
            "train.optimizer.learning_rate": {"loguniform": ["1e-4", "1e-2"], "steps": 3},
        }
    )
    values = {key: parameter.values for key, parameter in space.parameters.items()}
    assert values == {
        "model.scale": [10.0, 20.0, 40.0],
        "train.num_hard_negatives": [1, 2, 4],
        "train.optimizer.weight_decay": [0.0, 0.05, 0.1],
        "train.optimizer.learning_rate": [1e-4, 1e-3, 1e-2],
    }
    assert [type(value) for value in values["train.num_hard_negatives"] or []] == [int] * 3


@pytest.mark.parametrize(
    ("entry", "value", "params"),
    [
        ({"uniform": [0.0, 2.0]}, 0.5, 0.5),
        ({"uniform": [0.0, 2.0]}, 2.5, None),
        ({"uniform": [0.0, 2.0]}, True, None),
        ({"int": [2, 4]}, 4, 2),
        ({"int": [2, 4]}, 2.5, None),
        ({"choice": ["top", {"name": "simans", "a": 0.5}]}, {"name": "simans", "a": 0.5}, 1),
        ({"choice": ["top", "uniform"]}, "bottom", None),
    ],
)
def test_values_in_the_terms_of_optuna_and_back(entry, value, params):
    parameter = Entry.model_validate(entry).parameter(None)
    assert parameter.encode(value) == params
    if params is not None:
        assert parameter.suggest(FixedTrial({"key": params}), "key") == value


def test_numbers_of_a_range_have_few_digits_and_stay_in_it():
    parameter = Entry.model_validate({"uniform": [1 / 3, 2 / 3]}).parameter(None)
    assert parameter.rounded(0.123456789 + 1 / 3) == 0.4568
    assert parameter.rounded(1 / 3) == 1 / 3


def test_values_that_are_wrong_only_together_are_refused_before_a_grid_starts():
    grid = {"model.dropout": {"grid": [0.0, 0.1]}, "train.coteaching": {"choice": [None, {"noise_rate": 0.2}]}}
    space = make_space(grid, make_config(model={"dropout": 0.1}, train={"loss": "nce"}), search={"algorithm": "grid"})
    with pytest.raises(ConfigError, match="stay so with model.dropout 0"):
        plan_search(space)


def test_the_grace_period_is_beyond_the_longest_warm_up():
    assert plan_search(make_space()).grace_epochs == 4
    assert plan_search(make_space(scheduler={"grace_epochs": 5})).grace_epochs == 5
    with pytest.raises(ConfigError, match="warm-ups .* of up to 3 epochs, whose gain shows later: set it to 4"):
        plan_search(make_space(scheduler={"grace_epochs": 3}))
    with pytest.raises(ConfigError, match="cannot stop anything: its grace period is 8"):
        plan_search(make_space(scheduler={"grace_epochs": 8}))
    with pytest.raises(ConfigError, match=r"grace period is 4 and train.num_epochs 3"):
        plan_search(make_space(config=make_config(train={"num_epochs": 3})))
    beta = {"train.loss.beta.start_epoch": {"int": [1, 5]}}
    plan = plan_search(make_space(beta, make_config(train={"loss": {"name": "rcl"}})))
    assert (plan.grace_epochs, plan.warmups) == (6, (1, 5))


def test_a_search_over_refreshes_counts_rounds_and_knows_what_cannot_differ():
    starts = {"refresh.start": {"choice": ["last", "scratch"]}}
    rounds = make_config(refresh={"num_rounds": 3, "arms": {"plain": {}}}, evaluate={"measures": ["RR@10"]})
    space = make_space(starts, rounds, objective="refresh")
    assert not space.config.refresh.arms
    plan = plan_search(space)
    # What differs here acts from the second round on.
    assert (plan.unit, plan.grace_epochs, plan.max_epochs, plan.measure) == ("round", 2, 3, "RR@10")
    scales = {"model.scale": {"uniform": [5, 9]}}
    assert plan_search(make_space(scales, rounds, objective="refresh")).grace_epochs == 1
    with pytest.raises(ConfigError, match=r"settings of refresh, which act from the second round on: set it to 2 or"):
        plan_search(make_space(starts, rounds, objective="refresh", scheduler={"grace_epochs": 1}))
    with pytest.raises(ConfigError, match=r"grace period is 3 and refresh.num_rounds 3"):
        plan_search(make_space(starts, rounds, objective="refresh", scheduler={"grace_epochs": 3}))
    with pytest.raises(ConfigError, match="with objective: refresh also in those of refresh"):
        make_space(starts, rounds)
    with pytest.raises(ConfigError, match=r"refresh.measure cannot be searched: it must be the same for all trials"):
        make_space({"refresh.measure": {"choice": ["", "R@5"]}}, rounds, objective="refresh")
    with pytest.raises(ConfigError, match=r"the space fixes refresh; it may fix settings of model, train, negatives"):
        plan_search(make_space(fixed={"refresh": {"num_rounds": 4}}))
    with pytest.raises(ConfigError, match=r"the space fixes refresh.arms"):
        plan_search(make_space(starts, rounds, objective="refresh", fixed={"refresh": {"arms": {"a": {}}}}))
    asked = make_config(refresh={"num_rounds": 3, "measure": "R@7"})
    with pytest.raises(ConfigError, match=r"refresh.measure 'R@7' is not among evaluate.measures"):
        plan_search(make_space(starts, asked, objective="refresh"))


def test_a_search_without_a_dev_split_does_not_begin():
    asked = make_config(data={"reader": {"name": "beir", "path": "unused"}, "dev_split": ""})
    with pytest.raises(ConfigError, match=r"^data\.dev_split is empty"):
        plan_search(make_space(config=asked))


def test_a_grid_is_every_combination_after_the_default():
    grid = {"model.scale": {"grid": [10, 20]}, "train.loss.warmup_epochs": {"int": [1, 2]}}
    plan = plan_search(make_space(grid, search={"algorithm": "grid"}))
    assert plan.total == 4
    assert tuple(plan.space.defaults.values()) == (20.0, 2)
    assert [tuple(values.values()) for values in plan.combinations] == [(10, 1), (10, 2), (20, 1)]
    with pytest.raises(ConfigError, match="leave it out"):
        plan_search(make_space(grid, search={"algorithm": "grid", "num_trials": 4}))
    with pytest.raises(ConfigError, match=r"train.optimizer.learning_rate is a range: set steps"):
        plan_search(make_space(search={"algorithm": "grid"}))


def test_as_many_trials_run_as_fit():
    def fitting(num_cpus: float, num_gpus: float = 0, concurrency: int | None = None, **train: Any) -> int:
        space = make_space(config=make_config(train=train), trials={"concurrency": concurrency})
        return num_side_by_side(plan_search(space), {"CPU": num_cpus, "GPU": num_gpus})

    assert fitting(2) == 2
    assert fitting(2, num_workers=2) == 1
    assert fitting(64, 4, use_gpu=True, cpus_per_worker=4) == 4
    # As many as there are trials.
    assert fitting(64) == 16
    assert fitting(1, cpus_per_worker=0.1) == 10
    with pytest.raises(ConfigError, match=r"a trial takes 4 CPU .* Ray has 2 CPU: 0 at a time fit. Lower"):
        fitting(2, num_workers=4)
    with pytest.raises(ConfigError, match=r"2 at a time fit, trials.concurrency is 3. Lower .* or trials.concurrency"):
        fitting(2, concurrency=3)
    with pytest.raises(ConfigError, match=r"takes 1 CPU and 1 GPU .* Ray has 2 CPU: 0 at a time fit"):
        fitting(2, use_gpu=True)
    # A group that grows needs its fewest workers, and what it trains on is made by a worker and a tokenizer.
    assert fitting(4, num_workers=(1, 2)) == 2


def test_the_nodes_of_a_refresh_must_fit():
    def fitting(num_cpus: float, concurrency: int | None = None) -> int:
        config = make_config(encode={"cpus_per_actor": 2, "cpus_per_tokenizer": 1}, refresh={"num_rounds": 3})
        scales = {"model.scale": {"uniform": [5, 9]}}
        space = make_space(scales, config, objective="refresh", trials={"concurrency": concurrency})
        return num_side_by_side(plan_search(space), {"CPU": num_cpus, "GPU": 0.0})

    assert fitting(8) == 1
    with pytest.raises(ConfigError, match=r"takes 3 CPU \(section encode\), Ray has 2 CPU"):
        fitting(2)
    with pytest.raises(ConfigError, match="refreshes run one at a time"):
        fitting(8, concurrency=2)


def test_a_space_file_is_found_and_its_settings_are_changed(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({"space": {"model.scale": {"uniform": [5, 50]}}}))
    space = open_plan(make_config(), str(file), overrides=["search.num_trials=5"]).space
    assert (space.name, space.settings.search.num_trials) == ("mine", 5)
    assert open_plan(make_config(), str(file), "other").space.name == "other"
    with pytest.raises(ConfigError, match="there is no space file"):
        open_plan(make_config(), str(tmp_path / "none.yaml"))


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_the_spaces_of_the_repository_fit_a_plain_config(path):
    raw = yaml.safe_load(path.read_text())
    config = make_config(
        model={"similarity": raw.get("requires", {}).get("model.similarity", "cosine")},
        train={"loss": "nce", "num_hard_negatives": 2},
    )
    plan = open_plan(config, str(path))
    assert plan.total >= 12
    assert plan.grace_epochs == 1 + max(plan.warmups, default=0) or plan.refreshes
    assert plan.space.settings.description
    for values, changed in plan.space.corners:
        assert with_values(plan.space.config, values) == changed


@pytest.mark.parametrize(("value", "multiples"), [(12_288, [12_288, 24_576]), (0.123456, [0.123456, 0.246912])])
def test_multiples_of_a_value_are_exact(value: float, multiples: list[float]) -> None:
    """A batch of 12,288 queries became one of 12,290, and the config's own value was none of those tried."""
    assert Entry.model_validate({"times": [1, 2]}).parameter(value).values == multiples
    assert Entry.model_validate({"times": [0.3]}).parameter(2e-5).values == [6e-6]


def test_the_space_of_the_page_fits_a_plain_config() -> None:
    [block] = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "tuning.md").read_text(), re.DOTALL)
    plan = plan_search(build_space(yaml.safe_load(block), make_config(train={"num_hard_negatives": 2}), "page"))
    assert plan.total == 24
