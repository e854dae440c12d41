"""A speedrun: seconds from raw files to a dense retriever with R@20 of 0.80 on dev, by stage.

Timing covers the command ``raydr evaluate CONFIG --split dev --system trained`` in a new folder: reading files,
negatives, training, encoding all passages, index, search, measures, and the start of Python and Ray. The row ``start``
is the time outside the stages. ``processor`` is the CPU time of all processes, which depends little on other work on
the machine. docs/speedrun.md has the rules and the records.

    python -m benchmarks.speedrun configs/openqa-wiki.yaml --set train.num_epochs=2 --json record.json
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.processor_time import ProcessorTime
from benchmarks.timing import write_report
from raydr import RunConfig
from raydr.pipeline.running import read_times
from raydr.pipeline.session import open_session
from raydr.store.folder import Folder

SYSTEM = "trained"
MEASURE = "recall@20"
#: Required value on dev.
GOAL = 0.80
#: Seconds between two samples of CPU time.
_LOOK_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="configs/openqa-wiki.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    parser.add_argument("--workdir", default="", help="new folder, which is kept; by default a temporary folder")
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="speedrun-") as scratch:
        workdir = arguments.workdir or Path(scratch) / "work"
        settings = [*arguments.overrides, f"workdir={workdir}", "tracking.enabled=false"]
        figures = run(arguments.config, settings)
    write_report(arguments.json, "speedrun", vars(arguments), figures)


def run(config: str, settings: list[str]) -> dict[str, object]:
    """Run the command once, print the table, and return the figures."""
    chosen = RunConfig.load(config, settings)
    split = chosen.data.dev_split
    command = [sys.executable, "-m", "raydr", "evaluate", config, "--split", split, "--system", SYSTEM]
    changed = [word for setting in settings for word in ("--set", setting)]
    started = time.perf_counter()
    running = subprocess.Popen([*command, *changed])
    processor = ProcessorTime(running.pid)
    while running.poll() is None:
        processor.look()
        time.sleep(_LOOK_S)
    seconds = time.perf_counter() - started
    if running.returncode:
        raise subprocess.CalledProcessError(running.returncode, running.args)
    stages = {time.stage: time.seconds for time in read_times(Folder(chosen.workdir))}
    # Stages that ran side by side may take more time together than the command.
    stages["start"] = max(0.0, seconds - sum(stages.values()))
    reached = measured(chosen, split)
    for stage, spent in sorted(stages.items(), key=lambda item: -item[1]):
        print(f"{stage:28} {spent:8.1f} s {spent / seconds:8.1%}")
    verdict = "a record if it is the quickest" if reached >= GOAL else f"no record: {GOAL:.2f} is the goal"
    print(f"{'all':28} {seconds:8.1f} s    {MEASURE} on {split} {reached:.4f}: {verdict}")
    print(f"{'processor':28} {processor.seconds:8.1f} s of a core")
    return {"seconds": seconds, "processor": processor.seconds, "stages": stages, MEASURE: reached}


def measured(config: RunConfig, split: str) -> float:
    """Return the measure of the finished run."""
    with open_session(config) as session:
        evaluation = session.inventory.open(session.recipe.evaluation(split, [SYSTEM]))
    return float(evaluation.info["means"][SYSTEM][MEASURE])


if __name__ == "__main__":
    main()
