"""``raydr prepare``: raw files to a corpus and a data set."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.config.first_config import first_config, is_data
from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.runtime.console import say
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, Overrides, Yes, overrides, takes_config, tell_next


@takes_config
def prepare(config: RunConfig, again: bool = False, dry_run: bool = False) -> list[Artifact]:
    """Read the raw files into a corpus and a data set, and put noise in on purpose if the config says so.

    Returns:
        The corpus and the data set.
    """
    with open_session(config, again, dry_run) as session:
        dataset, corpus = session.recipe.dataset(), session.recipe.corpus()
        return session.make(corpus, dataset, anew=list(session.recipe.names.values()))


def prepare_command(
    config: Annotated[str, typer.Argument(metavar="CONFIG|DATA")],
    set_: Overrides = None,
    again: Again = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Read raw files into a corpus and a data set; files without a config are looked at, and get one.

    Args:
        config: YAML file of a run; or a file or folder of data, which is looked at and gets a config.
    """
    if not is_data(config):
        if prepare(RunConfig.load(config, overrides(set_, yes)), again, dry_run):
            tell_next("inspect", config, set_)
        return
    first = first_config(config)
    say(f"{config} is {first.what}")
    if held_out := first.raw["data"].get("hold_out"):
        shares = " and ".join(f"{share:.0%} for {split}" for split, share in held_out.items())
        say(f"splits that it has not are held out of the training queries: {shares} (data.hold_out)")
    if dry_run:
        say(f"{first.name}.yaml would be written:\n{first.text}")
        return
    file = first.write()
    say(f"config: {file}")
    prepare(RunConfig.load(file, overrides(set_, yes)), again)
    if first.trains:
        say(f"the whole run, with its baselines and a page: raydr evaluate {file}")
    else:
        say(f"there is nothing to train on: raydr evaluate {file} --system bm25 --system untrained")
