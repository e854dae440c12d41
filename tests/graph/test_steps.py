"""The graph of steps: keys, what has to run and why, and running side by side."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from raydr.graph.steps import Step, reason, required, run_steps
from raydr.runtime.capacity import ON_DEMAND
from raydr.store.artifact import Artifact, Building, Identity, begin
from raydr.store.folder import Folder


def step(root: Folder, label: str, needs: tuple[Step, ...] = (), cpus: float = 1, **fields: Any) -> Step:
    settings = fields.pop("settings", {})

    def make(folder: Folder, inputs: dict[str, Folder]) -> Artifact:
        with begin(folder, Identity(kind="thing", config={"label": label})) as making:
            return making.finish() if isinstance(making, Building) else making

    return Step(label, root, "thing", settings, {one.label: one for one in needs}, make, demand={"CPU": cpus}, **fields)


@pytest.fixture
def root(tmp_path) -> Folder:
    return Folder(str(tmp_path))


def test_the_key_depends_on_settings_and_on_what_is_needed(root):
    first, other = step(root, "a", settings={"x": 1}), step(root, "a", settings={"x": 2})
    assert first.key == step(root, "a", settings={"x": 1}).key
    assert first.key != other.key
    assert step(root, "b", (first,)).key != step(root, "b", (other,)).key


def test_what_is_done_does_not_run_again_and_a_change_runs_what_depends_on_it(root):
    def chain(x: int) -> list[Step]:
        a = step(root, "a")
        b = step(root, "b", (a,), settings={"x": x})
        return [a, b, step(root, "c", (b,))]

    before = chain(1)
    assert required(before) == before
    for one in before:
        one.run()
    assert required(before) == []
    after = chain(2)
    assert [one.label for one in required(after)] == ["b", "c"]
    assert reason(after[1], before[1].describe()) == "x: was 1, is 2"
    assert reason(after[2], before[2].describe()) == "b changes"
    assert reason(after[2], None) == "new"


def test_a_pruned_temporary_step_runs_only_for_a_step_that_runs(root):
    vectors = step(root, "vectors", temporary=True)
    index = step(root, "index", (vectors,), temporary=True)
    run = step(root, "run", (index,))
    for one in (vectors, index, run):
        one.run()
    index.folder.remove()
    vectors.folder.remove()
    assert required([vectors, index, run]) == []
    run.folder.remove()
    assert required([vectors, index, run]) == [vectors, index, run]


def test_steps_side_by_side_never_demand_more_than_there_is(root):
    lock, busy, most, order = threading.Lock(), [0.0], [0.0], []
    a = step(root, "a", cpus=2)
    b, c = step(root, "b", (a,)), step(root, "c", (a,))
    big = step(root, "big", (a,), cpus=8)
    steps = [a, b, c, big, step(root, "d", (b, c))]
    both = threading.Barrier(2, timeout=30)

    def do(one: Step) -> None:
        with lock:
            busy[0] += min(one.demand["CPU"], 2)
            most[0] = max(most[0], busy[0])
        if one.label in ("b", "c"):
            both.wait()
        with lock:
            busy[0] -= min(one.demand["CPU"], 2)
            order.append(one.label)

    run_steps(steps, {"CPU": 2}, do)
    assert most[0] == 2
    assert order[0] == "a"
    assert set(order) == {"a", "b", "c", "big", "d"}
    assert order.index("d") > max(order.index("b"), order.index("c"))


def test_what_a_cluster_has_none_of_keeps_nothing_waiting(root):
    both = threading.Barrier(2, timeout=30)
    steps = [step(root, name) for name in ("a", "b")]
    steps[1].demand["GPU"] = 3.0
    run_steps(steps, {"CPU": 2, "GPU": 0}, lambda one: both.wait())
    assert both.n_waiting == 0


def test_two_searches_never_share_a_cluster_that_grows(root):
    """Each could hold a part of what the cluster comes to, and wait for the rest."""
    running: set[str] = set()
    together: set[frozenset[str]] = set()
    lock = threading.Lock()

    def do(one: Step) -> None:
        with lock:
            running.add(one.label)
            together.add(frozenset(running))
        with lock:
            running.discard(one.label)

    steps = [replace(step(root, label), kind="run") for label in ("dev", "test")]
    run_steps(steps, {"CPU": ON_DEMAND}, do)
    assert together == {frozenset({"dev"}), frozenset({"test"})}
    both = threading.Barrier(2, timeout=30)
    run_steps(steps, {"CPU": 2}, lambda one: both.wait())


def test_a_lone_step_runs_in_the_calling_thread(root):
    threads = []
    a = step(root, "a")
    run_steps([a, step(root, "b", (a,))], {"CPU": 1}, lambda one: threads.append(threading.current_thread()))
    assert set(threads) == {threading.current_thread()}


def test_a_failure_ends_the_run_after_its_neighbours(root):
    a, b = step(root, "a"), step(root, "b")
    c = step(root, "c", (a,))
    both, finished = threading.Barrier(2, timeout=30), []

    def do(one: Step) -> None:
        if one.label in "ab":
            both.wait()
        if one.label == "a":
            raise ValueError("broken")
        finished.append(one.label)

    with pytest.raises(ValueError, match="broken"):
        run_steps([a, b, c], {"CPU": 2}, do)
    assert finished == ["b"]


def test_what_is_not_wanted_takes_along_what_needs_it(root):
    a, other = step(root, "a", group=2), step(root, "other")
    done = []
    run_steps(
        [a, step(root, "b", (a,)), other],
        {"CPU": 1},
        lambda one: done.append(one.label),
        wanted=lambda one: one.group < 2,
    )
    assert done == ["other"]


class Told:
    """A feed that knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def following(root: Folder, **maker: Any) -> tuple[Step, Step, Told]:
    feed = Told()
    a = step(root, "a", feed=feed, **maker)
    return a, step(root, "b", (a,), follows=frozenset({"a"})), feed


