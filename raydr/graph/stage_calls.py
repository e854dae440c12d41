"""The stages as steps call them: last come the folder of the artefact, and those of its inputs by role."""

from __future__ import annotations

from typing import Any

from raydr.config.run import RunConfig
from raydr.data.growing_embeddings import GrowingEmbeddings
from raydr.noise.judges.base import Judge
from raydr.runtime.tracking import TrackerHandle
from raydr.store.artifact import MANIFEST, Artifact
from raydr.store.folder import Folder


def training_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that a trained model depends on."""
    from raydr.stages.train import training_key

    return training_key(config)


def bm25(config: RunConfig, corpus: Folder, output: Folder, inputs: dict[str, Folder]) -> Artifact:
    from raydr.stages.bm25 import bm25 as build

    return build(config, corpus, output)


def search_bm25(
    config: RunConfig, split: str, dataset: Folder, corpus: Folder, output: Folder, inputs: dict[str, Folder]
) -> Artifact:
    from raydr.stages.bm25 import search_bm25 as search

    return search(config, split, dataset, corpus, inputs["bm25"], output)


def mine(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    miner: str,
    number: int,
    output: Folder,
    inputs: dict[str, Folder],
) -> Artifact:
    from raydr.stages.mine import mine as keep

    return keep(config, split, dataset, corpus, inputs.get("run"), output, miner, number)


def count_negatives(
    config: RunConfig, split: str, dataset: Folder, corpus: Folder, output: Folder, inputs: dict[str, Folder]
) -> Artifact:
    from raydr.stages.negatives_statistics import count_negatives as count

    return count(config, split, dataset, corpus, inputs["negatives"], output)


def judge(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    rule: Judge,
    output: Folder,
    inputs: dict[str, Folder],
) -> Artifact:
    from raydr.stages.judge import judge as give_verdicts

    return give_verdicts(config, split, dataset, corpus, rule, output, inputs.get("negatives"), inputs.get("model"))


def train_classifier(
    config: RunConfig, dataset: Folder, corpus: Folder, output: Folder, inputs: dict[str, Folder]
) -> Artifact:
    from raydr.stages.train_classifier import train_classifier as fit

    return fit(config, dataset, corpus, inputs.get("negatives"), output)


def train_sieve(
    config: RunConfig, dataset: Folder, corpus: Folder, output: Folder, inputs: dict[str, Folder]
) -> Artifact:
    from raydr.stages.train_sieve import train_sieve as fit

    return fit(config, dataset, corpus, inputs["model"], inputs["negatives"], output)


def apply_verdicts(config: RunConfig, split: str, output: Folder, inputs: dict[str, Folder]) -> Artifact:
    from raydr.stages.apply_verdicts import apply_verdicts as put_together

    verdicts = [folder for role, folder in inputs.items() if role != "negatives"]
    return put_together(config, split, inputs["negatives"], verdicts, output)


def filter_pairs(config: RunConfig, split: str, dataset: Folder, output: Folder, inputs: dict[str, Folder]) -> Artifact:
    from raydr.stages.apply_verdicts import filter_pairs as keep

    return keep(config, split, dataset, list(inputs.values()), output)


def untrained(config: RunConfig, output: Folder, inputs: dict[str, Folder]) -> Artifact:
    from raydr.stages.train import save_untrained

    return save_untrained(config, output)


def train(
    config: RunConfig,
    dataset: Folder,
    corpus: Folder,
    tracker: TrackerHandle | None,
    with_optimizer: bool,
    keep_optimizer: bool,
    output: Folder,
    inputs: dict[str, Folder],
) -> Artifact:
    from raydr.stages.train import Start
    from raydr.stages.train import train as fit

    start = Start(inputs["start"], with_optimizer) if "start" in inputs else None
    return fit(
        config,
        inputs.get("pairs", dataset),
        corpus,
        output,
        inputs.get("negatives"),
        tracker,
        start=start,
        keep_optimizer=keep_optimizer,
    )


def encode_passages(
    config: RunConfig, corpus: Folder, growing: GrowingEmbeddings, output: Folder, inputs: dict[str, Folder]
) -> Artifact:
    from raydr.stages.encode import encode_passages as encode

    return encode(config, inputs["model"], corpus, output, growing=growing)


def encode_queries(
    config: RunConfig, split: str, dataset: Folder, output: Folder, inputs: dict[str, Folder]
) -> Artifact:
    from raydr.stages.encode import encode_queries as encode

    return encode(config, inputs["model"], dataset, split, output)


def index(config: RunConfig, growing: GrowingEmbeddings, output: Folder, inputs: dict[str, Folder]) -> Artifact:
    from raydr.stages.index import build_index

    passages = inputs["passages"]
    return build_index(config, passages, output, growing=None if passages.exists(MANIFEST) else growing)


def search(config: RunConfig, system: str, output: Folder, inputs: dict[str, Folder]) -> Artifact:
    from raydr.stages.search import search as find

    return find(config, inputs["index"], inputs["queries"], output, system=system)


def evaluate(
    config: RunConfig,
    split: str,
    dataset: Folder,
    corpus: Folder,
    tables: bool,
    output: Folder,
    inputs: dict[str, Folder],
) -> Artifact:
    from raydr.stages.evaluate import evaluate as measure

    return measure(config, split, dataset, corpus, inputs, output, tables=tables)
