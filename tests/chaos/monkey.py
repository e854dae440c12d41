"""Runs a command and kills its processes in the middle of chosen steps, until it has ended by itself."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import psutil
from kept_states import has_kept_state

#: ``worker``: one Ray worker; ``trainer``: one of Ray Train's, once it has kept a state; ``driver``: the command;
#: ``node``: the command and every process of its Ray at once; ``interrupt``: Ctrl-C for the command.
Victim = Literal["worker", "trainer", "driver", "node", "interrupt"]
#: After the death of one of these a step goes on.
_SINGLE: tuple[Victim, ...] = ("worker", "trainer")
#: Exit status after Ctrl-C.
INTERRUPTED = 130

_WORKDIR = "working folder: "
_STARTED = re.compile(r"^== (\S+) -> (\S+)$")
#: Share of a step's time: a kill that came too late although it was to come as early as this is the command's own.
_EARLY = 0.1
#: Seconds after which a person presses Ctrl-C again: Python drops one that comes while an object is being finalised.
_AGAIN = 20.0
#: Seconds after which a command that says nothing has hung.
_PATIENCE = 600


@dataclass(frozen=True)
class Kill:
    """A kill to be done: in which step, of what, and how far into the step's usual time (a trainer: at once)."""

    step: str
    victim: Victim
    after: float = 0.0


@dataclass
class Record:
    """A kill that was done while its step was running."""

    kill: Kill
    seconds_in: float
    processes: list[str]


