"""Estimates are plain arithmetic: what doubles doubles, and what is slower counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ops.plan.made_rates import MODEL, PASSAGES, QUERIES, MadeRates
from raydr.artefacts.declaration import Node
from raydr.config.run import RunConfig
from raydr.indexing.build import index_bytes
from raydr.ops.plan.estimate import Estimator
from raydr.pipeline.forecast import StageEstimate
from raydr.training.ranker_config import RankerConfig
from raydr.training.training import Training

NUM_QUERIES = {"train": 6400, "dev": 100, "test": 1000}
#: Seconds of a stage without any work: Ray's and the model's start.
START = 10.0


def config(**sections: Any) -> RunConfig:
    return RunConfig.parse({"data": {"reader": {"name": "beir", "path": "unused"}, "part_rows": 100}} | sections)


def node(run: RunConfig, kind: str, **settings: Any) -> Node:
    """A node as the recipe declares it, as far as it is read here."""

    def make(work: object) -> dict[str, Any]:
        raise AssertionError

    if kind == "model":
        train = run.train.resolved()
        settings["training"] = Training(model=run.model, train=train, train_split="train", dev_split="dev", seed=0)
    made = Node("model", "made", make, {})
    inputs: dict[str, Node] = {}
    if kind == "embeddings":
        inputs = {"model": made}
    elif kind == "index":
        inputs = {"embeddings": node(run, "embeddings"), "model": made}
    elif kind == "run" and "depth" not in settings:
        settings = {"split": "test", "top_k": 100} | settings
        inputs = {"index": node(run, "index"), "queries": node(run, "embeddings", split="test")}
    elif kind in ("run", "ranker_scores"):
        inputs = {"model": Node("cross_encoder", "ranker", make, {})}
    return Node(kind, settings.pop("label", kind), make, inputs=inputs, arguments=settings)


def estimate(
    run: RunConfig,
    kind: str,
    rates: MadeRates | None = None,
    cpus: float = 16,
    gpus: float = 0,
    num_passages: int = 100_000,
    num_queries: Mapping[str, int] = NUM_QUERIES,
    **settings: Any,
) -> StageEstimate:
    estimator = Estimator(run, num_passages, num_queries, {"CPU": cpus, "GPU": gpus}, rates or MadeRates())
    forecast = estimator(node(run, kind, **settings))
    assert forecast is not None
    return forecast


def encoding(rates: MadeRates | None = None, cpus: float = 16, gpus: float = 0, **encode: Any) -> float:
    return estimate(config(encode=encode), "embeddings", rates, cpus, gpus).seconds - START


def test_encoders_share_the_work_as_far_as_they_fit() -> None:
    assert encoding(cpus=16) == pytest.approx(100_000 / 100)
    assert encoding(min_actors=4, max_actors=4) == pytest.approx(1000 / 4)
    # Seven, and a CPU for tokenising, fit into eight CPUs.
    assert encoding(cpus=8, max_actors=100, cpus_per_tokenizer=1) == pytest.approx(1000 / 7)


def test_tokenising_counts_where_it_is_slower() -> None:
    fast = MadeRates().with_texts(passage=PASSAGES._replace(encode=1e-5))
    assert encoding(fast, cpus=2, gpus=1, gpus_per_actor=1, cpus_per_tokenizer=1) == pytest.approx(100_000 / 2000)


def test_encoders_that_are_given_less_than_a_cpu_share_the_cpus_there_are() -> None:
    assert encoding(cpus=2, max_actors=2, cpus_per_actor=0.75) == pytest.approx(100_000 * (1 / 100 + 1 / 1000) / 2)


def test_actors_that_share_the_shards_hold_several() -> None:
    """100,000 vectors of 64 dimensions in five shards."""
    shard = 20_000 * 64 * 4

    def held(cpus: float, **search: Any) -> tuple[float, int | None]:
        forecast = estimate(config(index={"factory": "Flat", "shard_rows": 20_000}, search=search), "run", cpus=cpus)
        return forecast.cpus, forecast.worker_bytes

    assert held(16) == (16, shard)
    assert held(2) == (2, 3 * shard)
    assert held(16, max_actors=1, cpus_per_actor=1) == (1, 5 * shard)


#: A third of a step is a forward pass of 64 queries and as many passages.
TEACHER = 100 * 0.5 / 3
DETECTION = TEACHER
PAIR, PASSAGE = DETECTION / 6400, DETECTION / 6400 * 10 / 11


def npc(warmup_epochs: int, repeat: str = "each_epoch", num_epochs: int = 2) -> float:
    loss = {"name": "npc", "warmup_epochs": warmup_epochs}
    detection = {"margins": "model", "repeat": repeat}
    train = {"num_epochs": num_epochs, "batch_size": 64, "loss": loss, "pair_detection": detection}
    return estimate(config(train=train), "model").seconds


def nce(num_epochs: int, **train: Any) -> float:
    return estimate(config(train={"num_epochs": num_epochs, "batch_size": 64, **train}), "model").seconds


def test_training_counts_steps_teacher_detection_and_dev() -> None:
    dev = 100 * PAIR + 1000 * PASSAGE
    seconds = nce(2, dev={"max_queries": 100, "random_passages": 1000})
    assert seconds == pytest.approx(START + 3 + 2 * (100 * 0.5 + dev))
    assert npc(warmup_epochs=0) - nce(2) == pytest.approx(2 * (TEACHER + DETECTION))


@pytest.mark.parametrize(
    ("repeat", "warmup_epochs", "num_taught", "num_detections"),
    [("each_epoch", 1, 2, 2), ("once", 1, 2, 1), ("each_epoch", 3, 0, 0), ("once", 4, 0, 0)],
)
def test_teacher_and_detection_cost_nothing_in_the_warm_up(
    repeat: str, warmup_epochs: int, num_taught: int, num_detections: int
) -> None:
    more = npc(warmup_epochs, repeat, num_epochs=3) - nce(3)
    assert more == pytest.approx(num_taught * TEACHER + num_detections * DETECTION)


def test_a_fold_learns_from_the_others() -> None:
    run = config(train={"batch_size": 64}, cross_fit={"num_folds": 4})
    whole, fold = (estimate(run, "model", label=label).seconds for label in ("train-trained", "cross-fit-train-1"))
    assert whole - fold == pytest.approx(run.train.num_epochs * 25 * 0.5)


def test_gradients_over_the_network_are_counted() -> None:
    """Two towers of BERT-base: 866 MB of float32 a step, 1.5 GB over each link of eight machines."""
    towers = MadeRates(replace(MODEL, num_parameters=216_500_000, num_learning=216_500_000))

    def planned(**sections: Any) -> StageEstimate:
        train = {"num_epochs": 2, "batch_size": 64, "num_workers": 8, **sections.pop("train", {})}
        return estimate(config(train=train, **sections), "model", towers)

    sending = 2 * 7 / 8 * 866e6 * 8 / 10e9
    slow, near = planned(), planned(plan={"workers_per_machine": 8})
    # Two thirds of a step of half a second hide a part of it.
    assert slow.seconds - near.seconds == pytest.approx(2 * 100 * (sending - 0.5 * 2 / 3))
    assert slow.note.endswith("% of it waits for the network (plan.network_gbits)")
    assert near.note == ""
    halved = planned(train={"gradients": "bfloat16"})
    assert halved.seconds - near.seconds == pytest.approx(2 * 100 * (sending / 2 - 0.5 * 2 / 3))


def test_disk_is_counted_by_what_learns() -> None:
    disk = [estimate(config(), "model", MadeRates(replace(MODEL, num_learning=num))).disk_bytes for num in (1000, 10)]
    assert disk == [4 * 5 * 1000, 4 * (1000 + 4 * 10)]


def test_an_index_with_cells_costs_its_training_and_searches_less() -> None:
    flat, cells = config(index={"factory": "Flat"}), config(index={"factory": "IVF1000,Flat", "train_rows": 50_000})
    search = [estimate(run, "run", cpus=2) for run in (flat, cells)]
    assert search[0].seconds - 3 == pytest.approx(1000 * 100_000 * 64 / 2e9)
    assert search[1].seconds - 3 == pytest.approx(1000 * (100_000 * 64 / 1000 + 1000) * 64 / 2e9)
    built = [estimate(run, "index", cpus=2).seconds for run in (flat, cells)]
    assert built[1] - built[0] == pytest.approx((50_000 * 10 / 2 + 100_000) * 1000 * 64 / 1e9)


def test_bm25_takes_the_memory_of_a_shard() -> None:
    """Shards of two million passages with 40 terms of 8 bytes each: indexing takes five times their bytes."""
    small, large = (estimate(config(), "bm25", cpus=4, num_passages=num) for num in (100_000, 21_000_000))
    assert small.seconds - 3 == pytest.approx(100_000 * (1e-4 / 4 + 2e-4))
    assert large.seconds - 3 == pytest.approx(21_000_000 * (1e-4 + 2e-4) / 4)
    assert [each.worker_bytes - 2**28 for each in (small, large)] == [5 * 320 * 100_000, 5 * 320 * 2_000_000]
    assert large.disk_bytes == 320 * 21_000_000
    assert (small.note, large.note) == ("", "11 shards")


def test_bytes_of_twenty_one_million_passages() -> None:
    """100 tokens of 128 dimensions in half precision are 538 GB, as parts and in the index."""
    several = replace(MODEL, dim=128, texts={"passage": PASSAGES._replace(vectors=100.0), "query": QUERIES})

    def stage(kind: str, factory: str) -> StageEstimate:
        run = config(model={"score": "sum_of_max"}, index={"factory": factory})
        return estimate(run, kind, MadeRates(several), num_passages=21_000_000)

    stored, ids = 21_000_000 * 100 * 128 * 2, 21_000_000 * 24
    assert stored == 537_600_000_000
    for factory in ("SQfp16", "IVF1000,PQ32"):
        assert stage("embeddings", factory).disk_bytes == pytest.approx(stored, rel=0.01)
    assert stage("index", "SQfp16").disk_bytes - ids == pytest.approx(stored)
    assert stage("index", "IVF1000,PQ32").disk_bytes - ids == pytest.approx(stored + 21_000_000 * 100 * 40)
    # A shard has so many vectors, whatever the passages.
    assert stage("index", "SQfp16").note == "SQfp16 in 1,050 shards"


def test_each_vector_of_a_query_is_looked_for() -> None:
    many = MadeRates().with_texts(passage=PASSAGES._replace(vectors=100.0), query=QUERIES._replace(vectors=10.0))
    single = estimate(config(index={"factory": "SQfp16"}), "run", cpus=2)
    several = config(model={"score": "sum_of_max"}, index={"factory": "SQfp16"})
    forecast = estimate(several, "run", many, cpus=2)
    assert forecast.seconds - 3 == pytest.approx(1000 * (single.seconds - 3))


LISTS: dict[str, Any] = {
    "num_epochs": 2,
    "batch_size": 16,
    "num_hard_negatives": 3,
    "num_random_negatives": 1,
}


def test_a_ranker_takes_its_steps_and_reads_dev_lists_once_an_epoch() -> None:
    def seconds(run: RunConfig, **settings: Any) -> float:
        training = RankerConfig.model_validate(LISTS | settings)
        dev = "dev" if settings else ""
        forecast = estimate(run, "cross_encoder", settings=training, workers=run.train, split="train", dev=dev)
        return forecast.seconds - START - 3

    # Lists of five, padded to twice the mean, read forwards and backwards.
    steps = 2 * 6400 * 5 * 2 * 3 / 150
    assert seconds(config()) == pytest.approx(steps)
    dev = {"dev": {"max_queries": 200, "depth": 20}}
    # There are a hundred dev queries.
    read = 2 * 100 * 20 / 150
    assert seconds(config(), **dev) == pytest.approx(steps + read)
    assert seconds(config(train={"num_workers": 2, "cpus_per_worker": 2}), **dev) == pytest.approx((steps + read) / 4)


def test_pairs_are_read_by_as_many_workers_as_fit() -> None:
    def seconds(**encode: Any) -> float:
        forecast = estimate(config(encode=encode), "run", cpus=4, split="test", depth=3)
        assert forecast.disk_bytes == 20 * 3000
        return forecast.seconds - START

    assert seconds() == pytest.approx(3000 / 150)
    assert seconds(max_actors=2, min_actors=2) == pytest.approx(3000 / 300)
    scores = estimate(config(negatives={"depth": 9}), "ranker_scores", cpus=4, split="train")
    assert scores.seconds - START == pytest.approx(10 * 6400 / 150)


@pytest.mark.parametrize(
    ("factory", "size"),
    [("PCA32,HNSW32", 409.6), ("OPQ8,HNSW32_PQ8", 289.6), ("HNSW32_SQ8", 345.6), ("HNSW32,RFlat", 793.6)],
)
def test_graphs_are_sized_whatever_stands_before_and_behind_them(factory: str, size: float) -> None:
    """Vectors of 64 dimensions, codes, and 1.1 times 64 neighbours of 4 bytes."""
    assert index_bytes(factory, 64) == (pytest.approx(size), 0)
