"""Encode the corpus with a trained model on Ray Data: the longest stage of a large run.

    ray job submit --working-dir . -- python jobs/encode.py --config jobs/run.yaml

The autoscaler starts up to encode.max_actors encoders with encode.gpus_per_actor GPUs each. Each part is encoded once:
a job that was stopped, or lost spot nodes, continues with the missing parts.
"""

from argparse import Namespace

from script import main, options

import raydr
from raydr.config.run import RunConfig


def encode(config: RunConfig, arguments: Namespace) -> None:
    raydr.encode(config, model=arguments.model, again=arguments.again)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--model", default="trained", help="name of the model in the working folder")
    main("encode", encode, parser)
