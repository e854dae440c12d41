"""Search the test splits in a model's index and evaluate, beside the other systems that have runs.

    ray job submit --working-dir . -- python jobs/evaluate.py --config jobs/evaluate.yaml

Encodes the queries, searches all shards of the index, measures with confidence intervals. If the config is one of
jobs/recipes, the published figure stands beside the measured one.
"""

from argparse import Namespace

from published import compare_with_published
from script import main, options

from raydr.config.run import RunConfig
from raydr.graph.job import open_job
from raydr.stages.evaluate import load_result


def evaluate(config: RunConfig, arguments: Namespace) -> None:
    with open_job(config, arguments.overwrite) as job:
        for split in config.data.test_splits:
            job.search(split, arguments.model)
            others = [system for system in job.runs(split) if system != arguments.model]
            evaluation = load_result(job.evaluate(split, [arguments.model, *others]))
            compare_with_published(arguments.config, evaluation.summaries, arguments.model)


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--model", default="trained", help="name of the model in the working folder")
    main("evaluate", evaluate, parser)
