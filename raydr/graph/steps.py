"""Steps of a pipeline as a graph: each makes one artefact, at a place that its settings and inputs decide.

A step's key hashes its label and what determines its result: its settings and the keys of the steps that it needs. The
artefact lies under that key, so that a changed setting leads to another place, nothing is overwritten, pipelines that
agree share their steps, and whether a step is done can be seen without running anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol

from raydr.runtime.capacity import is_on_demand
from raydr.runtime.cluster import STEP_THREAD
from raydr.store.artifact import DONE, MANIFEST, PLAN, Artifact, fingerprint_of, flatten
from raydr.store.folder import Folder

#: Digits of the key in a folder's name.
_KEY_DIGITS = 10
#: Steps that run at a time, at most.
_MOST_AT_ONCE = 4

#: What is at a step's place: a finished artefact, a part of one, or nothing.
State = Literal["done", "begun", "to do"]
#: CPUs and GPUs by Ray's names.
Resources = Mapping[str, float]


class Feed(Protocol):
    """Tells steps in other threads how far one has come."""

    def close(self) -> None:
        """No more comes."""


@dataclass(frozen=True, eq=False)
class Step:
    """One artefact of a pipeline.

    Args:
        label: what it is called in tables and in MLflow, for example ``round-2/train``; several steps may share one.
        root: the folder below which it lies.
        kind: of the artefact.
        settings: what its result depends on, besides what it needs; JSON values.
        needs: the steps whose artefacts it reads, by role.
        make: makes the artefact in a folder, from the folders of what it needs.
        demand: resources without which it cannot go on.
        work: what there is to do, for people.
        group: a number that orders steps and lets a pipeline stop early; rounds of a refresh.
        temporary: its artefact is only needed by other steps, and is not made again for its own sake.
        after: steps that must have ended before, although their artefacts are not read.
        follows: roles of what it needs that it can read while they are being made.
        feed: through which steps that follow this one learn what there is; closed when this one has ended.
    """

    label: str
    root: Folder
    kind: str
    settings: dict[str, Any]
    needs: dict[str, Step]
    make: Callable[[Folder, dict[str, Folder]], Artifact]
    demand: Resources = field(default_factory=lambda: {"CPU": 1.0})
    work: str = ""
    group: int = 0
    temporary: bool = False
    after: tuple[Step, ...] = ()
    follows: frozenset[str] = frozenset()
    feed: Feed | None = None

    @cached_property
    def key(self) -> str:
        needs = {role: step.key for role, step in sorted(self.needs.items())}
        return fingerprint_of({"label": self.label, "kind": self.kind, "settings": self.settings, "needs": needs})

    @cached_property
    def folder(self) -> Folder:
        return self.root / f"{self.label}-{self.key[:_KEY_DIGITS]}"

    def state(self) -> State:
        """What is at the step's place now."""
        if self.folder.exists(MANIFEST):
            return "done"
        return "begun" if self.folder.exists(PLAN) else "to do"

    def num_parts_done(self) -> int:
        """Parts that an interrupted run has left."""
        return len(self.folder.files(DONE))

    def open(self) -> Artifact:
        """The finished artefact."""
        return Artifact.open(self.folder, self.kind)

    def run(self) -> Artifact:
        """Make the artefact, or go on making it."""
        return self.make(self.folder, {role: step.folder for role, step in self.needs.items()})

    def describe(self) -> dict[str, Any]:
        """What the key was made of, so that a later plan can say what changed."""
        return {
            "key": self.key,
            "settings": self.settings,
            "needs": {role: {"label": step.label, "key": step.key} for role, step in sorted(self.needs.items())},
        }


def required(steps: Sequence[Step]) -> list[Step]:
    """The steps that have to run, in order: those not done, and what they need that is not there any more.

    A temporary step runs only if a step that runs needs it.
    """
    wanted: set[str] = set()
    for step in reversed(steps):
        needed = not step.temporary or any(
            other.key in wanted and step.key in {one.key for one in other.needs.values()} for other in steps
        )
        if needed and step.state() != "done":
            wanted.add(step.key)
    return [step for step in steps if step.key in wanted]


