"""Plan the nodes that targets need, with reasons, and schedule them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Literal

from raydr.artefacts.declaration import Existing, Node, Resources
from raydr.artefacts.places import Places, Pointer
from raydr.console import counted, warn
from raydr.distributed.cluster import STEP_THREAD
from raydr.errors import DamagedError, FingerprintError
from raydr.store import Artifact, Folder, Identity, Manifest
from raydr.store.building import DONE, PLAN
from raydr.store.identity import MANIFEST, differences

#: State of a node: finished, finished with changed inputs, partly made, or missing.
State = Literal["done", "stale", "begun", "to do"]


@dataclass
class Inventory:
    """State of existing artefacts, with cached manifests.

    Args:
        places: places of the artefacts.
    """

    places: Places
    _manifests: dict[str, Manifest] = field(default_factory=dict)
    _damaged: set[str] = field(default_factory=set)

    def folder(self, node: Node) -> Folder:
        """Return the folder of a node: under its key, or the folder that a user set."""
        return node.folder if isinstance(node, Existing) else self.places.folder(node.kind, node.key)

    def open(self, node: Node) -> Artifact:
        """Open the finished artefact."""
        return Artifact.open(self.folder(node), node.kind)

    def state(self, node: Node) -> State:
        manifest = self.manifest(node)
        if manifest is not None:
            return "stale" if self.outdated(node) else "done"
        return "begun" if self.folder(node).exists(PLAN) else "to do"

    def outdated(self, node: Node) -> list[Node]:
        """Return the inputs that were made again, with other bytes, after the artefact was finished."""
        manifest = self.manifest(node)
        known = manifest.made_from if manifest is not None else {}
        return [
            ancestor
            for key, ancestor in node.ancestors().items()
            if key in known and (current := self.manifest(ancestor)) is not None and current.digest != known[key]
        ]

    def made_from(self, node: Node) -> dict[str, str]:
        """Return digests of all inputs by key: of existing artefacts, else those recorded by their nearest users."""
        digests: dict[str, str] = {}
        for input_node in node.inputs.values():
            manifest = self.manifest(input_node)
            if manifest is not None:
                digests |= {**manifest.made_from, input_node.key: manifest.digest}
        return digests

    def manifest(self, node: Node) -> Manifest | None:
        """Return the manifest of a finished artefact; None if it is missing or damaged."""
        if node.key not in self._manifests:
            folder = self.folder(node)
            if not folder.exists(MANIFEST):
                return None
            try:
                self._manifests[node.key] = Artifact.open(folder, node.kind).manifest
            except DamagedError as error:
                if isinstance(node, Existing):
                    raise
                # A damaged artefact counts as missing: it is made again where needed.
                if node.key not in self._damaged:
                    self._damaged.add(node.key)
                    warn(f"{node.label} is not used: {error}")
                return None
        return self._manifests[node.key]

    def existed(self, node: Node) -> bool:
        """Return whether the artefact existed, whole or damaged, when it was looked up."""
        return node.key in self._manifests or node.key in self._damaged

    def forget(self, node: Node) -> None:
        """Drop cached knowledge of a node that is made again or removed."""
        self._manifests.pop(node.key, None)

    def num_parts_done(self, node: Node) -> int:
        """Return the number of parts that an interrupted attempt finished."""
        return len(self.folder(node).files(DONE))


def required(inventory: Inventory, targets: Iterable[Node], again: Collection[str] = ()) -> list[Node]:
    """Return the nodes to make, in a valid order.

    A finished artefact needs no inputs; they may be gone.

    Args:
        inventory: existing artefacts.
        targets: requested nodes.
        again: keys of nodes to make again although they exist.
    """
    needed: dict[str, Node] = {}
    seen: set[str] = set()

    def visit(node: Node) -> None:
        if node.key in seen:
            return
        seen.add(node.key)
        if inventory.state(node) == "done" and not (again and {node.key, *node.ancestors()} & set(again)):
            return
        for dependency in (*node.inputs.values(), *node.after):
            visit(dependency)
        needed[node.key] = node

    for target in targets:
        visit(target)
    return list(needed.values())


def reason(inventory: Inventory, node: Node, names: Mapping[str, Node], again: Collection[str] = ()) -> str:
    """Explain why a node is made."""
    state = inventory.state(node)
    if state == "begun":
        num_done = inventory.num_parts_done(node)
        return f"was interrupted, {counted(num_done, 'part')} done" if num_done else "was interrupted"
    if state == "stale":
        return f"{', '.join(ancestor.label for ancestor in inventory.outdated(node))} was made again"
    if node.key in again:
        return "made again on request"
    for name, named in names.items():
        if named.key == node.key and (before := _before(inventory.places, name)) is not None:
            return "; ".join(changes(node, before)) or "new"
    # An existing artefact is made again if an input is.
    return "new" if inventory.manifest(node) is None else "an input is made again"


def _before(places: Places, name: str) -> Identity | None:
    """Return the identity of the artefact that a name points to, if it exists."""
    pointer = places.pointer(name)
    return None if pointer is None else _existing(places, pointer.kind, pointer.key)


def _existing(places: Places, kind: str, key: str) -> Identity | None:
    """Return the identity of the artefact under a key, if it exists."""
    folder = places.folder(kind, key)
    if not folder.exists(MANIFEST):
        return None
    try:
        return Manifest.model_validate(folder.read_sealed(MANIFEST)).identity
    except DamagedError:
        return None


def changes(node: Node, before: Identity) -> list[str]:
    """List the differences between a node and an existing artefact: own settings and changed inputs.

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
        descriptions.append("this version of raydr makes it differently")
    return descriptions


