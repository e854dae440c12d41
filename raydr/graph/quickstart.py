"""The main job from raw files to a table: prepare, train, encode, index, search, evaluate, with two baselines."""

from __future__ import annotations

import shlex
from pathlib import Path

from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError
from raydr.graph.job import CONFIG_FILE, Job
from raydr.graph.workspace import BM25, TRAINED, UNTRAINED
from raydr.runtime.console import say, show_summary, show_table
from raydr.runtime.mlflow_runs import tracking_uri
from raydr.stages.encode import check_encoders
from raydr.stages.evaluate import PICTURE, REPORT
from raydr.store.artifact import MANIFEST, Artifact

#: The config of ``raydr quickstart`` without a file.
DEFAULT_CONFIG = Path(__file__).with_name("quickstart.yaml")


def run_main_job(job: Job) -> None:
    """All stages of the main job in order."""
    config = job.config
    trained = [TRAINED, *config.variants]
    systems = [UNTRAINED, *trained]
    if not all(job.workspace.passages(system).exists(MANIFEST) for system in systems):
        check_encoders(config.encode)
    _, prepared = job.prepare()
    _check_test_splits(config, Dataset(prepared))
    if config.inject_noise is not None:
        job.inject_noise()
    if config.some_training_draws_candidates:
        job.mine(config.data.train_split)
    for name in trained:
        job.train(name)
    for system in systems:
        job.encode(system)
        job.index(system)
    for split in config.data.test_splits:
        job.search_bm25(split)
        for system in systems:
            job.search(split, system)
        job.evaluate(split, [BM25, *systems])
    if config.inject_noise is not None:
        _show_detection(job, trained)
    _show_next_steps(job)


def _check_test_splits(config: RunConfig, data: Dataset) -> None:
    """Before hours of training."""
    missing = [split for split in config.data.test_splits if split not in data.splits]
    if missing:
        raise ConfigError(
            f"the data set at {data.artifact.folder} has no split {missing[0]!r} to evaluate on; it has "
            f"{', '.join(data.splits)}: set data.test_splits, to [] if there is none"
        )


def _show_detection(job: Job, trainings: list[str]) -> None:
    """How right the detector of mismatched pairs was, where noise was injected."""
    rows = []
    for name in trainings:
        for found in Artifact.open(job.workspace.model(name), "model").info["detections"]:
            figures = (found.get(key) for key in ("share_flagged", "precision", "recall", "auroc"))
            rows.append([name, found["epoch"] + 1, *("" if value is None else f"{value:.3f}" for value in figures)])
    if rows:
        show_table(
            "Detection of the mismatched training pairs, by the epoch it was made for",
            ["training", "epoch", "share flagged", "precision", "recall", "AUROC"],
            rows,
        )


def _show_next_steps(job: Job) -> None:
    config, root = job.config, job.workspace.root
    show_summary(
        "The results",
        {
            **{f"picture ({split})": root / "evaluation" / split / PICTURE for split in config.data.test_splits},
            **{f"report ({split})": root / "evaluation" / split / REPORT for split in config.data.test_splits},
        },
    )
    say("look further:")
    if config.tracking.enabled:
        say(f"  mlflow ui --backend-store-uri {tracking_uri(config.tracking, root)}")
    data = Dataset.open(job.dataset)
    example = data.queries([*config.data.test_splits, config.data.train_split][0])["text"][0].as_py()
    say(f"  raydr search {root.path(CONFIG_FILE)} {shlex.quote(' '.join(example.split()[:10]))}")
