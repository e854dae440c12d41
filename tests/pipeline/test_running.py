"""Making nodes: resuming, locks, what is set aside, and garbage."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S
from small_runs import small_run

import raydr
from pipeline.things import make_all, thing
from raydr.artefacts.declaration import Existing, Node, NodeWork
from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.distributed.cluster import RayConfig, ray_session
from raydr.errors import DataError
from raydr.pipeline.garbage import SESSIONS, find_garbage, open_claims, remove_garbage, remove_unclaimed
from raydr.pipeline.planning import Inventory, required, run_nodes
from raydr.pipeline.running import Runner, read_by, read_times, repair
from raydr.store.building import DONE, begin
from raydr.store.folder import Folder
from raydr.tracking.tracker import NullTracker, Tracker
from raydr.training.checkpoint import checkpoint_folder


def test_a_node_that_fails_keeps_its_parts_and_its_name_does_not_move(tmp_path: Path) -> None:
    good = thing("a", text="good")
    make_all(tmp_path, good, names={"a": good})

    def fail(work: NodeWork) -> dict[str, Any]:
        work.making.folder.write_json(f"{DONE}/x.json", {"rows": 1, "bytes": 1, "checksum": "c"})
        raise DataError("broken")

    bad = replace(thing("a", x=1), make=fail)
    with pytest.raises(DataError):
        make_all(tmp_path, bad, names={"a": bad})
    inventory = make_all(tmp_path)
    assert inventory.state(bad) == "begun"
    assert inventory.num_parts_done(bad) == 1
    assert inventory.places.open("a", "thing").fingerprint == good.key


def test_checks_of_all_nodes_come_before_anything_is_made_or_set_aside(tmp_path: Path) -> None:
    first = thing("a")
    make_all(tmp_path, first)

    def refuse() -> None:
        raise DataError("nobody answers")

    last = thing("c", first, check=refuse)
    with pytest.raises(DataError, match="nobody answers"):
        make_all(tmp_path, first, thing("b"), last)
    inventory = make_all(tmp_path)
    assert [inventory.state(node) for node in (first, thing("b"), last)] == ["done", "to do", "to do"]


def test_what_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    node = thing("a", text="mine")
    inventory = make_all(tmp_path)
    ready = multiprocessing.get_context("spawn").Event()
    done = multiprocessing.get_context("spawn").Event()
    other = multiprocessing.get_context("spawn").Process(
        target=_hold, args=(inventory.folder(node).url, node.identity.model_dump_json(), ready, done)
    )
    other.start()
    assert ready.wait(PATIENCE_S)
    assert find_garbage(inventory.places, 0) == []
    threading.Timer(1.0, done.set).start()
    make_all(tmp_path, node)
    other.join(PATIENCE_S)
    # The other one was first, and its time is not that of the wait.
    assert read_times(inventory.places.root) == []
    assert Inventory(inventory.places).open(node).info == {"by": "the other"}


def test_what_another_process_has_completed_since_the_plan_is_taken(tmp_path: Path) -> None:
    """It may be an input of that process's next stage: set aside, it would be gone under it."""
    node = thing("a", text="mine")
    inventory = Inventory(Places(Folder(str(tmp_path))))
    todo = required(inventory, [node])
    make_all(tmp_path, replace(node, make=lambda _: {"by": "the other"}))
    with ray_session(RayConfig()):
        Runner(inventory, NullTracker(), {}, {"CPU": 2.0}, {}).make(todo)
    assert inventory.open(node).info == {"by": "the other"}
    assert {entry.why for entry in find_garbage(inventory.places, 0)} == {"no name reaches it"}


def _hold(url: str, identity: str, ready: Any, done: Any) -> None:
    from raydr.store.building import Building
    from raydr.store.identity import Identity

    with begin(Folder(url), Identity.model_validate_json(identity)) as making:
        ready.set()
        done.wait(PATIENCE_S)
        assert isinstance(making, Building)
        making.finish({"by": "the other"})


