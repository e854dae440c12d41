"""The main job from raw files to a table: prepare, train, encode, index, search, evaluate, with two baselines."""

from __future__ import annotations

from pathlib import Path

from raydr.console import say
from raydr.pipelines.job import Job
from raydr.workspace import BM25, TRAINED, UNTRAINED

#: The config of ``raydr quickstart`` without a file.
DEFAULT_CONFIG = Path(__file__).with_name("quickstart.yaml")


def run_main_job(job: Job) -> None:
    """All stages of the main job in order."""
    config = job.config
    job.prepare()
    if config.inject_noise is not None:
        job.inject_noise()
    if config.negatives is not None and config.train.num_hard_negatives:
        for split in (config.data.train_split, config.data.dev_split):
            job.mine(split)
    job.train()
    job.untrained()
    systems = [UNTRAINED, TRAINED]
    for system in systems:
        job.encode(system)
        job.index(system)
    for split in config.data.test_splits:
        job.search_bm25(split)
        for system in systems:
            job.search(split, system)
        job.evaluate(split, [BM25, *systems])
    say(f"everything is in {job.workspace.root}; look further with")
