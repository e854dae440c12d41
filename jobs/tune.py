"""Search over settings with Ray Tune; the unchanged config is the first trial.

    ray job submit --working-dir . -- python jobs/tune.py --config jobs/tune.yaml --space tune_spaces/npc.yaml

Finished trials are kept: a stopped job resumes with the others. The best settings are written as a config, trained
again with several seeds, and evaluated once on test.
"""

from argparse import Namespace

from script import main, options

import raydr
from raydr.config.run import RunConfig
from raydr.ops.doctor.machine import Finding
from raydr.tuning.plan import open_plan


def tune(config: RunConfig, arguments: Namespace) -> None:
    raydr.tune(
        config,
        arguments.space,
        name=arguments.name,
        space_overrides=arguments.set_space,
        again=arguments.again,
    )


def check_space(config: RunConfig, arguments: Namespace) -> list[Finding]:
    """Check the space in the dry run."""
    open_plan(config, arguments.space, arguments.name, arguments.set_space)
    return [Finding("space", "ok", arguments.space)]


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("--space", required=True, metavar="FILE", help="search space, such as a file of tune_spaces")
    parser.add_argument("--name", default="", help="name of the search in the working folder; by default the space's")
    parser.add_argument(
        "--set-space",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting of the space; repeatable",
    )
    main("tune", tune, parser, check_space)