def test_a_step_that_follows_starts_while_the_other_runs(root):
    a, b, feed = following(root)
    both = threading.Barrier(2, timeout=30)

    def do(one: Step) -> None:
        both.wait()
        if one is b:
            assert feed.closed.wait(30), "nobody said that the other has ended"

    run_steps([a, b], {"CPU": 2}, do)


def test_a_step_that_follows_waits_where_there_is_no_room(root):
    a, b, feed = following(root)
    order = []

    def do(one: Step) -> None:
        order.append((one.label, feed.closed.is_set()))

    run_steps([a, b], {"CPU": 1}, do)
    assert order == [("a", False), ("b", True)]


def test_room_goes_to_a_step_that_has_all_it_needs(root):
    a, b, _ = following(root)
    c = step(root, "c")
    both = threading.Barrier(2, timeout=30)
    order = []

    def do(one: Step) -> None:
        order.append(one.label)
        if one is not b:
            both.wait()

    run_steps([a, b, c], {"CPU": 2}, do)
    assert order[2] == "b"


def test_what_ends_the_followed_step_is_told_not_what_the_follower_misses(root):
    a, b, feed = following(root)
    both = threading.Barrier(2, timeout=30)

    def do(one: Step) -> None:
        both.wait()
        if one is a:
            raise ValueError("broken")
        feed.closed.wait(30)
        raise RuntimeError("nothing more comes")

    with pytest.raises(ValueError, match="broken"):
        run_steps([a, b], {"CPU": 2}, do)


def test_ctrl_c_leaves_no_step_waiting_for_more(root):
    a, b, feed = following(root)
    c = step(root, "c")

    def do(one: Step) -> None:
        if one is c:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_steps([c, a, b], {"CPU": 1}, do)
    assert feed.closed.is_set()
