"""Running nodes side by side where their inputs are there and their demands fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from raydr.runtime.cluster import STEP_THREAD
from raydr.stages.declaration import Node, Resources

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
        needs = {one.key for one in (*node.inputs.values(), *node.after)}
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
