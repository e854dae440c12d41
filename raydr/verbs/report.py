"""``raydr report``: all that a run has made, on one page."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.ops.report import write_report
from raydr.stages.places import Places
from raydr.verbs.command import takes_config


@takes_config
def report(config: RunConfig) -> str:
    """Put training curves, detections, evaluations, audits and verdicts of the working folder on one HTML page.

    Returns:
        The page's path.
    """
    return write_report(config, Places.of(config.workdir))