def reason(step: Step, before: Mapping[str, Any] | None) -> str:
    """Why a step has to run, given how :meth:`Step.describe` described the step of that label the last time."""
    if step.state() == "begun":
        return f"was interrupted, {step.num_parts_done()} parts are there"
    if before is None:
        return "new"
    if before["key"] == step.key:
        return "its artefact is not there any more" if step.temporary else "was not reached"
    old, new = flatten(before["settings"]), flatten(step.settings)
    changed = [
        f"{name}: was {old.get(name)!r}, is {new.get(name)!r}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    needed = {role: other["key"] for role, other in before["needs"].items()}
    changed += [f"{other.label} changes" for role, other in sorted(step.needs.items()) if needed.get(role) != other.key]
    return "; ".join(changed) or "its inputs are other ones"


def run_steps(
    steps: Sequence[Step],
    capacity: Resources,
    do: Callable[[Step], None],
    wanted: Callable[[Step], bool] = lambda step: True,
) -> None:
    """Run steps side by side where their needs and the capacity allow it.

    A step is started only if what it demands is free together with the demands of those that run, so that no two wait
    for each other's resources; one that follows another starts beside it if there is room, else after it. One that
    demands more than there is runs alone. A step that is alone anyway runs in the calling thread, where Ctrl-C
    reaches it.

    Args:
        steps: in an order in which they could run one after the other; what else they need is done.
        capacity: what there is.
        do: runs one step, in a thread.
        wanted: asked before a step is started; if not, it and what needs it are left out.

    Raises:
        Exception: the first one that a step raised, after those that ran beside it have ended.
    """
    waiting = list(steps)
    left_out: set[str] = set()
    running: dict[Future[None], Step] = {}
    pool = ThreadPoolExecutor(max_workers=_MOST_AT_ONCE, thread_name_prefix=STEP_THREAD)
    failure: BaseException | None = None
    try:
        while (waiting and failure is None) or running:
            started = [] if failure is not None else _startable(waiting, running.values(), left_out, capacity, wanted)
            waiting = [step for step in waiting if step not in started and step.key not in left_out]
            if len(started) == 1 and not running:
                do(started[0])
                _close(started[0])
                continue
            running |= {pool.submit(do, step): step for step in started}
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                failure = failure or future.exception()
                # Only now, so that what fails for want of more does not hide the reason.
                _close(running.pop(future))
    finally:
        # After Ctrl-C the threads end with the process; nobody waits for them, and they must not wait for more.
        for step in steps:
            _close(step)
        pool.shutdown(wait=not running, cancel_futures=True)
    if failure is not None:
        raise failure


def _close(step: Step) -> None:
    if step.feed is not None:
        step.feed.close()


def _startable(
    waiting: Iterable[Step],
    running: Iterable[Step],
    left_out: set[str],
    capacity: Resources,
    wanted: Callable[[Step], bool],
) -> list[Step]:
    """The steps to start now; what is not wanted is added to ``left_out``."""
    busy = list(running)
    unfinished = {step.key for step in [*busy, *waiting]}
    started: list[Step] = []
    following: list[Step] = []
    for step in waiting:
        needs = {other.key for other in step.needs.values()}
        if needs & left_out:
            left_out.add(step.key)
        if step.key in left_out or (needs | {other.key for other in step.after}) & unfinished:
            if step.follows and step.key not in left_out:
                following.append(step)
            continue
        if not wanted(step):
            left_out.add(step.key)
        elif _fits(step, busy, capacity):
            busy.append(step)
            started.append(step)
    # Those that would often wait for the one they follow come last.
    for step in following:
        blocking = {other.key for role, other in step.needs.items() if role not in step.follows}
        blocking |= {other.key for other in step.after}
        followed = {step.needs[role].key for role in step.follows}
        now = {other.key for other in busy}
        if (
            not blocking & unfinished
            and not (followed & unfinished) - now
            and wanted(step)
            and _fits(step, busy, capacity)
        ):
            busy.append(step)
            started.append(step)
    return started


def _fits(step: Step, busy: Sequence[Step], capacity: Resources) -> bool:
    if not busy:
        return True
    if len(busy) >= _MOST_AT_ONCE:
        return False
    if is_on_demand(capacity) and step.kind == "run" and any(other.kind == "run" for other in busy):
        # Nobody knows how far the cluster grows: each could hold a part of it, and wait for the rest for ever.
        return False
    return all(
        sum(other.demand.get(name, 0.0) for other in busy) + amount <= capacity.get(name, 0.0) + 1e-6
        for name, amount in step.demand.items()
        # What the cluster has none of cannot be waited for.
        if capacity.get(name, 0.0)
    )
