"""``raydr quickstart``: the main job on real input, start to end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from raydr.config.run import GivenConfig, RunConfig
from raydr.data.dataset import Dataset
from raydr.graph.session import CONFIG_FILE, Session, open_session
from raydr.runtime.console import say, show_summary, show_table
from raydr.runtime.tracking import DATABASE, Store
from raydr.stages.evaluate import PICTURE, REPORT
from raydr.stages.places import TRAINED
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, Overrides, program
from raydr.verbs.evaluate import evaluate_in

#: The config of ``raydr quickstart`` without a file.
DEFAULT_CONFIG = Path(__file__).with_name("quickstart.yaml")


def quickstart(config: GivenConfig = DEFAULT_CONFIG, again: bool = False, dry_run: bool = False) -> list[Artifact]:
    """The whole run with its baselines; without a config, code search over installed Python packages."""
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
    """Run the main job: prepare, train, encode, index, search, evaluate against BM25 and the untrained encoder.

    Args:
        config: YAML file or name of a run; code search over installed packages if none.
    """
    quickstart(RunConfig.load(config or DEFAULT_CONFIG, set_), again, dry_run)


def _show_detection(session: Session) -> None:
    """How right the detector of mismatched pairs was, where noise was injected."""
    if session.config.inject_noise is None:
        return
    rows = []
    for name in (TRAINED, *session.config.variants):
        for found in session.places.open(f"models/{name}", "model").info["detections"]:
            figures = (found.get(key) for key in ("share_flagged", "precision", "recall", "auroc"))
            rows.append([name, found["epoch"] + 1, *("" if value is None else f"{value:.3f}" for value in figures)])
    if rows:
        show_table(
            "Detection of the mismatched training pairs, by the epoch it was made for",
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
            # No URI of such a path means the same to all that read it.
            place, uri = f"cd {shlex.quote(str(root))} && ", f"sqlite:///{DATABASE}"
        say(f"  {place}{program('mlflow')} ui --backend-store-uri {shlex.quote(uri)}")
    data = Dataset(session.places.open("dataset", "dataset"))
    example = data.queries([*config.data.test_splits, config.data.train_split][0])["text"][0].as_py()
    say(f"  {program('raydr')} audit {root.path(CONFIG_FILE)}")
    say(f"  {program('raydr')} search {root.path(CONFIG_FILE)} {shlex.quote(' '.join(example.split()[:10]))}")
