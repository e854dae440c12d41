"""One strict config: overrides, messages, variants."""

from __future__ import annotations

from pathlib import Path

import pytest

from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.verbs.evaluation import DEFAULT_CONFIG

CONFIGS = [DEFAULT_CONFIG, *sorted((Path(__file__).parents[2] / "configs").rglob("*.yaml"))]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("data: {reader: {name: beir, path: somewhere}}\ntrain: {num_epochs: 2}\n")
    return path


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_in_the_repository_is_valid_and_survives_a_round_trip(path, tmp_path):
    config = RunConfig.load(path)
    (tmp_path / "again.yaml").write_text(config.to_yaml())
    assert RunConfig.load(tmp_path / "again.yaml") == config


def test_overrides(file):
    config = RunConfig.load(
        file, ["train.loss=rcl", "train.loss.beta=0.3", "train.num_epochs=7", "encode.dtype=float32", "seed=5"]
    )
    assert config.train.loss.model_dump()["beta"]["final"] == 0.3
    assert (config.train.num_epochs, config.encode.dtype, config.seed) == (7, "float32", 5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.num_epoch=3", r"train\.num_epoch: unknown key \(value 3\): did you mean train\.num_epochs\?"),
        ("train.los=npc", r"train\.los: unknown key .*: did you mean train\.loss"),
        ("num_epochs=3", r"  num_epochs: unknown key \(value 3\): did you mean .*train\.num_epochs.*\?"),
        ("zzz=3", r"  zzz: unknown key \(value 3\)(?!:)"),
        ("train.num_epochs=0", r"train\.num_epochs: Input should be greater than or equal to 1 \(got 0\)"),
        (
            "train.loss=nces",
            r"unknown loss 'nces'; allowed: ar2, bce, corrected_nce, ",
        ),
        ("train.loss={name: nce, beta: 1}", r"beta"),
        ("model.similarity=euclid", r"model\.similarity: Input should be 'cosine' or 'dot' \(got 'euclid'\)"),
        ("data.reader={name: excel}", r"unknown reader 'excel'; allowed: beir"),
        ("train.accumulation_steps=7", r"batch_size 64 is not divisible by accumulation_steps 7"),
        ("train.loss=corrected_nce", r"needs hard negatives with known draw probabilities"),
        ("encode.dtype=int4", r"encode\.dtype"),
        (
            "evaluate.measures=[R@5, nDGC@10]",
            r"evaluate\.measures\.1: 'nDGC@10' is not a measure",
        ),
        ("evaluate.answer_cutoffs=[0]", r"evaluate\.answer_cutoffs\.0: Input should be greater than or equal to 1"),
        ("train.dev.measure=accuracy", r"train\.dev\.measure: 'accuracy' is not a measure"),
        ("variants.a={dev: {measure: Recall}}", r"variants\.a: dev\.measure: 'Recall' is not a measure"),
        ("refresh.arms={comparison: {}}", r"refresh: arms: comparison is the name of the evaluation of all arms"),
        ("refresh.rounds={9: {judges: []}}", r"refresh: rounds: there is no round 9, num_rounds is 3"),
        ("workdir", r"--set takes key=value, got 'workdir'"),
        ("data.test_splits=[dev", r"--set data\.test_splits=\[dev: '\[dev' is not YAML"),
    ],
)
def test_wrong_settings_are_named(file, override, message):
    with pytest.raises(ConfigError, match=message):
        RunConfig.load(file, ["train.num_workers=2", override])


