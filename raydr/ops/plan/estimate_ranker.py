"""What a ranker takes: its training, its scores for a retriever that learns from it, reranking. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raydr.config.run import RunConfig
from raydr.graph.forecast import StageEstimate
from raydr.ops.plan.estimate import START_SECONDS, RunSizes, encoder_pool, threads_of_trainer
from raydr.ops.plan.rates import RankerRates

#: Bytes of a scored pair: two ids and a number, compressed.
_PAIR_BYTES = 20


def estimate_ranker_training(
    config: RunConfig, name: str, settings: Mapping[str, Any], sizes: RunSizes, rates: RankerRates
) -> StageEstimate:
    """Three forward passes (one, and the backward pass that costs two) of every list, and dev lists of each epoch.

    Args:
        config: the run; its section ``train`` has the workers.
        name: of the stage.
        settings: of the cross-encoder's training.
        sizes: the numbers of queries.
        rates: of the ranker.
    """
    train, dev = config.train, settings.get("dev")
    width = 1 + settings["num_hard_negatives"] + settings["num_random_negatives"]
    num_queries, epochs = sizes.num_queries[settings["split"]], settings["num_epochs"]
    rate = rates.tokens_per_second * threads_of_trainer(config)
    # A batch is padded to its longest pair.
    steps = 3 * epochs * num_queries * width * rates.longest_tokens / rate
    read = 0.0
    if dev is not None and "dev_split" in settings:
        asked = min(dev["max_queries"], sizes.num_queries.get(settings["dev_split"], 0))
        read = epochs * asked * dev["depth"] * rates.padded_tokens / rate
    return StageEstimate(
        name=name,
        work=f"{num_queries:,} lists of {width} x {epochs} epochs",
        seconds=rates.load_seconds + 2 * START_SECONDS + steps + read,
        cpus=train.fewest_workers * train.cpus_per_worker,
        gpus=train.fewest_workers if train.use_gpu else 0,
        # Of weights, gradients and moments; activations are not reckoned with.
        worker_bytes=None if rates.peak_bytes is None else rates.peak_bytes + 12 * rates.num_parameters,
        # The model, and a checkpoint with both moments and the best weights.
        disk_bytes=20 * rates.num_parameters,
        note=f"lists {steps / (steps + read):.0%}, dev {read / (steps + read):.0%}",
    )


def estimate_reading(
    config: RunConfig, name: str, num_pairs: int, rates: RankerRates, capacity: Mapping[str, float]
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