def test_what_is_damaged_is_set_aside_before_it_is_read(tmp_path: Path) -> None:
    a, b = thing("a", text="xyz"), thing("b", text="ok")
    inventory = make_all(tmp_path, a, b)
    Path(inventory.folder(a).path("part")).write_text("xyZ")
    with ray_session(RayConfig()):
        assert repair(inventory, read_by([thing("c", b)])) == []
        assert repair(inventory, read_by([thing("c", a, b)])) == [a]
    assert inventory.state(a) == "to do"
    assert inventory.state(b) == "done"


def test_of_an_object_store_only_what_was_written_again_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = thing("a", text="xyz"), thing("b", text="ok"), thing("c", text="gone")
    inventory = make_all(f"memory://repair{tmp_path}", a, b, c)
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    with inventory.folder(a).publish("part") as path:
        Path(path).write_text("xyZ")
    inventory.folder(c).remove("part")
    read: list[str] = []
    checksum = Folder.checksum
    monkeypatch.setattr(Folder, "checksum", lambda self, name: (read.append(self.url), checksum(self, name))[1])
    with ray_session(RayConfig()):
        assert repair(inventory, [a, b, c], checksums=False) == [a, c]
        assert read == [inventory.folder(a).url]
        assert repair(inventory, [b]) == []
    assert read[1:] == [inventory.folder(b).url]


def test_garbage_is_what_no_name_reaches(tmp_path: Path) -> None:
    a = thing("a", text="1")
    vectors = replace(thing("vectors", a), kind="embeddings")
    kept = replace(thing("kept vectors", a, x=1), kind="embeddings")
    result = thing("result", vectors)
    left = thing("left", text="22")
    inventory = make_all(tmp_path, a, vectors, kept, result, left, names={"result": result, "kept": kept})
    garbage = find_garbage(inventory.places, 0)
    assert {(entry.kind, entry.why) for entry in garbage} == {
        ("embeddings", "no name reaches it"),
        ("thing", "no name reaches it"),
    }
    assert {entry.folder.root for entry in garbage} == {inventory.folder(vectors).root, inventory.folder(left).root}
    assert all(entry.num_bytes > 0 for entry in garbage)
    make_all(tmp_path, a)
    assert "was set aside when it was made again" in {entry.why for entry in find_garbage(inventory.places, 0)}


@pytest.mark.parametrize("root", ["{}", "memory://states{}"])
def test_states_of_a_claimed_training_are_no_garbage(tmp_path: Path, root: str) -> None:
    """They lie beside the model's folder; a single epoch may take longer than the age of garbage."""
    places = Places.of(root.format(tmp_path))
    model = places.folder("model", "a" * 32)
    states = checkpoint_folder(model)
    states.write_json("step-000000010/progress.json", {})
    with open_claims(places) as claims:
        claims.add([model])
        assert find_garbage(places, min_age_minutes=0) == []
    assert [entry.folder for entry in find_garbage(places, min_age_minutes=0)] == [states]


@pytest.mark.parametrize("root", ["{}", "memory://claims{}"])
def test_what_a_running_session_reads_or_makes_is_no_garbage(tmp_path: Path, root: str) -> None:
    read, begun, other = thing("a", text="1"), thing("b", text="2"), thing("c", text="3")
    inventory = make_all(root.format(tmp_path), read, other)
    inventory.folder(begun).write_json("plan.json", {})
    places = inventory.places
    folders = {inventory.folder(node) for node in (read, begun)}
    with open_claims(places) as claims:
        assert claims.add(folders) == folders
        assert claims.add([inventory.folder(read)]) == set()
        assert [entry.folder for entry in remove_garbage(places, 0)] == [inventory.folder(other)]
        assert inventory.folder(read).exists()
        assert inventory.folder(begun).exists()
    assert {entry.folder for entry in remove_garbage(places, 0)} == folders
    assert not inventory.folder(read).exists()


