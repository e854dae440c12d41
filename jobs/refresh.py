"""Refresh rounds: train, encode, index, search, mine, judge, train again, with an evaluation after each round.

    ray job submit --working-dir . -- python jobs/refresh.py --config jobs/refresh.yaml

Prepares the data first if necessary. Finished artefacts are identified by their settings and inputs: a stopped job
resumes, and a changed setting repeats only the artefacts that depend on it.
"""

from argparse import Namespace

from published import compare_with_published
from script import main, options

import raydr
from raydr.config.run import RunConfig


def refresh(config: RunConfig, arguments: Namespace) -> None:
    outcome = raydr.refresh(config, again=arguments.again)
    assert outcome is not None
    for arm, rounds in outcome.rounds.items():
        for split in config.data.test_splits:
            measured = rounds[-1].measures.get(split, [])
            if measured:
                compare_with_published(arguments.config, measured, measured[0].system, arm)


if __name__ == "__main__":
    main("refresh", refresh, options(__doc__))
