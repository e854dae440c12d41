"""Processor time of a process and of all that it has started, seen from outside."""

from __future__ import annotations

from contextlib import suppress

import psutil


class ProcessorTime:
    """Seconds of a core that a process and its descendants take.

    On a machine that does nothing else they are at most cores times the time by the clock; others' work lengthens the
    time by the clock, and these hardly.
    """

    def __init__(self, pid: int) -> None:
        self.process = psutil.Process(pid)
        self._seen: dict[tuple[int, float], float] = {}

    def look(self) -> list[psutil.Process]:
        """Note what each process has taken: of one that has ended, what it had at the last look; the living ones."""
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
