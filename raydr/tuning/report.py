"""The page of a search over settings: its trials, what mattered, and whether the best is better."""

from __future__ import annotations

from collections.abc import Sequence

from raydr.compare import Compared
from raydr.pages.html import Page
from raydr.tuning.importance import Importances
from raydr.tuning.result import StudyResult, trial_rows


def tuning_page(
    result: StudyResult, drawn: Sequence[tuple[bytes, str]], confirmations: Sequence[Compared], best_config: str
) -> str:
    """The self-contained HTML page.

    Args:
        result: of the search.
        drawn: pictures with captions.
        confirmations: one a split; empty if the best was not trained anew.
        best_config: YAML of the best config, with where it comes from.
    """
    page, space = Page(f"Search {result.name}"), result.plan.space
    if space.settings.description:
        page.paragraph(space.settings.description)
    page.paragraph(outcome_of(result))
    left = (
        "What is left of the gain on other seeds and on test stands below."
        if confirmations
        else "confirm.num_seeds trains it and the default anew, and evaluates both on test."
    )
    page.note(f"The best of many trials looks better on dev than it is, since it was chosen there. {left}")
    for fact in result.facts:
        page.note(fact)
    for one in confirmations:
        page.heading(f"Best against default on {one.split}")
        seeds = ", ".join(map(str, one.seeds))
        page.table(f"trained anew with the seeds {seeds}; paired randomisation test (two-sided)", *one.rows())
        page.note(
            "Each query's value is its mean over the seeds. Intervals: bootstrap over queries; p is not corrected for "
            "the number of measures. Neither covers the choice of the seeds."
        )
    page.heading("What was searched")
    page.table("settings, their defaults, and what was tried", *space.rows())
    page.heading("Trials")
    page.table("trained to the end first, the best on top", *trial_rows(result))
    if failed := [[f"{trial.number}", trial.error] for trial in result.trials if trial.status == "failed"]:
        page.table("failed trials", ["trial", "why"], failed)
    for png, caption in drawn:
        page.picture(png, caption)
    page.heading("Which settings matter")
    weights = result.importances
    if weights.rows:
        page.paragraph(
            f"fANOVA: the share of the variance of the score that each setting explains alone, after {result.unit} "
            f"{weights.epoch}, the last that all {weights.num_trials} trials came to. A share no higher than the one "
            "by chance says nothing."
        )
        page.table("importance", *importance_rows(weights))
    else:
        page.paragraph(f"Not computed: {weights.reason}.")
    page.heading("The best config")
    page.preformatted(best_config)
    return page.render()


def outcome_of(result: StudyResult) -> str:
    """Which trial is the best, and how it compares with the default on dev, where it was chosen."""
    best, default = result.best, result.default
    found = f"The best is trial {best.number} with {result.measure} {best.score or 0.0:.4f}"
    if best.number == 0:
        return f"{found}, the default itself: nothing that was tried is better."
    if default.score is None or best.score is None:
        return f"{found}; the default failed: {default.error}"
    return f"{found}, {best.score - default.score:+.4f} against the default's {default.score:.4f}."


def importance_rows(found: Importances) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: each setting's share beside the one by chance."""
    rows = [
        [row.key, f"{row.share:.2f}", f"{row.by_chance:.2f}", "yes" if row.share > row.by_chance else "no"]
        for row in found.rows
    ]
    return ["setting", "share", "by chance (95 %)", "above chance"], rows
