"""Dev retrieval beside training against between epochs: seconds of the whole training stage, in turns.

    python -m benchmarks.beside configs/experiments/noisy-code.yaml --epochs 3 --repeats 3

The models have to be the same; that is checked. Training has one worker, so that a CPU is left for the actor.
"""

from __future__ import annotations

import argparse
import statistics

from benchmarks.timing import write_report
from raydr import RunConfig
from raydr.graph.job import open_job
from raydr.graph.stage_times import time_of

MODES = {"between": False, "beside": True}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="YAML file of a run")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--dev-queries", type=int, default=500)
    parser.add_argument("--dev-passages", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workdir", default="work/bench-beside")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    config = RunConfig.load(
        arguments.config,
        [
            *arguments.overrides,
            "tracking.enabled=false",
            f"workdir={arguments.workdir}",
            f"train.num_epochs={arguments.epochs}",
            "train.num_workers=1",
            "train.share_warmup=null",
            f"train.dev={{max_queries: {arguments.dev_queries}, random_passages: {arguments.dev_passages}}}",
        ],
    )
    dev = config.train.dev.model_dump()
    config = config.model_copy(
        update={"variants": {mode: {"dev": dev | {"beside": beside}} for mode, beside in MODES.items()}}
    )
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    with open_job(config) as job:
        job.prepare()
        if config.inject_noise is not None:
            job.inject_noise()
        if config.negatives is not None:
            job.mine(config.data.train_split)
    weights = {}
    with open_job(config, overwrite=True) as job:
        for _ in range(arguments.repeats):
            for mode in MODES:
                weights[mode] = job.train(mode).info["weights"]
                time = time_of(job.workspace.root, f"train-{mode}")
                assert time is not None
                seconds[mode].append(time.seconds)
                print(f"{mode}: {time.seconds:.1f} s")
    assert weights["between"] == weights["beside"], "the models differ"
    medians = {mode: statistics.median(found) for mode, found in seconds.items()}
    print(
        f"medians of {arguments.repeats}, {arguments.epochs} epochs: "
        + ", ".join(f"{mode} {median:.1f} s" for mode, median in medians.items())
        + f"; beside takes {medians['beside'] / medians['between']:.2f} of the time"
    )
    write_report(arguments.json, "beside", vars(arguments), {"seconds": seconds, "medians": medians})


if __name__ == "__main__":
    main()
