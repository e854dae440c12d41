"""Make the inputs of training: corpus, data set and, if configured, injected noise and mined candidates.

    ray job submit --working-dir . -- python jobs/prepare.py --config jobs/run.yaml

Uses CPUs: one for each file that is read, one for each part that is mined. A repeated job resumes after the finished
files.
"""

from argparse import Namespace

from script import main, options

import raydr
from raydr.config.run import RunConfig


def prepare(config: RunConfig, arguments: Namespace) -> None:
    raydr.prepare(config, again=arguments.again)
    # If a model mines the candidates, the training that draws from them first makes that model.
    own = config.negatives is not None and config.negatives.miner in ("bm25", "source")
    if own and config.some_training_draws_candidates:
        raydr.mine(config, again=arguments.again)


if __name__ == "__main__":
    main("prepare", prepare, options(__doc__))
