"""``raydr evaluate``: the whole run, to measures, intervals and comparisons."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydr.config.run import RunConfig
from raydr.errors import ClusterError, ConfigError, FingerprintError, RaydrError
from raydr.graph.session import Session, open_session
from raydr.runtime.console import warn
from raydr.stages.declaration import Node
from raydr.stages.evaluate import evaluation, load_result
from raydr.stages.evaluate import show as show_evaluation
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, takes_config

if TYPE_CHECKING:
    from pandas import DataFrame


class Evaluations(list["Artifact"]):
    """Evaluations, one a split; shown as the table of their measures."""

    def to_pandas(self) -> DataFrame:
        """A row for each split, system and measure: mean, the ends of its interval, and the number of queries."""
        import pandas as pd

        rows = [(result.split, one) for result in map(load_result, self) for one in result.summaries]
        table = pd.DataFrame([vars(one) for _, one in rows])
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
    """Run all that is missing, and evaluate the systems side by side, with intervals and paired tests.

    Without systems named these are BM25, the untrained and the trained model, the variants, and runs of other programs.
    SYSTEM@own, SYSTEM@split and SYSTEM@all are searched in other partitions than partition.search says.

    Args:
        system: a system to evaluate, repeatable; every two are compared.
        split: split of the data set; all test splits if left out.
    """
    with open_session(config, again, dry_run) as session:
        return evaluate_in(session, [split] if split else config.data.test_splits, system)


def evaluate_in(session: Session, splits: list[str], systems: list[str] | None = None) -> Evaluations:
    """Make the evaluations of some splits, and show them; where a system cannot be made, those of the others.

    Raises:
        ConfigError: there are none.
        RaydrError: a system cannot be made.
    """
    if not splits:
        raise ConfigError("data.test_splits is empty: name a split with --split")
    recipe = session.recipe
    targets = [recipe.evaluation(one, systems or recipe.systems(one)) for one in splits]
    data = {"corpus", "dataset", "dataset-noisy"}
    try:
        made = session.make(*targets, anew=[node for name, node in recipe.names.items() if name not in data])
    except RaydrError as error:
        _evaluate_others(session, splits, systems, error)
        raise
    for artifact in made:
        show_evaluation(artifact)
    if made:
        _tell_of_equal_models(session)
    return Evaluations(made)


def _evaluate_others(session: Session, splits: list[str], systems: list[str] | None, error: RaydrError) -> None:
    """Show the figures of the systems that can be made where one of several cannot be.

    They are no evaluation that a name points to: that has all systems.
    """
    if isinstance(error, FingerprintError | ConfigError | ClusterError):
        return
    for split in splits:
        runs = {name: session.recipe.search(split, name) for name in systems or session.recipe.systems(split)}
        whole = {name: run for name, run in runs.items() if _can_be_evaluated(session, split, name, run)}
        if not whole or len(whole) == len(runs):
            continue
        warn(f"evaluated without {', '.join(name for name in runs if name not in whole)}")
        [made] = session.make(evaluation(session.recipe.run, split, whole))
        show_evaluation(made)


def _can_be_evaluated(session: Session, split: str, system: str, run: Node) -> bool:
    try:
        session.make(evaluation(session.recipe.run, split, {system: run}))
    except RaydrError as error:
        warn(f"{system}: {error}")
        return False
    return True


def _tell_of_equal_models(session: Session) -> None:
    """Say which of the models that were compared have the same weights: they are one system under several names."""
    by_weights: dict[str, list[str]] = {}
    for name, node in session.recipe.names.items():
        if name.startswith("models/") and node.kind == "model" and session.inventory.manifest(node) is not None:
            weights = session.inventory.open(node).info.get("weights")
            by_weights.setdefault(weights or name, []).append(name.removeprefix("models/"))
    for names in by_weights.values():
        if len(names) > 1:
            warn(f"{' and '.join(names)} have equal weights: they are one model, and their figures are the same")
