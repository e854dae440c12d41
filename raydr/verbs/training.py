"""Training verbs: ``train``, ``refresh`` and ``tune``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydr.artefacts.declaration import Existing
from raydr.artefacts.negatives import SOURCE
from raydr.artefacts.places import BM25, TRAINED, UNTRAINED
from raydr.config.run import RunConfig, is_ranker
from raydr.console import warn
from raydr.errors import ConfigError
from raydr.pipeline.refresh import RefreshOutcome, run_refresh
from raydr.pipeline.session import open_session
from raydr.store.artifact import Artifact
from raydr.tuning.plan import open_plan
from raydr.verbs.command import Again, ConfigFile, DryRun, Overrides, takes_config

if TYPE_CHECKING:
    from raydr.tuning.report import TuneOutcome


@takes_config
def train(
    config: RunConfig,
    name: str = "trained",
    negatives: str = "",
    dataset: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Train the dual encoder, or the ranker, after its inputs; resume an interrupted training.

    Args:
        name: name of the model; a variant's name trains that variant, ranker or ranker-X the cross-encoder.
        negatives: folder of a negatives artefact, instead of mined and judged negatives.
        dataset: folder of a dataset artefact, e.g. a judged one, instead of the run's.

    Raises:
        ConfigError: the name is invalid or reserved.
    """
    if name in (BM25, UNTRAINED, SOURCE):
        raise ConfigError(f"--name {name} is reserved: choose another name for the model")
    if name != TRAINED and name not in config.variants and not is_ranker(name):
        variants = f", as {', '.join(config.variants)}" if config.variants else ""
        warn(f"{name} is no variant{variants}: the config's own training gets this name")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        inputs = (
            Existing.at(negatives, "negatives") if negatives else None,
            Existing.at(dataset, "dataset") if dataset else None,
        )
        return session.make(recipe.ranker(name, *inputs) if is_ranker(name) else recipe.trained(name, *inputs))


@takes_config
def refresh(config: RunConfig, again: Again = False, dry_run: DryRun = False) -> RefreshOutcome | None:
    """Run refresh rounds: train, encode, index, search, mine, judge, train again. Resumes after a kill."""
    with open_session(config, again, dry_run) as session:
        return run_refresh(session)


@takes_config
def tune(
    config: RunConfig,
    space: str | Mapping[str, Any],
    name: str = "",
    space_overrides: list[str] | None = None,
    again: bool = False,
    dry_run: bool = False,
) -> TuneOutcome | None:
    """Search over training settings with Ray Tune; resume after a kill.

    Args:
        config: config of the run; also the first trial.
        space: path, shipped name, or content of a space file.
        name: name of the search in the working folder; empty: the file's name.
        space_overrides: ``key.path=value`` overrides of the space file.
        again: replace a search with other settings.
        dry_run: only list what would be searched and made.

    Returns:
        The ``search`` artefact, its trials, and the best trial compared with the default; None in a dry run.
    """
    from raydr.tuning.run import run_tune

    # Ray changes each trial's working directory.
    config = config.from_anywhere()
    plan = open_plan(config, space, name, space_overrides or ())
    with open_session(config, again, dry_run, dashboard=plan.nested) as session:
        return run_tune(session, plan)


def tune_command(
    config: ConfigFile,
    space: Annotated[str, typer.Option(metavar="FILE")],
    name: str = "",
    set_space: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE")] = None,
    set_: Overrides = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> None:
    """Search over training settings; the same command resumes after a kill.

    Args:
        space: space file, or the name of a shipped one: npc, ccr, joint, ...
        name: name of the search; default: the space file's name.
        set_space: override a setting of the space file, e.g. search.num_trials=12 or scheduler.name=none; repeatable.
    """
    tune(RunConfig.load(config, set_), space, name, set_space, again, dry_run)
