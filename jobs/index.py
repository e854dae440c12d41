"""Build the FAISS index over a model's passage vectors.

    ray job submit --working-dir . -- python jobs/index.py --config jobs/run.yaml

Uses CPUs: a task for each shard of index.shard_rows passages, with index.cpus_per_task CPUs each.
"""

from argparse import Namespace

from script import main, options

import raydr
from raydr.config.run import RunConfig


def index(config: RunConfig, arguments: Namespace) -> None:
    raydr.index(config, model=arguments.model, again=arguments.again)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--model", default="trained", help="name of the model in the working folder")
    main("index", index, parser)
