"""One identity (invariant 11): what a node depends on changes its key, and nothing else does, whoever asks for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from small_runs import recipe_of, small_run

from raydr.artefacts import cross_fitting
from raydr.artefacts.declaration import Node
from raydr.artefacts.diagnosis import diagnosis
from raydr.component import Component, Config
from raydr.config.files import apply_override
from raydr.config.reference import list_settings
from raydr.config.run import RunConfig
from raydr.distributed.arithmetic import Arithmetic, choose_device
from raydr.distributed.pool import ThisProcess
from raydr.models.encode_config import EncodeConfig
from raydr.pipeline.planning import Inventory
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.rounds import lay_out

pytestmark = [pytest.mark.invariant, pytest.mark.usefixtures("here")]

#: Which kinds of node have a setting among their own, or come and go with it (then the first of them, made of what was
#: there before). What is not here is neutral.
CONTENT = {
    "seed": "dataset model cross_encoder verdicts evaluation audit folds margins",
    "variants": "model",
    "train.ranker": "ranker_scores",
    # Scores that were kept are no input then.
    "data.reader": "corpus dataset",
    "data.reader.splits": "dataset",
    "data.reader.answers": "dataset",
    "data.max_queries": "dataset",
    "data.hold_out": "dataset",
    "data.leaked_queries": "dataset",
    "data.skip_own_id": "dataset run",
    "data.part_rows": "corpus dataset",
    "data.train_split": "dataset evaluation run embeddings negatives negatives_statistics verdicts model "
    "cross_encoder audit folds margins ranker_scores diagnosis",
    "data.dev_split": "model run fusion_weights diagnosis cross_encoder",
    "data.test_splits": "embeddings run evaluation",
    "inject_noise": "dataset",
    "inject_noise.*": "dataset",
    "negatives": "negatives model run cross_encoder ranker_scores diagnosis",
    "negatives.miner": "negatives run",
    "negatives.depth": "negatives model",
    "negatives.first_rank": "negatives",
    # Runs over the training split are for mining.
    "partition.negatives": "run negatives model cross_encoder",
    "partition.search": "run",
    "bm25.*": "bm25 diagnosis",
    # A guide is a model too, and a sieve a copy of one.
    "model.*": "model",
    "judge.guide.*": "model",
    "judge.sieve.*": "model",
    "judge.classifier.num_folds": "cross_encoder verdicts",
    "judge.classifier.pairs_kept_by": "dataset verdicts",
    "judge.classifier.*": "cross_encoder",
    "cross_fit.num_folds": "dataset folds margins",
    "cross_fit.num_epochs": "model",
    "cross_fit.num_random": "margins",
    "cross_fit.num_draws": "margins",
    "cross_fit.batch_size": "model",
    "cross_fit.optimizer.*": "model",
    "cross_fit.seed": "folds model margins",
    "cross_fit.model.*": "model",
    "ranker.*": "cross_encoder",
    "judge.judges": "verdicts",
    "judge.model": "model",
    "judge.scores": "verdicts",
    **dict.fromkeys(
        (
            *(
                "train.loss",
                "train.loss.*",
                "train.matryoshka_dims",
                "train.teacher.*",
                "train.pair_detection.*",
                "train.coteaching.*",
            ),
            *("train.guide", "train.guide.*"),
            *("train.num_epochs", "train.batch_size", "train.accumulation_steps", "train.num_hard_negatives"),
            *("train.sampler", "train.sampler.*", "train.in_batch_negatives", "train.positive", "train.optimizer.*"),
            *("train.dtype", "train.keep", "train.dev.max_queries", "train.dev.random_passages", "train.dev.measure"),
            *("train.dev.patience", "train.dev.scope", "train.gradients"),
        ),
        "model",
    ),
    "encode.dtype": "embeddings verdicts diagnosis margins run ranker_scores",
    "encode.token_budget": "embeddings verdicts diagnosis margins run ranker_scores",
    "index.factory": "index",
    "index.shard_rows": "index",
    "index.train_rows": "index",
    **{f"search.{name}": "run" for name in ("top_k", "nprobe", "ef_search", "refine_factor", "batch_queries")},
    "rerank.*": "run",
    "fuse": "run fusion_weights evaluation",
    "fuse.systems": "run fusion_weights",
    "fuse.by": "run fusion_weights",
    "fuse.rank_offset": "run fusion_weights",
    "fuse.weights": "run fusion_weights",
    "fuse.measure": "fusion_weights",
    "evaluate.answer_match": "evaluation negatives_statistics audit",
    "evaluate.answer_query_prefixes": "evaluation negatives_statistics audit",
    "evaluate.*": "evaluation",
    "refresh.num_rounds": "embeddings negatives evaluation",
    "refresh.judges": "dataset negatives",
    "refresh.start": "model",
    "refresh.optimizer": "model",
    "refresh.classifier": "cross_encoder",
    "refresh.evaluate_splits": "embeddings evaluation",
    "refresh.rounds": "model",
    "refresh.arms": "model",
}
OPTIMIZERS = [f"{section}.optimizer" for section in ("train", "ranker", "cross_fit", "judge.sieve", "judge.classifier")]
#: What a setting is changed to, where the first other value of its type will not do.
CHANGES = {
    "workdir": ["workdir=elsewhere"],
    "data.reader": ["data.reader={name: pairs, files: {train: [DATA/queries.jsonl]}}"],
    "data.reader.path": ["data.reader.path=DATA/copy"],
    "data.reader.corpus": ["data.reader.corpus=copy/corpus.jsonl"],
    "data.reader.queries": ["data.reader.queries=copy/queries.jsonl"],
    "data.reader.qrels": ["data.reader.qrels=copy/qrels"],
    "data.reader.splits": ["data.reader.splits=[train, test]"],
    "data.reader.answers": ["data.reader.answers=answers.jsonl"],
    "data.max_queries": ["data.max_queries={train: 20}"],
    "data.hold_out": ["data.hold_out={other: 0.2}"],
    "data.train_split": ["data.train_split=dev"],
    "data.dev_split": ["data.dev_split=test"],
    "data.test_splits": ["data.test_splits=[test, dev]"],
    "inject_noise": ["inject_noise=null"],
    "inject_noise.ranks": ["inject_noise.ranks=[6, 50]"],
    "negatives": ["negatives=null", "variants={}", "refresh.arms={}", "judge.judges=[]", "train.num_hard_negatives=0"],
    "negatives.miner": ["negatives.miner=source"],
    "model.checkpoint": ["model.checkpoint=OTHER"],
    "model.passage_checkpoint": ["model.passage_checkpoint=OTHER"],
    "model.towers": ["model.towers=shared", "model.passage_checkpoint=''"],
    "model.projection": ["model.projection=8"],
    "model.activation": ["model.projection=8", "model.activation=tanh"],
    "model.score": ["model.score=sum_of_max"],
    "judge.guide.projection": ["judge.guide.projection=8"],
    "judge.guide.activation": ["judge.guide.projection=8", "judge.guide.activation=tanh"],
    "judge.guide.score": ["judge.guide.score=poly"],
    "cross_fit.model.projection": ["cross_fit.model.projection=8"],
    "cross_fit.model.activation": ["cross_fit.model.projection=8", "cross_fit.model.activation=tanh"],
    "cross_fit.model.score": ["cross_fit.model.score=poly"],
    "judge.guide.checkpoint": ["judge.guide.checkpoint=OTHER"],
    "judge.guide.passage_checkpoint": ["judge.guide.passage_checkpoint=OTHER"],
    "cross_fit.model.checkpoint": ["cross_fit.model.checkpoint=OTHER"],
    "cross_fit.model.passage_checkpoint": ["cross_fit.model.passage_checkpoint=OTHER"],
    "cross_fit.model.towers": ["cross_fit.model.towers=shared", "cross_fit.model.passage_checkpoint=''"],
    "judge.guide.towers": ["judge.guide.towers=shared", "judge.guide.passage_checkpoint=''"],
    "judge.classifier.model.checkpoint": ["judge.classifier.model.checkpoint=OTHER"],
    "judge.classifier.pairs_kept_by": ["judge.classifier.pairs_kept_by=npc", "judge.classifier.num_folds=2"],
    "judge.classifier.accumulation_steps": ["judge.classifier.accumulation_steps=2"],
    "ranker.model.prompt": ["ranker.model.prompt={task: it fits}"],
    "ranker.model.prompt.template": ["ranker.model.prompt.template={style: short}"],
    "judge.classifier.model.prompt": ["judge.classifier.model.prompt={task: it fits}"],
    "judge.classifier.model.prompt.template": ["judge.classifier.model.prompt.template={style: short}"],
    "ranker.model.checkpoint": ["ranker.model.checkpoint=OTHER"],
    "ranker.accumulation_steps": ["ranker.accumulation_steps=2"],
    "ranker.loss": ["ranker.loss=bce"],
    "judge.judges": [
        "judge.judges=[sieve, {name: margin, margin: 0.2}, guide, pair_classifier, consistency, "
        "{name: npc, margins: cross_fitted}]"
    ],
    "judge.model": ["judge.model=trained"],
    "judge.sieve.beta.start_epoch": ["judge.sieve.beta.start_epoch=1", "judge.sieve.num_epochs=2"],
    "train.loss": ["train.loss=nce"],
    "train.matryoshka_dims": ["train.matryoshka_dims=[8, 32]"],
    "train.ranker": ["train.ranker=untrained"],
    "ranker.dev.measure": ["ranker.dev.measure=R@5"],
    "train.pair_detection": ["train.pair_detection=null"],
    "train.teacher.momentum": ["train.teacher.momentum=0.9"],
    "train.pair_detection.detector": ["train.pair_detection.detector=anchored"],
    "train.coteaching": ["train.coteaching=null"],
    "train.guide": ["train.guide=null"],
    "train.sampler": ["train.sampler=uniform"],
    "train.batch_size": ["train.batch_size=16"],
    "train.num_workers": ["train.num_workers=2"],
    "train.dev.measure": ["train.dev.measure=RR@5"],
    "train.cache_tokens": ["train.cache_tokens=64"],
    "train.node_labels": ["train.node_labels={market: spot}"],
    "ray.capacity": ["ray.capacity={CPU: 64, GPU: 12}"],
    "ray.node_labels": ["ray.node_labels={market: spot}"],
    "cross_fit.batch_size": ["cross_fit.batch_size=16"],
    "encode.token_budget": ["encode.token_budget=2048"],
    "index.factory": ["index.factory=SQfp16"],
    "rerank.model": ["rerank.model=untrained"],
    "fuse": ["fuse=null"],
    "fuse.systems": ["fuse.systems=[untrained, bm25]"],
    "fuse.weights": ["fuse.weights=equal"],
    "fuse.measure": ["fuse.measure=R@5"],
    "evaluate.measures": ["evaluate.measures=[R@5]"],
    "evaluate.answer_cutoffs": ["evaluate.answer_cutoffs=[3]"],
    "evaluate.answer_query_prefixes": ["evaluate.answer_query_prefixes=[q]"],
    "benchmark.systems": ["benchmark.systems=[bm25]"],
    "benchmark.known": ["benchmark.known=[{system: bm25, measure: AP, value: 0.5, tolerance: 0, source: x}]"],
    **{f"{optimizer}.lora.targets": [f"{optimizer}.lora.targets=[query]"] for optimizer in OPTIMIZERS},
    "refresh.judges": ["refresh.judges=[guide]"],
    "refresh.optimizer": ["refresh.optimizer=kept", "train.optimizer.lora=null"],
    "refresh.evaluate_splits": ["refresh.evaluate_splits=[dev, test]"],
    "refresh.rounds": ["refresh.rounds={2: {train: {num_epochs: 7}}}"],
    "refresh.arms": ["refresh.arms={longer: {rounds: {2: {train: {num_epochs: 7}}}}}"],
    "variants": ["variants.long.num_epochs=8"],
}
#: One choice only.
FIXED = {"judge.classifier.loss"}


def with_settings(base: dict[str, Any], *overrides: str) -> RunConfig:
    raw = json.loads(json.dumps(base))
    for override in overrides:
        apply_override(raw, override)
    return RunConfig.parse(raw)


@pytest.fixture(autouse=True)
def _a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster with one, whose arithmetic need not be found out."""

    def resolved(settings: EncodeConfig, pool: object) -> Arithmetic:
        device = choose_device(settings)
        return Arithmetic(settings.dtype, device, settings.batch_tokens(device))

    monkeypatch.setattr("raydr.distributed.arithmetic.cluster_capacity", lambda: {"CPU": 8.0, "GPU": 1.0})
    monkeypatch.setattr("raydr.artefacts.context.resolve_arithmetic", resolved)
    monkeypatch.setattr("raydr.artefacts.context.resolve_training_dtype", lambda pool, workers, dtype: (dtype, ""))
    monkeypatch.setattr("raydr.artefacts.context.choose_pool", lambda *sizes: ThisProcess())