@dataclass
class Monkey:
    """Runs a command again and again until no kill is left and it ends with 0.

    Args:
        command: a raydr command that can be repeated.
        unhurt: the same command as it is run when no kill is left; ``command`` if empty.
        seconds: how long each step takes undisturbed.
        kills: what is to be done; each is tried each time its step starts, until it hits.
        ray_folder: the temp dir of the command's Ray, by which its processes are known.
        start_over: removes what the command has made. A step that outlived its kills does not run again by itself.
        seed: chooses among workers.
    """

    command: list[str]
    seconds: dict[str, float]
    kills: list[Kill]
    ray_folder: str
    start_over: Callable[[], None]
    unhurt: list[str] = field(default_factory=list)
    seed: int = 0
    done: list[Record] = field(default_factory=list)
    #: Kills that came too late: the step had ended.
    missed: int = 0
    log: list[str] = field(default_factory=list)

    def run(self) -> None:
        """Run to the end.

        Raises:
            AssertionError: an undisturbed attempt failed, or a step was never reached.
        """
        rng = random.Random(self.seed)
        # After the death of a worker the step goes on and ends, after the others it starts again: workers come last.
        waiting = sorted(self.kills, key=lambda kill: kill.victim in _SINGLE)
        done_before = -1
        for _ in range(20 + 4 * len(self.kills)):
            ended = self._attempt(waiting, rng)
            self._sweep()
            if ended == 0 and not waiting:
                return
            assert ended in (0, None), f"the command failed by itself with {ended}:\n" + "\n".join(self.log[-60:])
            if ended == 0:
                tried = len(self.done) + self.missed
                assert tried > done_before, f"never reached: {[kill.step for kill in waiting]}"
                done_before = tried
                self.start_over()
        raise AssertionError(f"it did not come to an end; {len(waiting)} kills are left")

    def _attempt(self, waiting: list[Kill], rng: random.Random) -> int | None:
        """One run of the command; returns its exit status, None if it was killed."""
        process = subprocess.Popen(
            self.command if waiting or not self.unhurt else self.unhurt,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"COLUMNS": "200"},
        )
        watchdog = threading.Timer(_PATIENCE, process.kill)
        watchdog.start()
        killed = False
        try:
            for step, place in self._steps(process):
                kill = next((candidate for candidate in waiting if candidate.step == step), None)
                if kill is None or killed:
                    continue
                record = self._kill(process, kill, Path(place), rng)
                killed = process.poll() is not None
                waiting.remove(kill)
                if record is None:
                    self.missed += 1
                    # A step may be too short for a worker to be found.
                    victim = kill.victim if kill.after > _EARLY else "driver"
                    waiting.append(Kill(kill.step, victim, kill.after / 2))
                else:
                    self.done.append(record)
        finally:
            watchdog.cancel()
        status = process.wait()
        return None if killed else status

    def _steps(self, process: subprocess.Popen[str]) -> Iterator[tuple[str, str]]:
        """Name and place of each step as it starts."""
        assert process.stderr is not None
        workdir = ""
        for line in process.stderr:
            self.log.append(line.rstrip())
            if match := _STARTED.match(line.rstrip()):
                yield match.group(1), f"{workdir}/{match.group(2)}"
            workdir = line.rstrip().removeprefix(_WORKDIR) if line.startswith(_WORKDIR) else workdir

    def _kill(self, process: subprocess.Popen[str], kill: Kill, place: Path, rng: random.Random) -> Record | None:
        started = time.monotonic()
        deadline = started + kill.after * self.seconds.get(kill.step, 1.0)
        victims: list[psutil.Process] = []
        while not victims:
            # How far a step has come can only be told by the clock.
            time.sleep(max(0.0, deadline - time.monotonic()))
            if (place / "manifest.json").exists() or process.poll() is not None:
                return None
            if kill.victim != "trainer" or has_kept_state(place.with_name(f"{place.name}.training")):
                victims = self._victims(process, kill.victim, rng)
            deadline = time.monotonic() + 0.05
        names = [_name(victim) for victim in victims]
        if kill.victim == "interrupt":
            status = _interrupt(process)
            rest = process.stderr.read() if process.stderr is not None else ""
            log = "\n".join([*self.log[-20:], "Ctrl-C", rest])
            assert status == INTERRUPTED, f"after Ctrl-C it ended with {status}:\n{log}"
            return Record(kill, time.monotonic() - started, names)
        for victim in victims:
            _send(victim, signal.SIGSTOP)
        # Stopped, the step cannot have ended between this look and the kill.
        running = not (place / "manifest.json").exists()
        for victim in victims:
            _send(victim, signal.SIGKILL)
        if kill.victim not in _SINGLE:
            process.wait()
        if not running:
            return None
        return Record(kill, time.monotonic() - started, names)

    def _victims(self, process: subprocess.Popen[str], victim: Victim, rng: random.Random) -> list[psutil.Process]:
        driver = psutil.Process(process.pid)
        if victim in ("driver", "interrupt"):
            return [driver]
        ours = self._processes()
        if victim == "node":
            return [driver, *ours]
        if victim == "trainer":
            busy = [process for process in ours if "RayTrainWorker" in _name(process)]
        else:
            busy = [
                process
                for process in ours
                if _name(process).startswith("ray::") and not _name(process).startswith(_SERVICES)
            ]
        return [rng.choice(sorted(busy, key=lambda process: process.pid))] if busy else []

    def _processes(self) -> list[psutil.Process]:
        """The processes of the command's Ray: those that name its folder, and their children."""
        processes = []
        for process in psutil.process_iter():
            try:
                family = [process, *process.parents()]
                if any(self.ray_folder in " ".join(member.cmdline()) for member in family):
                    processes.append(process)
            except psutil.Error:
                # It has ended meanwhile.
                continue
        return processes

    def _sweep(self) -> None:
        """Remove what a killed driver has left behind."""
        for process in self._processes():
            _send(process, signal.SIGKILL)


def _interrupt(process: subprocess.Popen[str]) -> int:
    """Press Ctrl-C until the command ends; its exit status."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        process.send_signal(signal.SIGINT)
        try:
            return process.wait(_AGAIN)
        except subprocess.TimeoutExpired:
            assert time.monotonic() < deadline, "the command does not end after Ctrl-C"


#: Helpers, Ray's and ours, are not what does the work: that one of them ends says nothing. With Ray Train's controller
#: the command ends (tests/distributed).
_SERVICES = tuple(
    f"ray::{name}"
    for name in (
        "IDLE",
        "DashboardAgent",
        "RuntimeEnvAgent",
        "PlacementGroupCleaner",
        "PreemptionWatcher",
        "TrainController",
        "SynchronizationActor",
        "_StatsActor",
        "_AutoscalingCoordinatorActor",
        "_Board",
    )
)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _name(process: psutil.Process) -> str:
    return " ".join(_command(process))[:60]


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        # It was quicker.
        return
