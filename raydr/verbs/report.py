"""``raydr report``: all that a run has made, on one page."""

from __future__ import annotations

from raydr.verbs.options import ConfigFile, Overrides, load


def run(config: ConfigFile, set_: Overrides = None) -> None:
    """Put training curves, detections, evaluations, audits and verdicts of the working folder on one HTML page."""
    import raydr

    raydr.report(load(config, set_))