@pytest.fixture
def checkpoint(tiny_checkpoint: str, tmp_path: Path) -> Path:
    """A checkpoint of the test's own, which says that it has positions for all default lengths: nothing loads it."""
    folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 512}))
    return folder


@pytest.fixture
def other(checkpoint: Path, tmp_path: Path) -> Path:
    folder = Path(shutil.copytree(checkpoint, tmp_path / "other"))
    change_a_byte(folder)
    return folder


def change_a_byte(checkpoint: Path) -> None:
    file = checkpoint / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.fixture
def base(beir_folder: Path, checkpoint: Path, tmp_path: Path) -> dict[str, Any]:
    """Every section, and every kind of node."""
    data = Path(shutil.copytree(beir_folder, tmp_path / "data"))
    shutil.copytree(beir_folder, data / "copy")
    (data / "answers.jsonl").write_text("")
    start = str(checkpoint)
    model = {"checkpoint": start, "towers": "two", "passage_checkpoint": start}
    return small_run(
        data,
        start,
        tmp_path / "w",
        data={"reader": {"name": "beir", "path": str(data), "splits": ["train", "dev", "test"]}},
        inject_noise={"share": 0.25},
        model=model,
        train={
            "loss": {"name": "rcl"},
            "sampler": {"name": "top"},
            "pair_detection": {"detector": "gaussian", "margins": "model"},
            "coteaching": {"noise_rate": 0.1},
            "guide": {"margin": 0.1},
            "optimizer": {"lora": {}},
        },
        encode={"token_budget": 1024},
        cross_fit={"model": model, "optimizer": {"lora": {}}},
        judge={
            "judges": [
                "sieve",
                "margin",
                "guide",
                "pair_classifier",
                "consistency",
                {"name": "npc", "margins": "cross_fitted"},
            ],
            "model": "untrained",
            "guide": model,
            "sieve": {"optimizer": {"lora": {}}},
            "classifier": {"model": {"checkpoint": start, "prompt": {}}, "dtype": "float32", "optimizer": {"lora": {}}},
        },
        # One loss learns from a ranker, and one from a teacher.
        variants={
            "long": {"num_epochs": 9, "loss": "ranker_kl"},
            "taught": {"loss": {"name": "npc-paper", "warmup_epochs": 0}, "coteaching": None},
        },
        ranker={
            "model": {"checkpoint": start, "prompt": {}},
            "num_epochs": 3,
            "optimizer": {"lora": {}},
        },
        refresh={"num_rounds": 2, "judges": ["margin", "pair_classifier"], "evaluate_splits": ["dev"]},
        fuse={"systems": ["bm25", "untrained"], "weights": "dev"},
    )


