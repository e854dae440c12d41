"""Estimates are plain arithmetic: what doubles doubles, and what is slower counts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from ops.plan.made_rates import ENCODING, RATES, READING
from raydr.config.run import RunConfig
from raydr.graph.forecast import StageEstimate
from raydr.ops.plan.estimate import (
    RunSizes,
    estimate_encoding,
    estimate_index,
    estimate_search,
    estimate_training,
    network_warning,
)
from raydr.ops.plan.estimate_ranker import estimate_ranker_training, estimate_reading
from raydr.ops.plan.rates import EncodingRates, RankerRates, TextSample, TrainingRates

SIZES = RunSizes(100_000, {"train": 6400, "dev": 100, "test": 1000})
#: Seconds of a stage without any work: Ray's and the model's start.
START = 10.0


def config(**sections: Any) -> RunConfig:
    return RunConfig.parse({"data": {"reader": {"name": "beir", "path": "unused"}, "part_rows": 100}} | sections)


def encoding(rates: EncodingRates = ENCODING, cpus: float = 16, gpus: float = 0, **encode: Any) -> float:
    capacity = {"CPU": cpus, "GPU": gpus}
    run = config(encode=encode)
    return estimate_encoding(run, "encode", 100_000, rates, capacity, queries=False).seconds - START


def test_encoders_share_the_work_as_far_as_they_fit():
    assert encoding() == pytest.approx(100_000 / 100)
    assert encoding(min_actors=4, max_actors=4) == pytest.approx(1000 / 4)
    # Seven, and a CPU for tokenising, fit into eight CPUs.
    assert encoding(cpus=8, max_actors=100, cpus_per_tokenizer=1) == pytest.approx(1000 / 7)


def test_tokenising_counts_where_it_is_slower():
    fast = replace(ENCODING, tokens_per_second=12_500_000)
    assert encoding(fast, cpus=2, gpus=1, gpus_per_actor=1, cpus_per_tokenizer=1) == pytest.approx(100_000 / 1000)


def test_encoders_that_are_given_less_than_a_cpu_share_the_cpus_there_are():
    assert encoding(cpus=2, max_actors=2, cpus_per_actor=0.75) == pytest.approx(100_000 * (1 / 100 + 1 / 1000) / 2)


def test_a_cluster_that_grows_is_as_large_as_the_config_asks():
    capacity = {"CPU": math.inf, "GPU": math.inf}
    run = config(encode={"max_actors": 8, "gpus_per_actor": 1})
    found = estimate_encoding(run, "encode", 100_000, ENCODING, capacity, queries=False)
    assert (found.gpus, found.seconds - START) == (8, pytest.approx(1000 / 8))
    assert estimate_search(run, "search", SIZES, "test", ENCODING, RATES.search, math.inf).cpus == 1
    index = estimate_index(
        config(index={"factory": "Flat", "shard_rows": 20_000}), "index", SIZES, ENCODING, RATES.search, math.inf
    )
    assert index.cpus == 5


def test_actors_that_share_the_shards_hold_several():
    """100,000 vectors of 64 dimensions in five shards."""
    index = {"factory": "Flat", "shard_rows": 20_000}
    shard = 20_000 * 64 * 4

    def held(cpus: float, **search: Any) -> tuple[float, int | None]:
        found = estimate_search(
            config(index=index, search=search), "search", SIZES, "test", ENCODING, RATES.search, cpus
        )
        return found.cpus, found.worker_bytes

    assert held(16) == (16, shard)
    assert held(2) == (2, 3 * shard)
    assert held(16, max_actors=1, cpus_per_actor=1) == (1, 5 * shard)
    assert held(math.inf, max_actors=2) == (2, 3 * shard)


def test_training_counts_steps_teacher_detection_and_dev():
    plain = config(train={"num_epochs": 2, "batch_size": 64, "dev": {"max_queries": 100, "random_passages": 1000}})
    dev = (100 * 137.5 + 1000 * 125) / 12_500
    seconds = estimate_training(plain, "train", SIZES, RATES).seconds
    start = seconds - 2 * (100 * 0.5 + dev)
    assert 10 < start < 20
    teacher, detection = 100 * 64 * 137.5 / 12_500, 6400 * 137.5 / 12_500
    assert seconds_of_npc(plain, warmup_epochs=0) - seconds == pytest.approx(2 * (teacher + detection))


@pytest.mark.parametrize(
    ("repeat", "warmup_epochs", "num_taught", "num_detections"),
    [("each_epoch", 1, 2, 2), ("once", 1, 2, 1), ("each_epoch", 3, 0, 0), ("once", 4, 0, 0)],
)
def test_teacher_and_detection_cost_nothing_in_the_warm_up(
    repeat: str, warmup_epochs: int, num_taught: int, num_detections: int
):
    plain = config(train={"num_epochs": 3, "batch_size": 64})
    more = seconds_of_npc(plain, warmup_epochs, repeat) - estimate_training(plain, "train", SIZES, RATES).seconds
    teacher, detection = 100 * 64 * 137.5 / 12_500, 6400 * 137.5 / 12_500
    assert more == pytest.approx(num_taught * teacher + num_detections * detection)


def test_disk_and_network_are_counted_by_what_learns():
    run = config(train={"num_workers": 2, "batch_size": 64})
    rates = [replace(RATES, encoding=replace(ENCODING, num_learning=number)) for number in (1000, 10)]
    whole, part = (estimate_training(run, "train", SIZES, one) for one in rates)
    assert (whole.disk_bytes, part.disk_bytes) == (4 * 5 * 1000, 4 * (1000 + 4 * 10))
    assert part.network_bytes == whole.network_bytes / 100 > 0


def test_gradients_over_the_network_are_counted_and_warned_of():
    """Two towers of BERT-base: 866 MB of float32 a step, 1.5 GB over each link of eight machines."""
    towers = replace(RATES, encoding=replace(ENCODING, num_parameters=216_500_000, num_learning=216_500_000))

    def planned(**sections: Any) -> tuple[StageEstimate, str]:
        train = {"num_epochs": 2, "batch_size": 64, "num_workers": 8, **sections.pop("train", {})}
        run = config(train=train, **sections)
        return (
            estimate_training(run, "train", SIZES, towers),
            network_warning(run, 216_500_000, towers.training.step_seconds),
        )

    slow, said = planned()
    assert slow.network_bytes == pytest.approx(2 * 100 * 2 * 7 / 8 * 866e6)
    sending = 2 * 7 / 8 * 866e6 * 8 / 10e9
    near, silent = planned(plan={"workers_per_machine": 8})
    assert (near.network_bytes, silent) == (0, "")
    # Two thirds of a step of half a second hide a part of it.
    assert slow.seconds - near.seconds == pytest.approx(2 * 100 * (sending - 0.5 * 2 / 3))
    assert "1,516 MB over a network of 10 Gbit/s, 1.21 s" in said
    assert "train.gradients: bfloat16 halves that" in said
    halved, said = planned(train={"gradients": "bfloat16"})
    assert halved.network_bytes == slow.network_bytes / 2
    assert "halves" not in said
    assert planned(plan={"network_gbits": 100})[1] == ""


def seconds_of_npc(plain: RunConfig, warmup_epochs: int, repeat: str = "each_epoch") -> float:
    changed = {"loss": {"name": "npc", "warmup_epochs": warmup_epochs}, "pair_detection": {"repeat": repeat}}
    train = plain.train.model_validate(plain.train.model_dump() | changed)
    return estimate_training(plain.model_copy(update={"train": train}), "train", SIZES, RATES).seconds


def test_an_index_with_cells_costs_its_training_and_searches_less():
    flat, cells = config(index={"factory": "Flat"}), config(index={"factory": "IVF1000,Flat", "train_rows": 50_000})
    search = [estimate_search(run, "search", SIZES, "test", ENCODING, RATES.search, 2) for run in (flat, cells)]
    assert search[0].seconds - 3 == pytest.approx(1000 * 100_000 * 64 / 2e9)
    assert search[1].seconds - 3 == pytest.approx(1000 * (100_000 * 64 / 1000 + 1000) * 64 / 2e9)
    built = [estimate_index(run, "index", SIZES, ENCODING, RATES.search, 2).seconds for run in (flat, cells)]
    assert built[1] - built[0] == pytest.approx((50_000 * 10 / 2 + 100_000) * 1000 * 64 / 1e9)


def test_bytes_of_twenty_one_million_passages():
    """100 tokens of 128 dimensions in half precision are 538 GB, as parts and in the index."""
    sizes = RunSizes(21_000_000, {"test": 1000})
    rates = replace(ENCODING, dim=128, passages=TextSample(100, 125, 100.0), queries=TextSample(10, 12.5, 10.0))

    def bytes_of(**index: Any) -> tuple[int, int]:
        run = config(model={"score": "sum_of_max"}, index=index)
        capacity = {"CPU": 16.0, "GPU": 0.0}
        encoded = estimate_encoding(run, "encode", sizes.num_passages, rates, capacity, queries=False)
        return encoded.disk_bytes, estimate_index(run, "index", sizes, rates, RATES.search, 16).disk_bytes

    stored = 21_000_000 * 100 * 128 * 2
    assert stored == 537_600_000_000
    exact, cells = bytes_of(factory="SQfp16"), bytes_of(factory="IVF1000,PQ32")
    assert exact[0] == cells[0] == pytest.approx(stored, rel=0.01)
    ids = 21_000_000 * 24
    assert exact[1] - ids == pytest.approx(stored)
    assert cells[1] - ids == pytest.approx(stored + 21_000_000 * 100 * 40)
    # One shard has so many vectors, whatever the passages.
    found = estimate_index(
        config(model={"score": "sum_of_max"}, index={"factory": "SQfp16"}), "index", sizes, rates, RATES.search, 16
    )
    assert found.work == "21,000,000 passages of 2,100,000,000 vectors in 1050 shards"


def test_each_vector_of_a_query_is_looked_for():
    one = config(index={"factory": "SQfp16"})
    several = config(model={"score": "sum_of_max"}, index={"factory": "SQfp16"})
    rates = replace(ENCODING, passages=TextSample(100, 125, 100.0), queries=TextSample(10, 12.5, 10.0))
    seconds = [
        estimate_search(run, "search", SIZES, "test", how, RATES.search, 2).seconds - 3
        for run, how in ((one, ENCODING), (several, rates))
    ]
    assert seconds[1] == pytest.approx(1000 * seconds[0])


RANKER = RankerRates(READING, TrainingRates(0.25, 2 * 10**9))
LISTS = {"split": "train", "num_epochs": 2, "batch_size": 16, "num_hard_negatives": 3, "num_random_negatives": 1}


def test_a_ranker_takes_its_steps_and_reads_dev_lists_once_an_epoch():
    def seconds(run: RunConfig, **settings: Any) -> float:
        found = estimate_ranker_training(run, "ranker", LISTS | {"dev": None} | settings, SIZES, RANKER)
        assert found.worker_bytes == 2 * 10**9
        return found.seconds - START - 3

    steps = 2 * 400 * 0.25
    assert seconds(config()) == pytest.approx(steps)
    dev = {"dev": {"max_queries": 200, "depth": 20}, "dev_split": "dev"}
    # There are a hundred dev queries.
    read = 2 * 100 * 20 * 100 / 15_000
    assert seconds(config(), **dev) == pytest.approx(steps + read)
    # A step was tried with the share of one of these workers.
    assert seconds(config(train={"num_workers": 2, "cpus_per_worker": 2}), **dev) == pytest.approx(steps + read / 4)


def test_pairs_are_read_by_as_many_workers_as_fit():
    def seconds(num_pairs: int, **encode: Any) -> float:
        found = estimate_reading(config(encode=encode), "rerank", num_pairs, READING, {"CPU": 4, "GPU": 0})
        assert found.disk_bytes == 20 * num_pairs
        return found.seconds - START

    assert seconds(3000) == pytest.approx(3000 / 150)
    assert seconds(3000, max_actors=2) == pytest.approx(3000 / 300)
