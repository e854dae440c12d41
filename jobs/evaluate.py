"""Search the test splits in a model's index, and evaluate the model with all other systems that have runs.

    ray job submit --working-dir . -- python jobs/evaluate.py --config jobs/run.yaml

Encodes the queries, searches all shards of the index, and computes measures with confidence intervals. For a config of
jobs/recipes, it also prints the published figures.
"""

from argparse import Namespace

from published import compare_with_published
from script import main, options

import raydr
from raydr.artefacts.evaluation import load_result
from raydr.config.run import RunConfig


def evaluate(config: RunConfig, arguments: Namespace) -> None:
    for split in config.data.test_splits:
        [evaluation] = raydr.evaluate(config, arguments.system or None, split, again=arguments.again)
        compare_with_published(arguments.config, load_result(evaluation).summaries, arguments.model)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--model", default="trained", help="model to compare with published figures")
    parser.add_argument(
        "--system", action="append", default=[], help="system to evaluate, repeatable; by default all of the config"
    )
    main("evaluate", evaluate, parser)
