"""Is `raydr plan` right about a ranker? Its trial, its training and a reranking in this process, by processor time.

    OMP_NUM_THREADS=1 python -m benchmarks.plan_ranker configs/experiments/linking-rerank.yaml

For a CPU that others use too: what is compared is processor time without start-up, of one thread and one worker. All
that the ranker stands on has to be there: `raydr evaluate CONFIG --system trained --system trained+ranker`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest.mock import patch

from benchmarks.timing import write_report
from raydr import RunConfig, rerank, train
from raydr.config.run import RANKER
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.places import TRAINED, Places
from raydr.models.precision import resolve_dtype
from raydr.ops.plan.estimate import START_SECONDS, RunSizes
from raydr.ops.plan.estimate_ranker import estimate_ranker_training, estimate_reading
from raydr.ops.plan.probe import probe_ranker, probe_ranker_training
from raydr.ops.plan.rates import RankerRates

#: All in this process, whose time is taken.
_HERE = ["tracking.enabled=false", "ray.in_process_rows=100000000"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file of a run whose ranker and reranked run are there")
    parser.add_argument("--set", action="append", default=[], help="as of raydr")
    parser.add_argument("--json", default="", help="write the figures here")
    arguments = parser.parse_args()
    config = RunConfig.load(arguments.config, [*arguments.set, *_HERE])
    places, [split, *_] = Places.of(config.workdir), config.data.test_splits
    corpus, dataset = Corpus(places.open("corpus", "corpus")), places.open("dataset", "dataset")
    data = Dataset(dataset)
    with patch("time.perf_counter", time.process_time):
        reading = probe_ranker(config, corpus, data, resolve_dtype("auto", "cpu")[0], "cpu")
        training = probe_ranker_training(config, corpus, data, config.ranker.batch_size)
    sizes = RunSizes(len(corpus), {one: dataset.rows(f"queries/{one}") for one in data.splits})
    settings = config.ranker.model_dump(mode="json")
    settings |= {"split": config.data.train_split, "dev_split": config.data.dev_split}
    rates, num_pairs = RankerRates(reading, training), sizes.num_queries[split] * config.rerank.depth
    capacity = {"CPU": 1.0, "GPU": 0.0}
    planned = {
        RANKER: estimate_ranker_training(config, RANKER, settings, sizes, rates).seconds - 2 * START_SECONDS,
        "rerank": estimate_reading(config, "rerank", num_pairs, reading, capacity).seconds - START_SECONDS,
    }
    took = {
        RANKER: _processor_seconds(lambda: train(config, name=RANKER, again=True)),
        "rerank": _processor_seconds(lambda: rerank(config, system=TRAINED, again=True)),
    }
    for name, seconds in planned.items():
        print(f"{name}: planned {seconds:.1f} s, took {took[name]:.1f} s, ratio {took[name] / seconds:.2f}")
    write_report(arguments.json, "plan_ranker", vars(arguments), {"planned": planned, "took": took})


def _processor_seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
