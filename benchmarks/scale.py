"""Growth of each stage's time, and of the driver's memory, with the size of the corpus.

Synthetic passages pass through prepare, encode with a stub, index, search and mine. An import of synthetic vectors and
a training on the mined negatives follow. Indexes are exact, and IVF trained once on a sample. Each size runs in its own
process with its own Ray. This process measures, for each stage, the peak memory of the driver, of all processes and of
Ray's object store, and the disk space at the end. It can kill the process in the middle of an artefact; the next
process resumes, and the seconds of both count.

    python -m benchmarks.scale --passages 200000 2000000 --kill corpus=50 passages=50 --json scale.json
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.processor_time import ProcessorTime
from benchmarks.scale_run import common_arguments
from benchmarks.timing import write_report
from raydr.store.building import DONE

MIB = 2**20
#: Maximal ratio of the driver's memory for the largest corpus to that for the smallest (docs/scale.md).
BUDGET = 1.10
#: Seconds between two samples of the process, and of all its descendants.
_OFTEN, _SELDOM = 0.05, 1.0


@dataclass
class Peak:
    """Peak memory in bytes, and CPU time, of a phase."""

    #: Resident memory of the process, with the touched pages of mapped files and of the object store.
    driver: int = 0
    #: Proportional memory (PSS) summed over the process and its descendants.
    total: int = 0
    #: CPU seconds of all these processes; the last second of an ended process may be missing.
    cpu: float = 0.0
    #: Memory of Ray's object store, in this phase or before.
    object_store: int = 0


class Watch:
    """A sampler of successive processes, in a thread; it can kill them.

    Args:
        scratch: folder of the processes' artefacts.
        kills: by artefact, the number of finished parts at which the process is killed.
    """

    def __init__(self, scratch: Path, kills: Mapping[str, int]) -> None:
        #: By phase, in order.
        self.peaks: dict[str, Peak] = {}
        #: Remaining kills, by the folder of the records of finished parts.
        self._kills = {scratch / name / DONE: num for name, num in kills.items()}
        self._phase = ""
        self._cpu: ProcessorTime | None = None
        self._cpu_before = 0.0

    def begin(self, phase: str) -> None:
        """Assign further samples to this phase."""
        self._cpu_before = self._cpu_seconds()
        self.peaks.setdefault(phase, Peak())
        self._phase = phase

    def end(self) -> None:
        """End the phase; ignore samples until the next phase."""
        if self._phase:
            self.peaks[self._phase].cpu += self._cpu_seconds() - self._cpu_before
        self._phase = ""

    def _cpu_seconds(self) -> float:
        """Return the CPU time of the sampled process so far."""
        assert self._cpu is not None
        self._cpu.look()
        return self._cpu.seconds

    @contextmanager
    def watching(self, pid: int) -> Iterator[None]:
        """Sample a process until the block ends."""
        self._cpu = ProcessorTime(pid)
        stop = threading.Event()
        thread = threading.Thread(target=self._sample, args=(self._cpu, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.end()

    def _sample(self, cpu: ProcessorTime, stop: threading.Event) -> None:
        all_sampled_at = 0.0
        while not stop.wait(_OFTEN):
            peak = self.peaks.get(self._phase)
            if peak is None:
                continue
            try:
                peak.driver = max(peak.driver, cpu.process.memory_info().rss)
                if time.monotonic() - all_sampled_at >= _SELDOM:
                    all_sampled_at = time.monotonic()
                    family = cpu.look()
                    peak.total = max(peak.total, sum(map(_proportional, family)))
                    peak.object_store = max([peak.object_store, *map(_object_store, family)])
                for folder, num in self._kills.items():
                    if folder.exists() and len(list(folder.iterdir())) >= num:
                        del self._kills[folder]
                        cpu.process.kill()
                        break
            except psutil.NoSuchProcess:
                return


@dataclass
class Size:
    """The measured cost of a corpus size."""

    passages: int
    seconds: dict[str, float] = field(default_factory=dict)
    peaks: dict[str, Peak] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    num_kills: int = 0

    def spent(self, stage: str, seconds: float) -> None:
        """Add seconds to a stage, which may have been killed and resumed."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds

    @property
    def driver(self) -> int:
        """The driver's peak memory over all stages."""
        return max(peak.driver for peak in self.peaks.values())

    @property
    def object_store(self) -> int:
        return max(peak.object_store for peak in self.peaks.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[common_arguments()]
    )
    parser.add_argument("--passages", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument(
        "--scratch", default="", help="folder on a disk with room for the artefacts; by default the system's"
    )
    parser.add_argument(
        "--kill", nargs="*", default=[], metavar="ARTEFACT=PARTS", help="kill the driver after this number of parts"
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
    """Run a size to its end and measure it.

    Raises:
        SystemExit: the process failed; its messages say why.
    """
    size = Size(passages)
    # A short path: it holds Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="sc-", dir=arguments.scratch or None) as scratch:
        command = [sys.executable, "-m", "benchmarks.scale_run", "--passages", str(passages), "--scratch", scratch]
        for name in vars(common_arguments().parse_args([])):
            command += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
        watch = Watch(Path(scratch), kills_of(arguments.kill))
        while status := _run(command, watch, size):
            if status != -signal.SIGKILL:
                sys.exit(f"the run of {passages:,} passages failed with exit code {status}; see above")
            size.num_kills += 1
    size.peaks = watch.peaks
    return size


def _run(command: list[str], watch: Watch, size: Size) -> int:
    """Run a process to its end, record its messages, and return its exit status."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    stage, begun = "", 0.0
    with watch.watching(process.pid):
        for line in process.stdout:
            message = json.loads(line)
            if "begin" in message:
                stage, begun = message["begin"], time.monotonic()
                watch.begin(stage)
            elif "end" in message:
                watch.end()
                size.spent(stage, time.monotonic() - begun)
                peak = watch.peaks[stage]
                print(
                    f"{size.passages:,} passages, {stage}: {size.seconds[stage]:,.0f} s, {peak.cpu:,.0f} CPU seconds, "
                    f"driver {peak.driver / MIB:,.0f} MiB, all {peak.total / MIB:,.0f} MiB",
                    flush=True,
                )
                stage = ""
            else:
                size.facts = message["facts"]
        status = process.wait()
    if stage:
        size.spent(stage, time.monotonic() - begun)
    return status


def kills_of(arguments: Sequence[str]) -> dict[str, int]:
    """
    >>> kills_of(["passages=50"])
    {'passages': 50}
    """
    return {name: int(num) for name, _, num in (text.partition("=") for text in arguments)}


def growth(sizes: Sequence[Size], stage: str) -> float:
    """Return the exponent with which a stage's CPU time grows in the corpus size, between the two largest sizes.

    >>> sizes = [Size(num, peaks={"encode": Peak(cpu=num / 50)}) for num in (100, 400)]
    >>> growth(sizes, "encode"), growth(sizes[:1], "encode")
    (1.0, nan)
    """
    if len(sizes) < 2:
        return math.nan
    small, large = sizes[-2:]
    times = large.peaks[stage].cpu / small.peaks[stage].cpu
    return math.log(times) / math.log(large.passages / small.passages)


def _proportional(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        # The process has ended since it was listed.
        return 0


def _object_store(process: psutil.Process) -> int:
    """Return the written bytes of the shared memory file in which a raylet keeps the object store."""
    try:
        if process.name() != "raylet":
            return 0
        links = [link for link in Path(f"/proc/{process.pid}/fd").iterdir() if "/plasma" in str(link.readlink())]
        return sum(link.stat().st_blocks * 512 for link in links)
    except (psutil.Error, OSError):
        return 0


def print_stages(sizes: list[Size]) -> None:
    """Print a line for each stage: seconds, CPU seconds, peak of the driver and of all processes, for each size."""
    heads = ("seconds", "CPU seconds", "driver MiB", "all MiB")
    print(f"{'':16}" + "".join(f"{head:>{12 * len(sizes)}}" for head in heads) + f"{'driver':>11}{'CPU':>7}")
    print(f"{'stage':16}" + "".join(f"{size.passages:12,}" for size in sizes * 4) + f"{'last/first':>11}{'∝ N^':>7}")
    for stage in sizes[0].seconds:
        peaks = [size.peaks[stage] for size in sizes]
        cells = [f"{size.seconds[stage]:12.1f}" for size in sizes] + [f"{peak.cpu:12.1f}" for peak in peaks]
        cells += [f"{peak.driver / MIB:12,.1f}" for peak in peaks] + [f"{peak.total / MIB:12,.0f}" for peak in peaks]
        ratio = peaks[-1].driver / peaks[0].driver
        print(f"{stage:16}" + "".join(cells) + f"{ratio:11.3f}{growth(sizes, stage):7.2f}")


def print_sizes(sizes: list[Size]) -> None:
    """Print a paragraph for each size: object store, disk, and shares that check the results."""
    for size in sizes:
        disk = {name: f"{count / MIB:,.0f}" for name, count in size.facts["disk"].items()}
        shares = {name: value for name, value in size.facts.items() if isinstance(value, float)}
        print(
            f"{size.passages:,} passages in {size.facts['parts']:,} parts: {sum(size.seconds.values()):,.0f} s, "
            f"{size.num_kills} kills, object "
            f"store at most {size.object_store / MIB:,.0f} MiB, disk MiB: "
            + ", ".join(f"{name} {count}" for name, count in disk.items())
            + "; "
            + ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        )


if __name__ == "__main__":
    main()
