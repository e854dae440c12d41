"""Verbs of the training: ``train``, ``refresh`` and ``tune``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raydr.artefacts.declaration import Existing
from raydr.artefacts.negatives import SOURCE
from raydr.artefacts.places import BM25, UNTRAINED
from raydr.config.run import RunConfig, is_ranker
from raydr.errors import ConfigError
from raydr.pipeline.refresh import RefreshOutcome, run_refresh
from raydr.pipeline.session import open_session
from raydr.store.artifact import Artifact
from raydr.tuning.plan import open_plan
from raydr.verbs.command import Again, ConfigFile, DryRun, Overrides, takes_config

if TYPE_CHECKING:
    from raydr.tuning.run import TuneOutcome


@takes_config
def train(
    config: RunConfig,
    name: str = "trained",
    negatives: str = "",
    dataset: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Train the dual encoder, or the ranker; what it needs is made first, and an interrupted training goes on.

    Args:
        name: name of the model; that of a variant trains that variant, ranker or ranker-X the cross-encoder.
        negatives: folder of a negatives artefact in place of what is mined and judged.
        dataset: folder of a dataset artefact in place of the run's, e.g. a judged one.

    Raises:
        ConfigError: the name is no name of a folder, or one that raydr gives to something else.
    """
    if name in (BM25, UNTRAINED, SOURCE):
        raise ConfigError(f"--name {name}: raydr calls something else so; give the model another name")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        inputs = (
            Existing.at(negatives, "negatives") if negatives else None,
            Existing.at(dataset, "dataset") if dataset else None,
        )
        return session.make(recipe.ranker(name, *inputs) if is_ranker(name) else recipe.trained(name, *inputs))


@takes_config
def refresh(config: RunConfig, again: Again = False, dry_run: DryRun = False) -> RefreshOutcome | None:
    """Refresh rounds: train, encode, index, search, mine, judge, train again; killed, the same command goes on."""
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
    """Search over settings of the training with Ray Tune; a search that was killed goes on.

    Args:
        config: the run; as it is, it is the first trial.
        space: a space file, the name of one that comes with raydr, or its content.
        name: of the search in the working folder; that of the file if empty.
        space_overrides: ``key.path=value`` for settings of the space file.
        again: replace a search that was done differently.
        dry_run: only say what would be searched and made.

    Returns:
        The ``search`` artefact, its trials, and how the best compares with the default; None in a dry run.
    """
    from raydr.tuning.run import run_tune

    # Ray gives each trial a working folder of its own.
    config = config.from_anywhere()
    plan = open_plan(config, space, name, space_overrides or [])
    with open_session(config, again, dry_run, dashboard=plan.nested) as session:
        return run_tune(session, plan, name or plan.space.name)


def tune_command(
    config: ConfigFile,
    space: Annotated[str, typer.Option(metavar="FILE")],
    name: str = "",
    set_space: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE")] = None,
    set_: Overrides = None,
    again: Again = False,
    dry_run: DryRun = False,
) -> None:
    """Search over settings of the training; a search that was killed goes on with the same command.

    Args:
        space: space file, or the name of one that comes with raydr: npc, ccr, joint, ...
        name: name of the search; that of the space file if left out.
        set_space: override a setting of the space file, e.g. search.num_trials=12 or scheduler.name=none; repeatable.
    """
    tune(RunConfig.load(config, set_), space, name, set_space, again, dry_run)
