"""Refresh rounds: train, encode, index, search, mine, judge, train again, with an evaluation after each round.

    ray job submit --working-dir . -- python jobs/refresh.py --config jobs/refresh.yaml

Prepares what is not prepared. Finished steps are found again by what they were made of, so that a job that was stopped
goes on, and a changed setting repeats only what depends on it.
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
