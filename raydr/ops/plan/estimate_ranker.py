"""What a ranker takes: its training, its scores for a retriever that learns from it, reranking. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydr.config.run import RunConfig
from raydr.graph.forecast import StageEstimate
from raydr.ops.plan.estimate import START_SECONDS, RunSizes, encoder_pool, threads_of_trainer
from raydr.ops.plan.rates import PairRates, RankerRates

#: Bytes of a scored pair: two ids and a number, compressed.
_PAIR_BYTES = 20


def estimate_ranker_training(
    config: RunConfig, name: str, settings: Mapping[str, Any], sizes: RunSizes, rates: RankerRates
) -> StageEstimate:
    """Steps, and dev lists of each epoch.

    Args:
        config: the run; its section ``train`` has the workers.
        name: of the stage.
        settings: of the cross-encoder's training.
        sizes: the numbers of queries.
        rates: of the ranker.
    """
    train, dev, reading = config.train, settings.get("dev"), rates.reading
    width = 1 + settings["num_hard_negatives"] + settings["num_random_negatives"]
    num_queries, epochs = sizes.num_queries[settings["split"]], settings["num_epochs"]
    steps = epochs * max(1, num_queries // settings["batch_size"]) * rates.training.step_seconds
    rate, read = reading.tokens_per_second * threads_of_trainer(config), 0.0
    if dev is not None and "dev_split" in settings:
        asked = min(dev["max_queries"], sizes.num_queries.get(settings["dev_split"], 0))
        read = epochs * asked * dev["depth"] * reading.padded_tokens / rate
    return StageEstimate(
        name=name,
        work=f"{num_queries:,} lists of {width} x {epochs} epochs",
        seconds=reading.load_seconds + 2 * START_SECONDS + steps + read,
        cpus=train.fewest_workers * train.cpus_per_worker,
        gpus=train.fewest_workers if train.use_gpu else 0,
        worker_bytes=rates.training.peak_bytes,
        # The model, and a checkpoint with both moments and the best weights.
        disk_bytes=20 * reading.num_parameters,
        note=f"{rates.training.step_seconds:.2f} s a step; steps {steps / (steps + read):.0%}, "
        f"dev {read / (steps + read):.0%}",
    )


def estimate_reading(
    config: RunConfig, name: str, num_pairs: int, rates: PairRates, capacity: Mapping[str, float]
) -> StageEstimate:
    """A forward pass of every pair, by the workers of the section ``encode``."""
    settings = config.encode
    readers, _ = encoder_pool(config, capacity, num_pairs)
    pairs_per_second = rates.tokens_per_second / rates.padded_tokens
    return StageEstimate(
        name=name,
        work=f"{num_pairs:,} pairs of {rates.mean_tokens:.0f} tokens",
        seconds=rates.load_seconds + START_SECONDS + num_pairs / (readers * pairs_per_second),
        cpus=readers * settings.cpus_per_actor,
        gpus=readers * settings.gpus_per_actor,
        worker_bytes=rates.peak_bytes,
        disk_bytes=_PAIR_BYTES * num_pairs,
        note=f"{readers} x {pairs_per_second:,.0f} pairs/s",
    )
