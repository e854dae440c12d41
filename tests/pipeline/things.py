"""Nodes of one small file, for tests of the graph itself."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from raydr.artefacts.declaration import Node, NodeWork
from raydr.artefacts.places import Places
from raydr.distributed.cluster import RayConfig, ray_session
from raydr.pipeline.planning import Inventory
from raydr.pipeline.running import Runner
from raydr.store.building import write_and_record
from raydr.store.folder import Folder
from raydr.tracking.tracker import NullTracker


def thing(label: str, *inputs: Node, x: int = 0, text: str = "", cpus: float = 1, **fields: Any) -> Node:
    """A node whose artefact has one part, ``text`` and those of its inputs."""

    def make(work: NodeWork) -> dict[str, Any]:
        content = text + "".join(Path(artifact.local("part")).read_text() for artifact in work.inputs.values())
        part = write_and_record(work.making.folder, "part", 1, partial(_write, content or label))
        work.making.done["part"] = part
        return {"label": label}

    node = Node(
        "thing",
        label,
        make,
        {"name": label, "x": x},
        {node_input.label: node_input for node_input in inputs},
        demand={"CPU": cpus},
    )
    return replace(node, **fields)


def _write(content: str, path: str) -> None:
    Path(path).write_text(content)


def make_all(root: Path | str, *nodes: Node, names: dict[str, Node] | None = None) -> Inventory:
    """Make nodes in the order given, in this process, also those that are there."""
    inventory = Inventory(Places(Folder(str(root))))
    for node in nodes:
        inventory.manifest(node)
    with ray_session(RayConfig()):
        Runner(inventory, NullTracker(), {}, {"CPU": 2.0}, names or {}).make(nodes)
    return inventory
