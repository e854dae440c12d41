"""The outcome of a search: on the console, as pictures and a page, and in MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raydr.compare import Compared
from raydr.evaluation.metrics import parse_measures
from raydr.runtime.console import show_summary, show_table
from raydr.runtime.tracking import Tracker
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.tuning.book import load_trials
from raydr.tuning.importance import importances
from raydr.tuning.plan import TunePlan
from raydr.tuning.plots import pictures
from raydr.tuning.report import tuning_page
from raydr.tuning.result import SearchResult, trial_rows
from raydr.tuning.search import BEST, TABLE, TRIALS

#: The page, beside the artefact's parts: it is written anew by every command.
PAGE = "report.html"
#: Trials that the console's table shows.
_SHOWN = 20


def search_result(plan: TunePlan, made: Artifact) -> SearchResult:
    """What a finished search came to."""
    trials, space = load_trials(made), plan.space
    return SearchResult(
        made.info["name"],
        space.settings.description,
        plan.measure,
        plan.schedule.unit,
        space.parameters,
        trials,
        importances(space.parameters, trials, space.config.seed),
        plan.rungs(),
        made.info["facts"],
    )


def show_result(result: SearchResult) -> None:
    """Print the best trials, and what mattered."""
    columns, rows = trial_rows(result, _SHOWN)
    left_out = len(result.trials) - len(rows)
    title = f"{len(result.trials)} trials, the best first" + (f" ({left_out} more in the report)" if left_out else "")
    show_table(title, columns, rows)
    found = result.importances
    if found.rows:
        show_table(
            f"share of the variance of the score after {result.unit} {found.epoch} that each setting explains (fANOVA)",
            ["setting", "share", "by chance (95 %)"],
            ([row.key, f"{row.share:.2f}", f"{row.by_chance:.2f}"] for row in found.rows),
        )


def report(
    result: SearchResult,
    confirmations: Sequence[Compared],
    made: Artifact,
    place: Folder,
    model: Artifact,
    tracker: Tracker,
) -> None:
    """Write the page and the pictures, log everything, and say where it is.

    Args:
        result: of the search.
        confirmations: of its best.
        made: the study.
        place: where its name leads to.
        model: of the best trial.
        tracker: its MLflow run.
    """
    folder = made.folder
    drawn = pictures(result)
    for name, png, _ in drawn:
        with folder.publish(f"plots/{name}") as path:
            Path(path).write_bytes(png)
    best_config = Path(made.local(BEST)).read_text(encoding="utf-8")
    shown = [(png, caption) for _, png, caption in drawn]
    with folder.publish(PAGE) as path:
        Path(path).write_text(tuning_page(result, shown, confirmations, best_config), encoding="utf-8")
    _log(result, confirmations, made, [name for name, _, _ in drawn], model, tracker)
    best, default = result.best, result.default
    facts = {"best trial": f"{best.number}, dev {result.measure} {best.score or 0.0:.4f}"}
    if default.score is not None and best.number:
        facts["gain over the default"] = f"{(best.score or 0.0) - default.score:+.4f} on dev, where it was chosen"
    label = next(iter(parse_measures([result.measure])))
    for one in confirmations:
        first = next((row for row in one.comparisons if row.measure == label), one.comparisons[0])
        facts[f"confirmed on {one.split}"] = (
            f"{first.measure} {first.difference:+.4f} [{first.low:+.4f}, {first.high:+.4f}], p {first.p:.4f}, "
            f"{len(one.seeds)} seeds"
        )
    facts |= {
        "best config": place.path(BEST),
        "its model": str(model.folder),
        "report": place.path(PAGE),
        "trials": place.path(TABLE),
    }
    show_summary(f"search {result.name}", facts)


def _log(
    result: SearchResult,
    confirmations: Sequence[Compared],
    made: Artifact,
    drawn: Sequence[str],
    model: Artifact,
    tracker: Tracker,
) -> None:
    for part in (BEST, TRIALS, TABLE):
        tracker.log_artifact(made.local(part))
    for name in drawn:
        tracker.log_artifact(made.folder.localize(f"plots/{name}"), "plots")
    tracker.log_artifact(made.folder.localize(PAGE))
    for part in model.parts():
        below = part.rpartition("/")[0]
        tracker.log_artifact(model.local(part), f"best-model/{below}".rstrip("/"))
    numbers = {"best/dev": result.best.score, "default/dev": result.default.score}
    numbers |= {f"importance/{row.key}": row.share for row in result.importances.rows}
    for one in confirmations:
        numbers |= {f"gain/{one.split}/{row.measure}": row.difference for row in one.comparisons}
    tracker.log_metrics({name: value for name, value in numbers.items() if value is not None})
