"""The page of a search over settings: its trials, what mattered, and whether the best is better."""

from __future__ import annotations

from collections.abc import Sequence

from raydr.compare import Compared
from raydr.pages.html import Page
from raydr.tuning.distributions import as_text
from raydr.tuning.proposals import describe
from raydr.tuning.result import SearchResult, trial_rows


def tuning_page(
    result: SearchResult, drawn: Sequence[tuple[bytes, str]], confirmations: Sequence[Compared], best_config: str
) -> str:
    """The self-contained HTML page.

    Args:
        result: of the search.
        drawn: pictures with captions.
        confirmations: one a split; empty if the best was not trained anew.
        best_config: YAML of the best config, with where it comes from.
    """
    page = Page(f"Search {result.name}")
    if result.description:
        page.paragraph(result.description)
    page.paragraph(_outcome(result))
    left = (
        "What is left of the gain on other seeds and on test stands below."
        if confirmations
        else "confirm.num_seeds trains it and the default anew, and evaluates both on test."
    )
    page.note(f"The best of many trials looks better on dev than it is, since it was chosen there. {left}")
    for fact in result.facts:
        page.note(fact)
    for confirmation in confirmations:
        _confirmation(page, confirmation)
    page.heading("What was searched")
    rows = [[key, as_text(result.default.values[key]), values] for key, values in describe(result.parameters)]
    page.table("settings, their defaults, and what was tried", ["setting", "default", "tried"], rows)
    page.heading("Trials")
    page.table("trained to the end first, the best on top", *trial_rows(result))
    failed = [trial for trial in result.trials if trial.status == "failed"]
    if failed:
        page.table("failed trials", ["trial", "why"], [[f"{trial.number}", trial.error] for trial in failed])
    for png, caption in drawn:
        page.picture(png, caption)
    _importance(page, result)
    page.heading("The best config")
    page.preformatted(best_config)
    return page.render()


def _outcome(result: SearchResult) -> str:
    best, default = result.best, result.default
    found = f"The best is trial {best.number} with dev {result.measure} {best.score or 0.0:.4f}"
    if best.number == 0:
        return f"{found}, the default itself: nothing that was tried is better."
    if default.score is None or best.score is None:
        return f"{found}; the default failed: {default.error}"
    return f"{found}, {best.score - default.score:+.4f} against the default's {default.score:.4f}."


def confirmation_rows(found: Compared, by_seed: bool) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: the default, the best, and the difference with its interval and p-value, by measure.

    Args:
        found: on one split.
        by_seed: also the least and the highest mean of a single seed.
    """
    means = {(row.system, row.measure): row for row in found.summaries}
    rows = []
    for one in found.comparisons:
        default, best = means[one.baseline, one.measure], means[one.system, one.measure]
        seeds = found.by_seed[one.measure]
        single = [_range(seeds[one.baseline]), _range(seeds[one.system])] if by_seed else []
        difference = f"{one.difference:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"
        rows.append([one.measure, f"{default.mean:.4f}", f"{best.mean:.4f}", *single, difference, f"{one.p:.4f}"])
    single = ["default, by seed", "best, by seed"] if by_seed else []
    interval = f"best − default [{found.confidence:.0%} interval]"
    return ["measure", "default", "best", *single, interval, "p"], rows


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3f} to {max(values):.3f}"


def _confirmation(page: Page, found: Compared) -> None:
    page.heading(f"Best against default on {found.split}")
    seeds = ", ".join(map(str, found.seeds))
    page.table(
        f"trained anew with the seeds {seeds}; means over queries and seeds", *confirmation_rows(found, by_seed=True)
    )
    page.note(
        f"{found.summaries[0].num_queries:,} queries; each query's value is its mean over the seeds. Interval: "
        "bootstrap over queries; p: paired randomisation test, two-sided, not corrected for the number of measures. "
        "Neither covers the choice of the seeds."
    )


def _importance(page: Page, result: SearchResult) -> None:
    found = result.importances
    page.heading("Which settings matter")
    if not found.rows:
        page.paragraph(f"Not computed: {found.reason}.")
        return
    page.paragraph(
        f"fANOVA: the share of the variance of the score that each setting explains alone, after {result.unit} "
        f"{found.epoch}, the last that all {found.num_trials} trials came to. A share no higher than the one by chance "
        "says nothing."
    )
    rows = [
        [row.key, f"{row.share:.2f}", f"{row.by_chance:.2f}", "yes" if row.share > row.by_chance else "no"]
        for row in found.rows
    ]
    page.table("importance", ["setting", "share", "by chance (95 %)", "above chance"], rows)
