"""Evaluation verbs: ``evaluate``, ``benchmark``, ``report`` and ``quickstart``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raydr.artefacts.declaration import Node
from raydr.artefacts.evaluation import PICTURE, REPORT, evaluation, load_result
from raydr.artefacts.evaluation import show as show_evaluation
from raydr.artefacts.places import NOISY, TRAINED, UNTRAINED, Places
from raydr.config.run import AnyConfig, RunConfig
from raydr.console import say, show_summary, show_table, warn
from raydr.data.dataset import Dataset
from raydr.errors import ClusterError, ConfigError, FingerprintError, RaydrError
from raydr.evaluation.comparison import Checked, check_known
from raydr.ops.report import write_report
from raydr.pages.evaluation import telling_measure
from raydr.pipeline.session import CONFIG_FILE, Session, open_session
from raydr.store.artifact import Artifact
from raydr.tracking.tracker import DATABASE, Store
from raydr.verbs.command import Again, DryRun, Overrides, program, takes_config

if TYPE_CHECKING:
    from pandas import DataFrame


class Evaluations(list["Artifact"]):
    """Evaluations of splits; shown as a table of measures."""

    def to_pandas(self) -> DataFrame:
        """Return a row for each split, system and measure: mean, interval and number of queries."""
        import pandas as pd

        rows = [(result.split, summary) for result in map(load_result, self) for summary in result.summaries]
        table = pd.DataFrame([vars(summary) for _, summary in rows])
        table.insert(0, "split", [split for split, _ in rows])
        return table

    def __repr__(self) -> str:
        if not self:
            return "Evaluations([])"
        means = self.to_pandas().pivot_table("mean", ["split", "system"], "measure", sort=False)
        return str(means.to_string(float_format="{:.4f}".format))


@takes_config
def evaluate(
    config: RunConfig,
    system: list[str] | None = None,
    split: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> Evaluations:
    """Make what is missing, and compare systems with intervals and paired tests.

    Default systems are BM25, the untrained and trained model, variants and imported runs. SYSTEM@own, SYSTEM@split and
    SYSTEM@all override partition.search.

    Args:
        system: system to evaluate, repeatable; each two are compared.
        split: split of the data set; default: all test splits.
    """
    with open_session(config, again, dry_run) as session:
        return evaluate_in(session, [split] if split else config.data.test_splits, system)


def evaluate_in(session: Session, splits: list[str], systems: list[str] | None = None) -> Evaluations:
    """Make and show the evaluations of splits; if a system fails, show the figures of the others.

    Raises:
        ConfigError: there is no test split.
        RaydrError: a system failed.
    """
    if not splits:
        raise ConfigError("data.test_splits is empty: set it, or name a split with --split")
    recipe = session.recipe
    if (train := session.config.data.train_split) in splits:
        warn(f"{train} is the training split: trained models have seen its queries, and their figures are too good")
    targets = [recipe.evaluation(split, systems or recipe.systems(split)) for split in splits]
    data = {"corpus", "dataset", NOISY}
    try:
        made = session.make(*targets, anew=[node for name, node in recipe.names.items() if name not in data])
    except RaydrError as error:
        _evaluate_others(session, splits, systems, error)
        raise
    for artifact in made:
        show_evaluation(artifact)
    if made:
        _warn_of_equal_models(session)
    return Evaluations(made)


def next_after_evaluate(made: Evaluations, config: RunConfig) -> tuple[str, list[str], str]:
    """Suggest a diagnosis if training brought no gain, else the report."""
    result = load_result(made[0])
    measure = telling_measure([summary.measure for summary in result.summaries])
    mean = {summary.system: summary.mean for summary in result.summaries if summary.measure == measure}
    if TRAINED in mean and mean[TRAINED] <= mean.get(UNTRAINED, -1):
        return "diagnose", [], f"{TRAINED} is no better than its checkpoint"
    return "report", [], ""


def _evaluate_others(session: Session, splits: list[str], systems: list[str] | None, error: RaydrError) -> None:
    """Show the figures of the working systems after one has failed.

    No name points to these evaluations, since they lack a system.
    """
    if isinstance(error, FingerprintError | ConfigError | ClusterError):
        return
    for split in splits:
        runs = {name: session.recipe.search(split, name) for name in systems or session.recipe.systems(split)}
        whole = {name: run for name, run in runs.items() if _can_be_evaluated(session, split, name, run, error)}
        if not whole or len(whole) == len(runs):
            continue
        warn(f"evaluated without {', '.join(name for name in runs if name not in whole)}")
        [made] = session.make(evaluation(session.recipe.context, split, whole))
        show_evaluation(made)


def _can_be_evaluated(session: Session, split: str, system: str, run: Node, first: RaydrError) -> bool:
    try:
        session.make(evaluation(session.recipe.context, split, {system: run}))
    except RaydrError as error:
        # The verb ends with the first error.
        if str(error) != str(first):
            warn(f"{system}: {error}")
        return False
    return True


def _warn_of_equal_models(session: Session) -> None:
    """Warn of compared models with equal weights."""
    by_weights: dict[str, list[str]] = {}
    for name, node in session.recipe.names.items():
        if name.startswith("models/") and node.kind == "model" and session.inventory.manifest(node) is not None:
            weights = session.inventory.open(node).info.get("weights")
            by_weights.setdefault(weights or name, []).append(name.removeprefix("models/"))
    for names in by_weights.values():
        if len(names) > 1:
            warn(f"{' and '.join(names)} have equal weights, so their figures are equal")


@takes_config
def benchmark(
    config: RunConfig,
    system: list[str] | None = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Checked] | None:
    """Compare systems on a benchmark (scifact, vaswani, cosqa, beir, or your own) with known results.

    Args:
        system: system to measure, repeatable; default: benchmark.systems.

    Returns:
        The known results (section benchmark) with the measured figures; None in a dry run.
    """
    with open_session(config, again, dry_run) as session:
        made = evaluate_in(session, config.data.test_splits, system or config.benchmark.systems)
        summaries = {result.split: result.summaries for result in map(load_result, made)}
        return check_known(config.benchmark.known, summaries) if made else None


def show_benchmark(checked: list[Checked] | None) -> None:
    """Print known results beside measured figures; fail if a figure differs."""
    if checked is None:
        return
    answers = [(answer.known, answer.measured, answer.agrees) for answer in checked if answer.measured is not None]
    rows = [
        [
            known.system,
            known.measure,
            f"{measured.mean:.4f}",
            f"{known.value:.4f}",
            f"±{known.tolerance:g}",
            "yes" if agrees else "NO",
        ]
        for known, measured, agrees in answers
    ]
    absent = [answer.known for answer in checked if answer.measured is None]
    if absent:
        say(f"not measured: {', '.join(f'{known.system} {known.measure} on {known.split}' for known in absent)}")
    if not rows:
        say("no results are known for these systems: nothing to compare")
        return
    show_table("known answers", ["system", "measure", "here", "known", "within", "agrees"], rows)
    for known, _, _ in answers:
        say(f"{known.system}, {known.measure}: {known.source}")
    if not all(agrees for _, _, agrees in answers):
        raise typer.Exit(1)


@takes_config
def report(config: RunConfig) -> str:
    """Write training curves, detections, evaluations, audits and verdicts of the working folder on an HTML page.

    Returns:
        Path of the page.
    """
    return write_report(config, Places.of(config.workdir))


#: Config of ``raydr quickstart`` without a file.
DEFAULT_CONFIG = Path(__file__).with_name("quickstart.yaml")


def quickstart(config: AnyConfig = DEFAULT_CONFIG, again: bool = False, dry_run: bool = False) -> list[Artifact]:
    """Run everything with baselines; without a config, code search over installed Python packages."""
    config = RunConfig.of(config)
    with open_session(config, again, dry_run) as session:
        made = evaluate_in(session, config.data.test_splits)
        if made:
            _show_detection(session)
            _show_next_steps(session)
        return made


def quickstart_command(
    config: Annotated[str, typer.Argument(metavar="[CONFIG]")] = "",
    set_: Overrides = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> None:
    """Run everything: prepare, train, encode, index, search, and compare with BM25 and the untrained encoder.

    Args:
        config: YAML file or name of a run; default: code search over installed packages.
    """
    quickstart(RunConfig.load(config or DEFAULT_CONFIG, set_), again, dry_run)


def _show_detection(session: Session) -> None:
    """Show the quality of the detection of injected mismatched pairs."""
    if session.config.inject_noise is None:
        return
    rows = []
    for name in (TRAINED, *session.config.variants):
        for detection in session.places.open(f"models/{name}", "model").info["detections"]:
            figures = (detection.get(key) for key in ("share_flagged", "precision", "recall", "auroc"))
            rows.append([name, detection["epoch"] + 1, *("" if value is None else f"{value:.3f}" for value in figures)])
    if rows:
        show_table(
            "Detection of mismatched training pairs, by the epoch that uses it",
            ["training", "epoch", "share flagged", "precision", "recall", "AUROC"],
            rows,
        )


def _show_next_steps(session: Session) -> None:
    config, root = session.config, session.places.root
    show_summary(
        "The results",
        {
            **{f"picture ({split})": root / "evaluation" / split / PICTURE for split in config.data.test_splits},
            **{f"report ({split})": root / "evaluation" / split / REPORT for split in config.data.test_splits},
        },
    )
    say("look further:")
    if config.tracking.enabled:
        store = Store.of(config.tracking, root)
        place, uri = "", store.shown
        if not store.uri and set("?%#") & set(uri):
            # A URI of such a path is not portable.
            place, uri = f"cd {shlex.quote(str(root))} && ", f"sqlite:///{DATABASE}"
        say(f"  {place}{program('mlflow')} ui --backend-store-uri {shlex.quote(uri)}")
    data = Dataset(session.places.open("dataset", "dataset"))
    example = data.queries([*config.data.test_splits, config.data.train_split][0])["text"][0].as_py()
    say(f"  {program('raydr')} audit {root.path(CONFIG_FILE)}")
    say(f"  {program('raydr')} search {root.path(CONFIG_FILE)} {shlex.quote(' '.join(example.split()[:10]))}")