def test_a_micro_batch_of_one_query_has_no_negative(file):
    # The rest of the section is not repeated.
    with pytest.raises(ConfigError, match=r"leaves a single query per micro-batch[^{]*$"):
        RunConfig.load(file, ["train.batch_size=8", "train.accumulation_steps=8"])
    RunConfig.load(file, ["train.batch_size=8", "train.accumulation_steps=8", "train.num_hard_negatives=1"])


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(ConfigError, match=r"no config file .*none\.yaml"):
        RunConfig.load(tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("a: [1, 2")
    with pytest.raises(ConfigError, match="not valid YAML"):
        RunConfig.load(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- 1")
    with pytest.raises(ConfigError, match="must be a mapping of sections"):
        RunConfig.load(tmp_path / "list.yaml")
    (tmp_path / "empty.yaml").write_text("seed: 1")
    with pytest.raises(ConfigError, match="data: is missing"):
        RunConfig.load(tmp_path / "empty.yaml")


@pytest.mark.parametrize("name", ["bm25", "source", "trained", "untrained", "fused"])
def test_a_variant_takes_the_place_of_no_other_system(file, name):
    with pytest.raises(ConfigError, match=f"variants: '{name}' would be one of bm25, source, trained"):
        RunConfig.load(file, [f"variants.{name}={{loss: rcl}}"])


def test_variants_change_only_what_they_name(file):
    config = RunConfig.load(file, ["variants.robust={loss: {name: rcl, beta: 0.5}, optimizer: {eps: 1.0e-6}}"])
    robust = config.variant("robust")
    assert robust.train.loss.name == "rcl"
    assert robust.train.optimizer.eps == 1e-6
    assert robust.train.optimizer.learning_rate == config.train.optimizer.learning_rate
    assert robust.train.num_epochs == 2
    assert config.variant("trained") is config
    with pytest.raises(ConfigError, match="los"):
        RunConfig.load(file, ["variants.typo={los: nce}"])


def test_a_variant_may_draw_candidates_where_the_run_does_not():
    raw = {"data": {"reader": {"name": "beir", "path": "x"}}, "negatives": {"miner": "bm25"}}
    variants = {"hard": {"num_hard_negatives": 4}, "npc": {"loss": "npc"}}
    config = RunConfig.parse(raw | {"variants": variants})
    assert [config.variant(name).draws_candidates for name in ("trained", "npc", "hard")] == [False, False, True]
    assert config.some_training_draws_candidates
    assert not RunConfig.parse(raw).some_training_draws_candidates
    assert not RunConfig.parse({"data": raw["data"], "variants": variants}).some_training_draws_candidates


def test_only_what_differs_from_the_defaults_is_a_parameter_of_the_run(file):
    config = RunConfig.load(file, ["train.loss={name: rcl, beta: 0.3}", "seed=5", "evaluate.confidence=0.95"])
    changed = config.changed_settings()
    assert changed["data.reader.path"] == "somewhere"
    assert changed["data.reader.splits"] == []
    assert {key for key in changed if not key.startswith(("data.reader.", "train.loss."))} == {
        "seed",
        "train.num_epochs",
    }
    assert (changed["train.loss.name"], changed["train.loss.beta.final"]) == ("rcl", 0.3)


def test_the_same_run_can_be_asked_for_from_another_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("in", "checkpoint"):
        (tmp_path / name).mkdir()
    judge = {"guide": {"checkpoint": "checkpoint"}, "classifier": {"model": {"checkpoint": "./checkpoint"}}}
    judge["judges"] = ["npc", {"name": "language_model", "checkpoint": "checkpoint"}]
    others = {"ranker": {"model": {"checkpoint": "checkpoint"}}, "cross_fit": {"model": {"checkpoint": "checkpoint"}}}
    raw = {"workdir": "work", "data": {"reader": {"name": "beir", "path": "in"}}, "model": {"checkpoint": "some/name"}}
    config = RunConfig.parse(raw | others | {"judge": judge}).from_anywhere()
    assert (config.workdir, config.data.reader.model_dump()["path"]) == (f"{tmp_path}/work", f"{tmp_path}/in")
    assert config.model.checkpoint == "some/name"
    assert config.judge.guide.checkpoint == config.judge.classifier.model.checkpoint == f"{tmp_path}/checkpoint"
    read = (config.judge.judges[1], config.ranker.model, config.cross_fit.model)
    assert [config.checkpoint for config in read] == [f"{tmp_path}/checkpoint"] * 3
    assert RunConfig.parse(config.model_dump()) == config
    pairs = {"name": "pairs", "files": {"train": "a.csv"}}
    assert RunConfig.parse({"data": {"reader": pairs}}).from_anywhere().data.reader.path == str(tmp_path)
    there = {"workdir": "s3://bucket/work", "data": {"reader": {"name": "beir", "path": "s3://bucket/in"}}}
    assert RunConfig.parse(there).from_anywhere() == RunConfig.parse(there)


def test_a_seed_is_taken_by_every_library(tmp_path: Path) -> None:
    raw = {"data": {"reader": {"name": "beir", "path": "x"}}}
    assert RunConfig.parse(raw | {"seed": 2**32 - 1}).seed == 2**32 - 1
    with pytest.raises(ConfigError, match="seed: Input should be less than 4294967296"):
        RunConfig.parse(raw | {"seed": 2**32})
