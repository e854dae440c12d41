"""``raydr benchmark``: systems on a public data set, and what others have reported of them."""

from __future__ import annotations

import typer

from raydr.config.run import RunConfig
from raydr.evaluation.benchmark import Checked, check_known
from raydr.graph.session import open_session
from raydr.runtime.console import say, show_table
from raydr.stages.evaluate import load_result
from raydr.verbs.command import Again, DryRun, takes_config
from raydr.verbs.evaluate import evaluate_in


@takes_config
def benchmark(
    config: RunConfig,
    system: list[str] | None = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Checked] | None:
    """Measure systems on a benchmark (scifact, vaswani, cosqa, beir, or your own) beside what is known of it.

    Args:
        system: a system to measure, repeatable; those of benchmark.systems if left out.

    Returns:
        The known answers (section benchmark), each with the figure that was measured; none of a dry run.
    """
    with open_session(config, again, dry_run) as session:
        made = evaluate_in(session, config.data.test_splits, system or config.benchmark.systems)
        results = map(load_result, made)
        return check_known(config.benchmark.known, {one.split: one.summaries for one in results}) if made else None


def show_benchmark(checked: list[Checked] | None) -> None:
    """Print the known answers beside the figures; the command fails if one is not met."""
    if checked is None:
        return
    found = [(one.known, one.measured, one.agrees) for one in checked if one.measured is not None]
    rows = [
        [
            known.system,
            known.measure,
            f"{measured.mean:.4f}",
            f"{known.value:.4f}",
            f"±{known.tolerance:g}",
            "yes" if agrees else "NO",
        ]
        for known, measured, agrees in found
    ]
    if not rows:
        say("no answer is known for these systems: nothing to check")
        return
    show_table("known answers", ["system", "measure", "here", "known", "within", "agrees"], rows)
    for known, _, _ in found:
        say(f"{known.system}, {known.measure}: {known.source}")
    if not all(agrees for _, _, agrees in found):
        raise typer.Exit(1)
