"""Train the dual encoder on Ray Train.

    ray job submit --working-dir . -- python jobs/train.py --config jobs/run.yaml

Needs train.num_workers workers with train.cpus_per_worker CPUs each, and a GPU each with train.use_gpu. A job that was
stopped or lost a node resumes from its last checkpoint when it is submitted again.
"""

from argparse import Namespace

from script import main, options

import raydr
from raydr.config.run import RunConfig


def train(config: RunConfig, arguments: Namespace) -> None:
    raydr.train(config, name=arguments.name, again=arguments.again)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--name", default="trained", help="name of the model; a variant's name trains the variant")
    main("train", train, parser)