def check_names(places: Places, names: Mapping[str, Node]) -> dict[str, Pointer | None]:
    """Check that each name points to the node that the config requests, or to nothing.

    A name follows its inputs: it moves if these alone have changed, and their names point to them. Inputs without a
    name follow their own inputs.

    Returns:
        The targets of the checked names.

    Raises:
        FingerprintError: a name points to another artefact; the message lists differing settings.
    """
    wrong: list[str] = []
    agreed: set[str] = set()
    targets = {name: places.pointer(name) for name, node in names.items() if not node.moves}
    named = {node.key for node in names.values()}
    for name, node in sorted(names.items(), key=lambda item: len(item[1].ancestors())):
        if (pointer := targets.get(name)) is None:
            continue
        before = None if pointer.key == node.key else _before(places, name)
        if pointer.key == node.key or (before is not None and _follows(places, node, before, agreed)):
            agreed.add(node.key)
            continue
        differing = _causes(places, node, before, named) if before is not None else ["it was removed"]
        wrong += [f"{name}: {change}" for change in dict.fromkeys(differing)]
    own = [line for line in wrong if not line.endswith(" changes")]
    if wrong:
        raise FingerprintError(
            f"these names in {places.root} point to artefacts with other settings than requested:\n  "
            + "\n  ".join(own or wrong)
            + "\nrestore these settings, use another name or workdir, or pass --again to move the names; the old "
            "artefacts stay until raydr gc"
        )
    return targets


def _causes(places: Places, node: Node, before: Identity, named: Collection[str]) -> Iterator[str]:
    """Yield the differences between a node and an existing artefact, and those between their inputs without a name."""
    yield from changes(node, before)
    for role, source in node.inputs.items():
        key = before.inputs.get(role, source.key)
        if key != source.key and source.key not in named and (earlier := _existing(places, source.kind, key)):
            yield from _causes(places, source, earlier, named)


def _follows(places: Places, node: Node, before: Identity, agreed: Collection[str]) -> bool:
    """Return whether a node differs from an existing artefact in inputs alone, whose keys are agreed or follow."""

    def follows(role: str) -> bool:
        source, key = node.inputs[role], before.inputs[role]
        if source.key == key or source.key in agreed:
            return True
        earlier = _existing(places, source.kind, key)
        return earlier is not None and _follows(places, source, earlier, agreed)

    own = (before.kind, before.version, before.inputs.keys(), differences(before.config, node.settings))
    return own == (node.kind, node.version, node.inputs.keys(), []) and all(map(follows, node.inputs))


#: Limit of concurrent nodes; each has a thread.
_MOST_AT_ONCE = 16


def run_nodes(nodes: Sequence[Node], capacity: Resources, do: Callable[[Node], None]) -> None:
    """Make nodes concurrently as inputs and capacity permit.

    A node starts only if its demands and those of running nodes fit the capacity, so that no two nodes wait for each
    other. A node that demands more than the capacity runs alone. A node that is alone runs in the calling thread, where
    Ctrl-C reaches it.

    Args:
        nodes: nodes in a valid order; their other inputs exist.
        capacity: available resources.
        do: function that makes a node, called in a thread.

    Raises:
        Exception: the first error, raised after the concurrent nodes have ended.
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
        # After Ctrl-C the threads end with the process, without a wait.
        pool.shutdown(wait=not running, cancel_futures=True)
    if failure is not None:
        raise failure


def _startable(waiting: Iterable[Node], running: Iterable[Node], capacity: Resources) -> list[Node]:
    """Return the nodes that can start now."""
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
        # A resource that the cluster lacks cannot become free.
        if capacity.get(name, 0.0)
    )
