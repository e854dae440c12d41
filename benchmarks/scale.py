"""Does the driver's memory stay the same when the corpus grows? The whole chain at several sizes with a stub encoder.

Made passages go through prepare, encode, index (IVF, its centroids trained once on a sample, and exact), search and
mine. Each size runs in a process of its own with a Ray of its own, and is watched from here: the most resident memory
of the driver in each stage, of all processes together, of Ray's object store, and what lies on disk at the end.

    python -m benchmarks.scale --passages 200000 2000000 --json scale.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.scale_run import add_arguments
from benchmarks.timing import write_report

MIB = 2**20
#: The largest corpus's driver may have so much more memory than the smallest's (docs/scale.md).
BUDGET = 1.10
#: Seconds between two looks at the process itself, and at all of them.
_OFTEN, _SELDOM = 0.05, 1.0


@dataclass
class Peak:
    """Most bytes seen in one phase."""

    #: Resident memory of the process: mapped files and the object store count as far as it has touched them.
    driver: int = 0
    #: Proportional memory (PSS) summed over the process and its descendants.
    total: int = 0
    #: Memory that Ray's object store has taken, in this phase or before.
    object_store: int = 0


class Watch:
    """Samples one process in a thread of this one, which must not be the process itself.

    Args:
        pid: the process.
    """

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        #: By phase, in the order of the phases.
        self.peaks: dict[str, Peak] = {}
        self._phase = ""

    def begin(self, phase: str) -> None:
        """What is seen from now on belongs to this phase."""
        self.peaks[phase] = Peak()
        self._phase = phase

    def end(self) -> None:
        """What is seen until the next phase belongs to none."""
        self._phase = ""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sample until the block ends."""
        stop = threading.Event()
        thread = threading.Thread(target=self._sample, args=(stop,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _sample(self, stop: threading.Event) -> None:
        looked_at_all = 0.0
        while not stop.wait(_OFTEN):
            peak = self.peaks.get(self._phase)
            if peak is None:
                continue
            try:
                peak.driver = max(peak.driver, self.process.memory_info().rss)
                if time.monotonic() - looked_at_all >= _SELDOM:
                    looked_at_all = time.monotonic()
                    family = [self.process, *self.process.children(recursive=True)]
                    peak.total = max(peak.total, sum(map(_proportional, family)))
                    peak.object_store = max(peak.object_store, *map(_object_store, family))
            except psutil.NoSuchProcess:
                return


@dataclass
class Size:
    """What one size took."""

    passages: int
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, Peak] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def driver(self) -> int:
        """The most memory that the driver had in any stage."""
        return max(peak.driver for peak in self.peaks.values())

    @property
    def object_store(self) -> int:
        return max(peak.object_store for peak in self.peaks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, nargs="+", default=[200_000, 2_000_000])
    add_arguments(parser)
    parser.add_argument(
        "--scratch", default="", help="folder on a disk with room for the artefacts; the system's if empty"
    )
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    sizes = [run_size(arguments, passages) for passages in arguments.passages]
    print_stages(sizes)
    print_sizes(sizes)
    first, last = sizes[0], sizes[-1]
    ratio = last.driver / first.driver
    if len(sizes) > 1:
        print(
            f"driver's peak, {last.passages:,} against {first.passages:,} passages: {ratio:.3f}× "
            f"(budget {BUDGET:.2f}×: {'kept' if ratio <= BUDGET else 'NOT KEPT'})"
        )
    write_report(arguments.json, "scale", vars(arguments), {"sizes": [asdict(size) for size in sizes], "ratio": ratio})
    if ratio > BUDGET:
        sys.exit(1)


def run_size(arguments: argparse.Namespace, passages: int) -> Size:
    """Run one size to its end and watch it.

    Raises:
        SystemExit: it failed; its own messages say why.
    """
    size = Size(passages)
    # Ray's sockets lie in it, whose paths must be short.
    with tempfile.TemporaryDirectory(prefix="sc-", dir=arguments.scratch or None) as scratch:
        command = [sys.executable, "-m", "benchmarks.scale_run", "--passages", str(passages), "--scratch", scratch]
        for name in ("queries", "part_rows", "shard_rows", "train_rows", "top_k", "nprobe", "cpus", "object_store_gib"):
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        watch = Watch(process.pid)
        assert process.stdout is not None
        with watch.watching():
            for line in process.stdout:
                message = json.loads(line)
                if "begin" in message:
                    watch.begin(message["begin"])
                elif "end" in message:
                    watch.end()
                    size.seconds[message["end"]] = message["seconds"]
                else:
                    size.facts = message["facts"]
        if process.wait():
            sys.exit(f"the run of {passages:,} passages failed with exit code {process.returncode}; see above")
    size.peaks = watch.peaks
    return size


def _proportional(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        # It has ended since it was listed.
        return 0


def _object_store(process: psutil.Process) -> int:
    """Bytes of the shared memory file that a raylet keeps the object store in, as far as it was ever written."""
    try:
        if process.name() != "raylet":
            return 0
        held = [link for link in Path(f"/proc/{process.pid}/fd").iterdir() if "/plasma" in str(link.readlink())]
        return sum(link.stat().st_blocks * 512 for link in held)
    except (psutil.Error, OSError):
        return 0


def print_stages(sizes: list[Size]) -> None:
    """A line a stage: seconds, the driver's peak, the peak of all processes; the sizes side by side."""
    groups = "".join(f"{head:>{12 * len(sizes)}}" for head in ("seconds", "driver MiB", "all MiB"))
    print(f"{'':16}{groups}{'driver':>11}")
    print(f"{'stage':16}" + "".join(f"{size.passages:12,}" for size in sizes * 3) + f"{'last/first':>11}")
    for stage in sizes[0].seconds:
        peaks = [size.peaks[stage] for size in sizes]
        cells = [f"{size.seconds[stage]:12.1f}" for size in sizes]
        cells += [f"{peak.driver / MIB:12,.1f}" for peak in peaks] + [f"{peak.total / MIB:12,.0f}" for peak in peaks]
        print(f"{stage:16}" + "".join(cells) + f"{peaks[-1].driver / peaks[0].driver:11.3f}")


def print_sizes(sizes: list[Size]) -> None:
    """A paragraph a size: object store, disk, and whether what was found makes sense."""
    for size in sizes:
        disk = {name: f"{count / MIB:,.0f}" for name, count in size.facts["disk"].items()}
        shares = {name: value for name, value in size.facts.items() if isinstance(value, float)}
        print(
            f"{size.passages:,} passages in {size.facts['parts']:,} parts: {sum(size.seconds.values()):,.0f} s, object "
            f"store at most {size.object_store / MIB:,.0f} MiB, disk MiB: "
            + ", ".join(f"{name} {count}" for name, count in disk.items())
            + "; "
            + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        )


if __name__ == "__main__":
    main()
