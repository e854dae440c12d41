"""The nodes that some targets need, and why each is made; nothing is run here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Literal

from raydr.artefacts.declaration import Existing, Node, Resources
from raydr.artefacts.places import Places
from raydr.console import counted, warn
from raydr.distributed.cluster import STEP_THREAD
from raydr.errors import DamagedError, FingerprintError
from raydr.store.artifact import DONE, PLAN, Artifact
from raydr.store.folder import Folder
from raydr.store.identity import Identity, differences
from raydr.store.manifest import MANIFEST, Manifest

#: What is at a node's place: a finished artefact, one whose inputs were made again since, a part of one, or nothing.
State = Literal["done", "stale", "begun", "to do"]


@dataclass
class Inventory:
    """What is there of some nodes; remembers the manifests that it has read.

    Args:
        places: where they lie.
    """

    places: Places
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _damaged: set[str] = field(default_factory=set)

    def folder(self, node: Node) -> Folder:
        """Where a node lies: under its key, unless a user has given it by its folder."""
        return node.folder if isinstance(node, Existing) else self.places.folder(node.kind, node.key)

    def open(self, node: Node) -> Artifact:
        """The finished artefact."""
        return Artifact.open(self.folder(node), node.kind)

    def state(self, node: Node) -> State:
        manifest = self.manifest(node)
        if manifest is not None:
            return "stale" if self.outdated(node) else "done"
        return "begun" if self.folder(node).exists(PLAN) else "to do"

    def outdated(self, node: Node) -> list[Node]:
        """What a finished artefact was made from and that was made again since, with other bytes."""
        manifest = self.manifest(node)
        known = manifest.made_from if manifest is not None else {}
        return [
            ancestor
            for key, ancestor in node.ancestors().items()
            if key in known and (current := self.manifest(ancestor)) is not None and current.digest != known[key]
        ]

    def made_from(self, node: Node) -> dict[str, str]:
        """Digests of all that a node is made from, by key: of what is there, else as its nearest users remember it."""
        digests: dict[str, str] = {}
        for input_node in node.inputs.values():
            manifest = self.manifest(input_node)
            if manifest is not None:
                digests |= {**manifest.made_from, input_node.key: manifest.digest}
        return digests

    def manifest(self, node: Node) -> Manifest | None:
        """The manifest of a finished artefact; None if it is not there, or damaged."""
        if node.key not in self._manifests:
            folder = self.folder(node)
            if not folder.exists(MANIFEST):
                return None
            try:
                self._manifests[node.key] = Artifact.open(folder, node.kind).manifest
            except DamagedError as error:
                if isinstance(node, Existing):
                    raise
                # As if it were not there: it is made again where it is needed.
                if node.key not in self._damaged:
                    self._damaged.add(node.key)
                    warn(f"{node.label} is not used: {error}")
                return None
        return self._manifests[node.key]

    def forget(self, node: Node) -> None:
        """It is made anew, or removed: what was read of it holds no more."""
        self._manifests.pop(node.key, None)

    def num_parts_done(self, node: Node) -> int:
        """Parts that an interrupted attempt has left."""
        return len(self.folder(node).files(DONE))


def required(inventory: Inventory, targets: Iterable[Node], again: Collection[str] = ()) -> list[Node]:
    """The nodes that have to be made, in an order in which they could be made one after the other.

    A finished artefact needs nothing: what it was made from may be gone.

    Args:
        inventory: what is there.
        targets: what is asked for.
        again: keys of nodes that are made anew, though they are there.
    """
    needed: dict[str, Node] = {}
    seen: set[str] = set()

    def visit(node: Node) -> None:
        if node.key in seen:
            return
        seen.add(node.key)
        if inventory.state(node) == "done" and node.key not in again and not _is_remade(node, again):
            return
        for dependency in (*node.inputs.values(), *node.after):
            visit(dependency)
        needed[node.key] = node

    for target in targets:
        visit(target)
    return list(needed.values())


def _is_remade(node: Node, again: Collection[str]) -> bool:
    """Whether something that it is made from is about to be made anew."""
    return bool(again) and any(key in again for key in node.ancestors())


def reason(inventory: Inventory, node: Node, names: Mapping[str, Node], again: Collection[str] = ()) -> str:
    """Why a node has to be made."""
    state = inventory.state(node)
    if state == "begun":
        num_done = inventory.num_parts_done(node)
        return (
            f"was interrupted, {counted(num_done, 'part')} done"
            if num_done
            else "was interrupted before its first part"
        )
    if state == "stale":
        return f"{', '.join(ancestor.label for ancestor in inventory.outdated(node))} was made again"
    if node.key in again:
        return "asked for again"
    for name, named in names.items():
        if named.key == node.key and (before := _before(inventory.places, name)) is not None:
            return "; ".join(changes(node, before)) or "new"
    # There, and made all the same: what it is made from is.
    return "new" if inventory.manifest(node) is None else "what it is made from is made again"


def _before(places: Places, name: str) -> Identity | None:
    """What a name points to now, if it is there."""
    folder = places.resolve(name)
    if folder is None or not folder.exists(MANIFEST):
        return None
    try:
        return Manifest.model_validate(folder.read_sealed(MANIFEST)).identity
    except DamagedError:
        return None


def changes(node: Node, before: Identity) -> list[str]:
    """What differs between a node and something that was made: its own settings, and which of its inputs.

    >>> old = Identity(kind="index", config={"factory": "Flat"}, inputs={"embeddings": "a"})
    >>> changes(Node("index", "index", lambda work: {}, {"factory": "SQ8"}), old)
    ["factory was 'Flat', is 'SQ8'", 'embeddings changes']
    """
    if before.kind != node.kind:
        return [f"it was a {before.kind}"]
    descriptions = differences(before.config, node.settings)
    inputs = node.identity.inputs
    descriptions += [
        f"{role} changes"
        for role in sorted(before.inputs.keys() | inputs.keys())
        if before.inputs.get(role) != inputs.get(role)
    ]
    if before.version != node.version:
        descriptions.append("this raydr makes it differently")
    return descriptions


def check_names(places: Places, names: Mapping[str, Node]) -> None:
    """Refuse to move a name by accident: each must point to what the config asks for, or to nothing.

    Raises:
        FingerprintError: a name points to something else; says which settings differ.
    """
    wrong: list[str] = []
    for name, node in names.items():
        pointer = places.pointer(name)
        if pointer is None or pointer.key == node.key or node.moves:
            continue
        before = _before(places, name)
        differing = changes(node, before) if before is not None else ["it was removed"]
        wrong += [f"{name}: {change}" for change in differing]
    own = [line for line in wrong if not line.endswith(" changes")]
    if wrong:
        raise FingerprintError(
            f"what these names of {places.root} point to was made differently from what is asked now:\n  "
            + "\n  ".join(own or wrong)
            + "\nrestore these settings, give another name or set another workdir, or pass --again: names move to what "
            "is made now, and what they pointed to stays until raydr gc"
        )


#: Nodes that are made at a time, at most: each has a thread here.
_MOST_AT_ONCE = 16


def run_nodes(nodes: Sequence[Node], capacity: Resources, do: Callable[[Node], None]) -> None:
    """Make nodes side by side where their inputs and the capacity allow it.

    A node is started only if what it demands is free together with the demands of those that run, so that no two wait
    for each other's resources. One that demands more than there is runs alone. A node that is alone anyway is made in
    the calling thread, where Ctrl-C reaches it.

    Args:
        nodes: in an order in which they could be made one after the other; what else they need is there.
        capacity: what there is.
        do: makes one node, in a thread.

    Raises:
        Exception: the first one that was raised, after those that ran beside it have ended.
    """
    waiting = list(nodes)
    running: dict[Future[None], Node] = {}
    pool = ThreadPoolExecutor(max_workers=_MOST_AT_ONCE, thread_name_prefix=STEP_THREAD)
    failure: BaseException | None = None
    try:
        while (waiting and failure is None) or running:
            started = [] if failure is not None else _startable(waiting, running.values(), capacity)
            waiting = [node for node in waiting if node not in started]
            if len(started) == 1 and not running:
                do(started[0])
                continue
            running |= {pool.submit(do, node): node for node in started}
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                failure = failure or future.exception()
                del running[future]
    finally:
        # After Ctrl-C the threads end with the process; nobody waits for them.
        pool.shutdown(wait=not running, cancel_futures=True)
    if failure is not None:
        raise failure


def _startable(waiting: Iterable[Node], running: Iterable[Node], capacity: Resources) -> list[Node]:
    """The nodes to start now."""
    busy = list(running)
    unfinished = {node.key for node in [*busy, *waiting]}
    started: list[Node] = []
    for node in waiting:
        needs = {dependency.key for dependency in (*node.inputs.values(), *node.after)}
        if not needs & unfinished and _fits(node, busy, capacity):
            busy.append(node)
            started.append(node)
    return started


def _fits(node: Node, busy: Sequence[Node], capacity: Resources) -> bool:
    if not busy:
        return True
    if len(busy) >= _MOST_AT_ONCE:
        return False
    return all(
        sum(other.demand.get(name, 0.0) for other in busy) + amount <= capacity.get(name, 0.0) + 1e-6
        for name, amount in node.demand.items()
        # What the cluster has none of cannot be waited for.
        if capacity.get(name, 0.0)
    )