def all_nodes(config: RunConfig, workdir: Path) -> dict[str, Node]:
    """All nodes of the run, of an audit, a diagnosis and the refresh, by key."""
    recipe = recipe_of(config, workdir)
    targets = [recipe.evaluation(split, recipe.systems(split)) for split in config.data.test_splits]
    targets += [recipe.ranker(), recipe.reranked(config.data.test_splits[0], "untrained")]
    targets.append(recipe.audit(config.judge.judges, config.data.train_split, "untrained"))
    folds = cross_fitting.margins(recipe.context, config.data.train_split)
    targets.append(diagnosis(recipe.context, "trained", recipe.trained(), recipe.model("untrained"), folds))
    targets += [
        target for arm in lay_out(recipe.context) for refresh_round in arm.rounds for target in refresh_round.targets()
    ]
    return {key: node for target in targets for key, node in {**target.ancestors(), target.key: target}.items()}


def own(nodes: dict[str, Node]) -> set[tuple[str, ...]]:
    """What the nodes declare themselves: their kinds first, then settings and roles of inputs."""
    return {
        (node.kind, json.dumps(dict(node.settings), sort_keys=True), *sorted(node.inputs)) for node in nodes.values()
    }


def first_changed(before: dict[str, Node], after: dict[str, Node]) -> set[str]:
    """The kinds of new nodes that are made of old ones alone."""
    new = [node for key, node in after.items() if key not in before]
    return {node.kind for node in new if all(node_input.key in before for node_input in node.inputs.values())}


