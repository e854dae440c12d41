"""What a checkpoint costs: seconds that training stops for (the copy in host memory), and that the thread writes.

By the clock, and of a core, which other work on the machine hardly changes.

A network of a BERT-base's shape with random weights and moments, and a best state beside it; two towers are twice that.

    python -m benchmarks.checkpoint --json checkpoint.json
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.shapes import SHAPES, save_checkpoint
from benchmarks.timing import write_report
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import DualEncoder
from raydr.models.optimizer_config import OptimizerConfig
from raydr.stages.member import LoneMember
from raydr.store.folder import Folder
from raydr.training.checkpoint import BEST, PROGRESS, Save
from raydr.training.optimization import Optimization


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="bert-base", choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as scratch:
        checkpoint = save_checkpoint(SHAPES[arguments.shape], "", Path(scratch) / "start")
        model = DualEncoder.from_config(ModelConfig(checkpoint=checkpoint), seed=0)
        optimization = Optimization(model, OptimizerConfig(), 100, torch.float32)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimization.step()
        seconds, size = measure(optimization, Path(scratch) / "states", arguments.repeats)
    figures = {name: statistics.median(found) for name, found in seconds.items()} | {"gigabytes": size / 1e9}
    for name, value in figures.items():
        print(f"{name:16} {value:8.2f}")
    write_report(arguments.json, "checkpoint", vars(arguments), figures)


def measure(optimization: Optimization, folder: Path, repeats: int) -> tuple[dict[str, list[float]], int]:
    """Seconds that training waits for each state, and that its writing takes, and bytes of one."""
    best = optimization.learnt()
    seconds: dict[str, list[float]] = {"copy": [], "copy, of a core": [], "write": [], "write, of a core": []}

    def copy() -> Save:
        own = optimization.copy()

        def save(place: Path) -> None:
            own(place)
            save_file(best, place / BEST)
            (place / PROGRESS).write_text("{}")

        return save

    with closing(LoneMember(Folder(str(folder)), torch.device("cpu"))) as member:
        # The first one finds no memory that was used before.
        for step in range(repeats + 1):
            times = [(time.perf_counter(), time.process_time())]
            member.report({"global_step": step}, copy)
            times.append((time.perf_counter(), time.process_time()))
            member.wait()
            times.append((time.perf_counter(), time.process_time()))
            for at, name in enumerate(("copy", "write")):
                clock, core = (after - before for before, after in zip(times[at], times[at + 1], strict=True))
                seconds[name].append(clock)
                seconds[f"{name}, of a core"].append(core)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {name: found[1:] for name, found in seconds.items()}, size


if __name__ == "__main__":
    main()
