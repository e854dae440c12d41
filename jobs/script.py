"""Options, dry run and exit statuses of the job scripts.

Exit status: 0 done, 1 failed (or inputs are missing in a dry run), 2 wrong usage or settings, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable
from typing import NoReturn

from raydr.config.run import RunConfig
from raydr.console import say
from raydr.ops.doctor.machine import Finding
from raydr.ops.doctor.services import check_inputs
from raydr.ops.submit.request import check_required_variables
from raydr.verbs.exit_status import exit_status


def options(description: str | None) -> ArgumentParser:
    """Return a parser with the options of all job scripts; a script may add its own."""
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file that describes the run")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one setting; repeatable"
    )
    parser.add_argument("--again", action="store_true", help="make the targets again, or move their names")
    parser.add_argument(
        "--dry-run", action="store_true", help="check the settings and the inputs of the job, and run nothing"
    )
    return parser


def main(
    verb: str,
    work: Callable[[RunConfig, Namespace], object],
    parser: ArgumentParser,
    also_needs: Callable[[RunConfig, Namespace], list[Finding]] | None = None,
) -> NoReturn:
    """Run a job script to its exit status.

    Args:
        verb: name of the job in messages.
        work: runs the job.
        parser: from :func:`options`.
        also_needs: returns further inputs for the dry run.
    """
    arguments = parser.parse_args()
    with exit_status("job"):
        check_required_variables(os.environ)
        config = RunConfig.load(arguments.config, arguments.set)
        if arguments.dry_run:
            needs = [*check_inputs(config), *(also_needs(config, arguments) if also_needs else [])]
            sys.exit(_show(arguments.config, verb, needs))
        work(config, arguments)
    sys.exit(0)


def _show(config: str, verb: str, needs: list[Finding]) -> int:
    say(f"{config}: the settings are valid. {verb} reads:")
    for need in needs:
        say(f"  {need.state:<6} {need.check}: {need.observation}")
    wrong = sum(need.state == "broken" for need in needs)
    if wrong:
        say(f"{wrong} of {len(needs)} inputs are missing or wrong; jobs/README.md says where to get data")
        return 1
    say("nothing is missing: the job can run without --dry-run")
    return 0