def leaves(config: Config, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Settings without settings of their own, and components: dotted key, value, type."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        is_name = name == "name" and isinstance(config, Component)
        if isinstance(value, Component) or not (isinstance(value, Config) or is_name):
            yield prefix + name, value, field.annotation
        if isinstance(value, Config):
            yield from leaves(value, f"{prefix}{name}.")


def another(value: Any, annotation: Any) -> Any:
    """A value of the type that is not this one."""
    options = [option for option in (annotation, *get_args(annotation)) if get_origin(option) is Literal]
    if options:
        return next(choice for choice in get_args(options[0]) if choice != value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value / 2 or 0.25
    if isinstance(value, str):
        return f"{value}x"
    if isinstance(value, tuple | list):
        return [0.5, 0.5]
    return 0.5 if "float" in str(annotation) else 1


def test_every_setting_changes_the_keys_of_what_it_is_content_of_and_no_other(
    base: dict[str, Any], other: Path, tmp_path: Path
) -> None:
    config = with_settings(base)
    before = all_nodes(config, tmp_path / "w")
    wrong, seen = [], set()
    for key, value, annotation in leaves(config):
        seen.add(key)
        if key in FIXED:
            continue
        changes = CHANGES.get(key) or [f"{key}={json.dumps(another(value, annotation))}"]
        places = {"OTHER": str(other), "DATA": base["data"]["reader"]["path"]}
        for place, folder in places.items():
            changes = [change.replace(place, folder) for change in changes]
        after = all_nodes(with_settings(base, *changes), tmp_path / "w")
        changed = {kind for kind, *_ in own(before) ^ own(after)} | first_changed(before, after)
        expected = set(next((kinds for pattern, kinds in CONTENT.items() if fnmatch(key, pattern)), "").split())
        if changed != expected or (before.keys() != after.keys()) != bool(expected):
            wrong.append(f"{key}: {' '.join(sorted(changed))}, not {' '.join(sorted(expected))} ({changes})")
    assert not wrong, "\n".join(wrong)
    # No section is left out.
    of_run = [
        setting.key for group in list_settings(RunConfig) for setting in group.settings if _is_section(group.title)
    ]
    assert {
        key for key in of_run if key not in seen and not any(known.startswith(f"{key}.") for known in seen)
    } == set()


def _is_section(title: str) -> bool:
    return title == "the run" or title in RunConfig.model_fields


@pytest.mark.parametrize("change", ["arithmetic", "a checkpoint in place"])
def test_what_a_judge_computes_with_reaches_verb_round_and_trial(
    base: dict[str, Any], other: Path, tmp_path: Path, change: str
) -> None:
    """Each of the three once said by hand what verdicts depend on, and they had drifted apart."""

    def keys(*overrides: str) -> dict[str, str]:
        judged = [
            "judge.judges=[pair_classifier]",
            "refresh.judges=[pair_classifier]",
            f"judge.classifier.model.checkpoint={other}",
        ]
        recipe = recipe_of(with_settings(base, *judged, *overrides), tmp_path / "w")
        trial = recipe_of(with_settings(base, *judged, "train.num_epochs=7", *overrides), tmp_path / "w")
        models = {
            "verb": recipe.trained(),
            "trial": trial.trained(),
            "round": lay_out(recipe.context)[0].rounds[0].model,
        }
        keys = {asker: model.key for asker, model in models.items()}
        for asker, model in models.items():
            [verdicts] = [node for node in model.ancestors().values() if node.kind == "verdicts"]
            keys[f"verdicts of the {asker}"] = verdicts.key
        return keys

    before = keys()
    if change == "arithmetic":
        after = keys("encode.dtype=bfloat16")
    else:
        change_a_byte(other)
        after = keys()
    assert len(before) == 6
    assert {asker for asker in before if before[asker] == after[asker]} == set()


def test_a_verb_a_round_and_a_trial_that_make_the_same_have_the_same_key_and_place(
    base: dict[str, Any], tmp_path: Path
) -> None:
    same = ["refresh.judges=null", "variants={long: {num_epochs: 9}}"]
    recipe = recipe_of(with_settings(base, *same), tmp_path / "w")
    study = recipe_of(with_settings(base, *same, "train.num_epochs=5"), tmp_path / "w")
    trial = Recipe(study.context.of(with_settings(base, *same)))
    arm = lay_out(recipe.context)[0].rounds[0]
    keys = {
        "model": [recipe.trained(), arm.model, trial.trained()],
        "run": [recipe.search("dev"), arm.runs["dev"], trial.search("dev")],
        "a variant and a trial": [
            recipe.trained("long"),
            recipe_of(with_settings(base, *same, "train.num_epochs=9"), tmp_path / "w").trained(),
        ],
    }
    inventory = Inventory(recipe.context.facts.places)
    for what, nodes in keys.items():
        assert len({node.key for node in nodes}) == 1, what
        assert len({inventory.folder(node).root for node in nodes}) == 1, what
        assert len({id(node) for node in nodes}) == len(nodes)
