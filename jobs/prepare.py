"""Make what training reads: corpus and data set, and noise on purpose and mined candidates if the config has them.

    ray job submit --working-dir . -- python jobs/prepare.py --config jobs/prepare.yaml

CPU work: reading takes one CPU a file, mining one CPU a part. Goes on from the finished sources if run again.
"""

from argparse import Namespace

from script import main, options

from raydr.config.run import RunConfig
from raydr.graph.job import open_job


def prepare(config: RunConfig, arguments: Namespace) -> None:
    with open_job(config, arguments.overwrite) as job:
        job.prepare()
        if config.inject_noise is not None:
            job.inject_noise()
        # A run's own candidates need a trained model: `raydr refresh` mines those.
        if config.negatives is not None and config.negatives.miner != "run" and config.some_training_draws_candidates:
            job.mine(config.data.train_split)


if __name__ == "__main__":
    main("prepare", prepare, options(__doc__))
