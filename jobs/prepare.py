"""Make what training reads: corpus and data set, and noise on purpose and mined candidates if the config has them.

    ray job submit --working-dir . -- python jobs/prepare.py --config jobs/run.yaml

CPU work: reading takes one CPU a file, mining one CPU a part. Goes on from the finished sources if run again.
"""

from argparse import Namespace

from script import main, options

import raydr
from raydr.config.run import RunConfig


def prepare(config: RunConfig, arguments: Namespace) -> None:
    raydr.prepare(config, again=arguments.again)
    # Candidates of a model need a trained one: the training that draws from them makes it first.
    own = config.negatives is not None and config.negatives.miner in ("bm25", "source")
    if own and config.some_training_draws_candidates:
        raydr.mine(config, again=arguments.again)


if __name__ == "__main__":
    main("prepare", prepare, options(__doc__))
