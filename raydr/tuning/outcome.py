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
from raydr.tuning.importance import importances
from raydr.tuning.plan import TunePlan
from raydr.tuning.plots import pictures
from raydr.tuning.report import importance_rows, outcome_of, tuning_page
from raydr.tuning.result import StudyResult, trial_rows
from raydr.tuning.search import BEST, TABLE, TRIALS
from raydr.tuning.trials import Trial

#: The page and the pictures, beside the artefact's parts: they are written anew by every command.
PAGE, PLOTS = "report.html", "plots"
#: Trials that the console's table shows.
_SHOWN = 20


def study_result(plan: TunePlan, made: Artifact) -> StudyResult:
    """What a finished search came to."""
    trials = [Trial.model_validate(one) for one in made.read_json(TRIALS)]
    weights = importances(plan.space.parameters, trials, plan.space.config.seed)
    return StudyResult(plan, made.info["name"], made.info["facts"], trials, weights)


def show_result(result: StudyResult) -> None:
    """Print the best trials, and what mattered."""
    columns, rows = trial_rows(result, _SHOWN)
    show_table(f"{len(rows)} of {len(result.trials)} trials, the best first", columns, rows)
    if (found := result.importances).rows:
        title = f"share of the variance of the score after {result.unit} {found.epoch} that each setting explains"
        show_table(f"{title} (fANOVA)", *importance_rows(found))


def report(
    result: StudyResult,
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
    folder, drawn = made.folder, pictures(result)
    for name, png, _ in drawn:
        with folder.publish(f"{PLOTS}/{name}") as path:
            Path(path).write_bytes(png)
        tracker.log_artifact(folder.localize(f"{PLOTS}/{name}"), PLOTS)
    best_config = Path(made.local(BEST)).read_text(encoding="utf-8")
    with folder.publish(PAGE) as path:
        shown = [(png, caption) for _, png, caption in drawn]
        Path(path).write_text(tuning_page(result, shown, confirmations, best_config), encoding="utf-8")
    for part in (BEST, TRIALS, TABLE, PAGE):
        tracker.log_artifact(folder.localize(part))
    for part in model.parts():
        tracker.log_artifact(model.local(part), f"best-model/{part.rpartition('/')[0]}".rstrip("/"))
    numbers = {"best/dev": result.best.score, "default/dev": result.default.score}
    numbers |= {f"importance/{row.key}": row.share for row in result.importances.rows}
    facts = {"on dev": outcome_of(result)}
    label = next(iter(parse_measures([result.plan.measure])))
    for one in confirmations:
        numbers |= {f"gain/{one.split}/{row.measure}": row.difference for row in one.comparisons}
        first = next((row for row in one.comparisons if row.measure == label), one.comparisons[0])
        gain = f"{first.measure} {first.difference:+.4f} [{first.low:+.4f}, {first.high:+.4f}], p {first.p:.4f}"
        facts[f"confirmed on {one.split}"] = f"{gain}, {len(one.seeds)} seeds"
    tracker.log_metrics({name: value for name, value in numbers.items() if value is not None})
    facts |= {"best config": place.path(BEST), "its model": str(model.folder)}
    show_summary(f"search {result.name}", facts | {"report": place.path(PAGE), "trials": place.path(TABLE)})
