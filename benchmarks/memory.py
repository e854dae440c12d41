"""Memory of a process and of all that it started, watched from outside by phase."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

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


class ProcessorTime:
    """Seconds of a core that a process and all that it has started take, seen from outside until it ends.

    On a machine that does nothing else they are at most cores times the time by the clock; others' work lengthens the
    time by the clock, and these hardly.
    """

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self._seen: dict[tuple[int, float], float] = {}

    def look(self) -> None:
        """Note what each process has taken: of one that has ended, what it had at the last look."""
        try:
            family = [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for one in family:
            with suppress(psutil.NoSuchProcess):
                spent = one.cpu_times()
                self._seen[one.pid, one.create_time()] = spent.user + spent.system

    @property
    def seconds(self) -> float:
        return sum(self._seen.values())


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
        held = [one for one in Path(f"/proc/{process.pid}/fd").iterdir() if "/plasma" in str(one.readlink())]
        return sum(one.stat().st_blocks * 512 for one in held)
    except (psutil.Error, OSError):
        return 0
