"""CPU time of a process and its descendants, measured from outside."""

from __future__ import annotations

from contextlib import suppress

import psutil


class ProcessorTime:
    """CPU seconds of a process and its descendants.

    Other work on the machine lengthens the wall-clock time, but hardly changes CPU seconds.
    """

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self._seen: dict[tuple[int, float], float] = {}

    def look(self) -> list[psutil.Process]:
        """Record the CPU time of each process, and return the running processes; an ended process keeps its last."""
        try:
            family = [self.process, *self.process.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []
        for process in family:
            with suppress(psutil.NoSuchProcess):
                spent = process.cpu_times()
                self._seen[process.pid, process.create_time()] = spent.user + spent.system
        return family

    @property
    def seconds(self) -> float:
        return sum(self._seen.values())
