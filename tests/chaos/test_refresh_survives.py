"""Processes of a small refresh are killed at random in the middle of its steps; it must end as if nothing had been.

``make test`` kills a worker of Ray Train and a whole node, ``make chaos`` kills three times in every kind of step. What
a command makes of Ctrl-C and of its own death in training is in ``tests/e2e``.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from small_runs import small_run
from store_contents import store_contents

from chaos.monkey import Kill, Monkey, Victim

SEED = 2026
KILLED: tuple[Victim, ...] = ("worker", "driver", "node")


def write_config(folder: Path, beir_folder: Path, checkpoint: str, ray_folder: str, **refresh: Any) -> Path:
    config = small_run(
        beir_folder,
        checkpoint,
        folder / "work",
        name="chaos",
        data={"part_rows": 15},
        train={"num_epochs": 4, "num_workers": 2, "checkpoint_steps": 1},
        # One encoder and the index beside it fit into two CPUs, so the index follows the encoding.
        encode={"token_budget": 256, "max_actors": 2, "cpus_per_actor": 0.75, "cpus_per_tokenizer": 0.25},
        index={"shard_rows": 40},
        search={"batch_queries": 8, "cpus_per_actor": 1},
        evaluate={"measures": ["RR@10", "R@5"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
        judge={
            "judges": [{"name": "margin"}],
            "classifier": {"model": {"checkpoint": checkpoint, "max_length": 48}, "dtype": "float32"},
        },
        refresh={"evaluate_splits": ["dev"], **refresh},
        # Kills are to hit Ray's workers.
        ray={"temp_dir": ray_folder, "in_process_rows": 0},
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def run_through(folder: Path, beir_folder: Path, checkpoint: str, kills: list[Kill], seconds: dict[str, float],
                small_here: bool = False, **refresh: Any) -> Monkey:  # fmt: skip
    """A refresh with these kills; the folder of its Ray is removed afterwards.

    ``small_here``: once no kill is left, what need not be on Ray is done in the command's own process.
    """
    with tempfile.TemporaryDirectory(prefix="rc", ignore_cleanup_errors=True) as ray_folder:
        config = write_config(folder, beir_folder, checkpoint, ray_folder, **refresh)
        command = [sys.executable, "-m", "raydr", "refresh", str(config)]
        unhurt = [*command, "--set", "ray.in_process_rows=20000"] if small_here else []
        made = folder / "work"
        monkey = Monkey(command, seconds, list(kills), ray_folder, lambda: shutil.rmtree(made), unhurt, SEED)
        monkey.run()
        return monkey


def step_seconds(folder: Path) -> dict[str, float]:
    """Seconds of each step, by label."""
    files = sorted((folder / "work" / "times").glob("*.json"))
    return {record["stage"]: float(record["seconds"]) for record in (json.loads(file.read_text()) for file in files)}


def plan_kills(seconds: dict[str, float], each: int, rng: random.Random) -> list[Kill]:
    """Kills of every kind of step, in the last round that has it, at random moments: of the command, of its whole node,
    of a worker."""
    kills = []
    last = {re.sub(r"round-\d+", "round", step): step for step in sorted(seconds) if step.startswith("round-")}
    for step in sorted(last.values()):
        # The classifier's and the retriever's groups, and the actors, are what can lose a single worker.
        for at in range(each):
            kills.append(Kill(step, KILLED[at % len(KILLED)], rng.uniform(0.05, 0.8)))
    rng.shuffle(kills)
    return kills


@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_a_few_kills_leave_no_trace(beir_folder, tiny_checkpoint, tmp_path):
    run_through(tmp_path / "calm", beir_folder, tiny_checkpoint, [], {}, small_here=True, num_rounds=1)
    # A second into the encoding its actors are about to start.
    kills = [Kill("round-1/train", "trainer"), Kill("round-1/encode-round-1-passages", "node", 1.0)]
    monkey = run_through(tmp_path / "wild", beir_folder, tiny_checkpoint, kills, {}, small_here=True, num_rounds=1)
    assert len(monkey.done) == 2
    assert store_contents(f"{tmp_path}/wild/work") == store_contents(f"{tmp_path}/calm/work")


@pytest.mark.chaos
@pytest.mark.timeout(4 * 3600)
def test_kills_in_every_step_leave_no_trace(beir_folder, tiny_checkpoint, tmp_path, capsys):
    refresh = {"num_rounds": 2, "rounds": {2: {"judges": ["margin", "classifier"]}}}
    run_through(tmp_path / "calm", beir_folder, tiny_checkpoint, [], {}, **refresh)
    seconds = step_seconds(tmp_path / "calm")
    kills = plan_kills(seconds, 3, random.Random(SEED))
    monkey = run_through(tmp_path / "wild", beir_folder, tiny_checkpoint, kills, seconds, **refresh)
    counts: dict[str, dict[str, int]] = {}
    for record in monkey.done:
        of = counts.setdefault(record.kill.step, {})
        of[record.kill.victim] = of.get(record.kill.victim, 0) + 1
    with capsys.disabled():
        print(f"\n{len(monkey.done)} kills hit a running step, {monkey.missed} came too late")  # noqa: T201
        for step, victims in sorted(counts.items()):
            print(f"  {step}: {victims}")  # noqa: T201
    assert len(monkey.done) == len(kills) >= 20
    assert store_contents(f"{tmp_path}/wild/work") == store_contents(f"{tmp_path}/calm/work")