def test_a_verb_claims_all_that_its_plan_reads_and_makes(
    beir_folder: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = small_run(beir_folder, tiny_checkpoint, tmp_path / "work")
    places, collected = Places.of(raw["workdir"]), []
    make = Runner.make

    def make_and_collect(self: Runner, nodes: Sequence[Node]) -> None:
        make(self, nodes)
        for name in places.names():
            places.forget(name)
        collected.append(remove_garbage(places, 0))

    monkeypatch.setattr(Runner, "make", make_and_collect)
    made = raydr.prepare(raw)
    assert collected == [[]]
    assert all(artifact.folder.exists() for artifact in made)
    assert not [file for file in places.root.files(SESSIONS) if file.endswith(".json")]


def test_claims_of_a_session_that_died_hold_no_more(tmp_path: Path) -> None:
    a, b = thing("a", text="1"), thing("b", text="2")
    inventory = make_all(tmp_path, a, b)
    states, folders = checkpoint_folder(inventory.folder(a)), [inventory.folder(node) for node in (a, b)]
    states.write_json("step-000000010/progress.json", {})
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    other = context.Process(target=_claim, args=(inventory.places.root.url, inventory.folder(a).url, ready))
    other.start()
    assert ready.wait(PATIENCE_S)
    with open_claims(inventory.places) as own:
        own.add(folders)
        assert remove_unclaimed(inventory.places, [*folders, states]) == [inventory.folder(b)]
    assert find_garbage(inventory.places, 0) == []
    other.kill()
    other.join(PATIENCE_S)
    assert {entry.folder for entry in find_garbage(inventory.places, 0)} == {inventory.folder(a), states}
    assert [name for name in inventory.places.root.files(SESSIONS) if "gc" not in name] == []
    assert remove_unclaimed(inventory.places, folders) == folders


def _claim(root: str, folder: str, ready: Any) -> None:
    with open_claims(Places(Folder(root))) as claims:
        claims.add([Folder(folder)])
        ready.set()
        threading.Event().wait(PATIENCE_S)


def test_a_session_that_begins_while_garbage_is_removed_waits_and_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = thing("a", text="1")
    inventory = make_all(tmp_path, a)
    places, order = inventory.places, []
    remove = Folder.remove

    def claim() -> None:
        with open_claims(places) as claims:
            claims.add([inventory.folder(a)])
            order.append("claimed")

    sessions: list[threading.Thread] = []

    def begin_one_first(self: Folder, name: str = "") -> None:
        if self == inventory.folder(a):
            sessions.append(threading.Thread(target=claim))
            sessions[0].start()
            while not places.root.files(SESSIONS):
                pass
            order.append("removed")
        remove(self, name)

    monkeypatch.setattr(Folder, "remove", begin_one_first)
    remove_garbage(places, 0)
    sessions[0].join(PATIENCE_S)
    assert order == ["removed", "claimed"]


def test_what_was_just_written_is_spared(tmp_path: Path) -> None:
    a = thing("a", text="1")
    inventory = make_all(tmp_path, a)
    assert find_garbage(inventory.places) == []
    for file in inventory.folder(a).files():
        os.utime(inventory.folder(a).path(file), (0, 0))
    assert [entry.folder for entry in find_garbage(inventory.places)] == [inventory.folder(a)]


def test_an_artefact_that_is_there_is_a_node_with_its_own_key(tmp_path: Path) -> None:
    a = thing("a", text="x")
    inventory = make_all(tmp_path, a)
    existing = Existing.of(inventory.open(a), "models/a")
    assert existing.key == a.key
    b = thing("b", existing)
    assert b.key == thing("b", replace(a, label="models/a")).key


# -- side by side


def test_nodes_side_by_side_never_demand_more_than_there_is() -> None:
    lock, busy, most, order = threading.Lock(), [0.0], [0.0], []
    a = thing("a", cpus=2)
    b, c = thing("b", a), thing("c", a)
    nodes = [a, b, c, thing("big", a, cpus=8), thing("d", b, c)]
    both = threading.Barrier(2, timeout=PATIENCE_S)

    def do(node: Node) -> None:
        with lock:
            busy[0] += min(node.demand["CPU"], 2)
            most[0] = max(most[0], busy[0])
        if node.label in ("b", "c"):
            both.wait()
        with lock:
            busy[0] -= min(node.demand["CPU"], 2)
            order.append(node.label)

    run_nodes(nodes, {"CPU": 2}, do)
    assert most[0] == 2
    assert order[0] == "a"
    assert set(order) == {"a", "b", "c", "big", "d"}
    assert order.index("d") > max(order.index("b"), order.index("c"))


def test_what_a_cluster_has_none_of_keeps_nothing_waiting() -> None:
    both = threading.Barrier(2, timeout=PATIENCE_S)
    nodes = [thing("a"), thing("b", demand={"CPU": 1.0, "GPU": 3.0})]
    run_nodes(nodes, {"CPU": 2, "GPU": 0}, lambda node: both.wait())
    assert both.n_waiting == 0


def test_a_lone_node_is_made_in_the_calling_thread() -> None:
    threads = []
    a = thing("a")
    run_nodes([a, thing("b", a)], {"CPU": 1}, lambda node: threads.append(threading.current_thread()))
    assert set(threads) == {threading.current_thread()}


def test_a_failure_ends_the_run_after_its_neighbours() -> None:
    a, b = thing("a"), thing("b")
    both, finished = threading.Barrier(2, timeout=PATIENCE_S), []

    def do(node: Node) -> None:
        if node.label in "ab":
            both.wait()
        if node.label == "a":
            raise ValueError("broken")
        finished.append(node.label)

    with pytest.raises(ValueError, match="broken"):
        run_nodes([a, b, thing("c", a)], {"CPU": 2}, do)
    assert finished == ["b"]


class Noting(NullTracker):
    """Keeps what is logged, by the run that it is logged to."""

    def __init__(self, name: str = "parent", logged: dict[str, dict[str, float]] | None = None) -> None:
        super().__init__()
        self.name = name
        self.logged: dict[str, dict[str, float]] = {} if logged is None else logged

    def log_metrics(self, metrics: Mapping[str, float], step: int = 0) -> None:
        self.logged.setdefault(self.name, {}).update(metrics)

    def log_measures(self, key: str, values: Mapping[str, float]) -> None:
        self.logged.setdefault(key, {}).update(values)

    def log_params(self, params: Mapping[str, Any]) -> None:
        self.logged.setdefault(f"params of {self.name}", {}).update(params)

    def log_model(self, folder: Folder, name: str, registered: str = "") -> None:
        self.logged.setdefault("models", {})[name] = 1.0

    def stage(self, name: str, tags: Mapping[str, str] | None = None) -> AbstractContextManager[Tracker]:
        return nullcontext(Noting(name, self.logged))


@pytest.mark.usefixtures("here")
def test_measures_of_an_evaluation_reach_its_own_run_and_that_of_the_command(tmp_path: Path) -> None:
    def make(work: NodeWork) -> dict[str, Any]:
        return {"split": "test", "means": {"bm25": {"RR@10": 0.5}, "trained": {"RR@10": 0.75}}, "num_queries": 3}

    node = replace(thing("evaluate-test"), kind="evaluation", make=make)
    of_round = replace(thing("round-2/evaluate-dev"), kind="evaluation", make=make)
    tracker = Noting()
    model = thing("trained")
    names = {"models/trained": model}
    Runner(Inventory(Places(Folder(str(tmp_path)))), tracker, {}, {"CPU": 2.0}, names).make([node, of_round])
    means = {"test/bm25/RR@10": 0.5, "test/trained/RR@10": 0.75}
    counts = {"evaluation/num_queries": 3.0}
    assert tracker.logged == {
        "evaluate-test": means | counts, "round-2/evaluate-dev": means | counts, "parent": means,
        # Models are compared under one name.
        model.key: {"test/RR@10": 0.75},
    }  # fmt: skip


@pytest.mark.usefixtures("here")
def test_a_training_is_logged_with_its_own_settings_and_a_fold_is_no_model_of_anybody(tmp_path: Path) -> None:
    raw = {"data": {"reader": {"name": "beir", "path": "x"}}, "name": "mine", "variants": {"rcl": {"num_epochs": 7}}}
    config = RunConfig.parse(raw).model_dump(mode="json")
    data = thing("dataset")
    models = [replace(thing(label, data), kind="model") for label in ("train-rcl", "cross-fit-1", "round-2/train-rcl")]
    tracker = Noting()
    Runner(Inventory(Places(Folder(str(tmp_path)))), tracker, config, {"CPU": 2.0}, {}).make([data, *models])
    logged = {name: what for name, what in tracker.logged.items() if what}
    assert logged == {"params of train-rcl": {"train.num_epochs": 7}, "models": {"mine-rcl": 1.0}}
