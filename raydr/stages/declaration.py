"""Nodes: artefacts that could exist, each declared once with all that its content depends on.

From a node come its identity and its place, what has to be made and why, and its step in MLflow. Nothing else states
what an artefact is made from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from raydr.errors import ArtifactError
from raydr.runtime.tracking import Tracker
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact, Building
from raydr.store.folder import Folder
from raydr.store.identity import Identity

#: CPUs and GPUs by Ray's names.
Resources = Mapping[str, float]


@dataclass(frozen=True)
class Work:
    """What the function of a node is given.

    Args:
        making: the artefact that is made.
        pool: where its parts are made.
        inputs: the artefacts that it is made from, by role.
        tracker: its step in MLflow.
    """

    making: Building
    pool: Pool
    inputs: Mapping[str, Artifact]
    tracker: Tracker

    def __getitem__(self, role: str) -> Artifact:
        return self.inputs[role]

    def get(self, role: str) -> Artifact | None:
        """The input of a role that not every such node has."""
        return self.inputs.get(role)

    def group(self, role: str) -> dict[str, Artifact]:
        """The inputs of the roles ``ROLE/NAME``, by name, in the order of the declaration."""
        return {name.removeprefix(f"{role}/"): one for name, one in self.inputs.items() if name.startswith(f"{role}/")}


def stage(function: Callable[..., dict[str, Any]], *roles: str) -> Callable[[Work], dict[str, Any]]:
    """A stage as the function of a node.

    Args:
        function: gets the begun artefact, the pool and the inputs; its settings are given by ``partial``.
        roles: of the inputs, in the order of its parameters; ``ROLE/`` is a group; what is not there is None.
    """

    def make(work: Work) -> dict[str, Any]:
        inputs = [work.group(role[:-1]) if role.endswith("/") else work.get(role) for role in roles]
        return function(work.making, work.pool, *inputs)

    return make


@dataclass(frozen=True, eq=False)
class Node:
    """An artefact that could exist.

    Args:
        kind: of the artefact.
        label: what it is called in lists and in MLflow, for example ``round-2/train``; no part of the identity.
        make: makes it; returns what its manifest says of it.
        settings: what its content depends on besides its inputs; JSON values.
        inputs: what it is made from, by role.
        version: raised where the same settings lead to another content.
        num_rows: how much there is to do, in rows, given the inputs; decides where it is made.
        asks_model: whether a model reads the rows.
        demand: resources without which it cannot go on.
        after: nodes that must be there before it is made, although they are no part of what it is.
        temporary: only other nodes need it: it is made if one of these is, and goes when its round is over.
        moves: its name moves to it without asking: it only shows what is there.
        check: raises where it could not be made; called before anything is, so that hours are not lost.
    """

    kind: str
    label: str
    make: Callable[[Work], dict[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Node] = field(default_factory=dict)
    version: int = 1
    num_rows: Callable[[Mapping[str, Artifact]], int] = lambda inputs: 0
    asks_model: bool = False
    demand: Resources = field(default_factory=lambda: {"CPU": 1.0})
    after: tuple[Node, ...] = ()
    temporary: bool = False
    moves: bool = False
    check: Callable[[], None] = lambda: None

    @cached_property
    def identity(self) -> Identity:
        inputs = {role: node.key for role, node in self.inputs.items()}
        return Identity(kind=self.kind, version=self.version, config=dict(self.settings), inputs=inputs)

    @cached_property
    def key(self) -> str:
        """Hash of kind, version, settings and the keys of the inputs."""
        return self.identity.fingerprint

    def ancestors(self) -> dict[str, Node]:
        """All that it is made from, nearest and farther, by key, in an order in which it could be made."""
        found: dict[str, Node] = {}

        def visit(node: Node) -> None:
            for one in (*node.inputs.values(), *node.after):
                if one.key not in found:
                    visit(one)
                    found[one.key] = one

        visit(self)
        return found


@dataclass(frozen=True, eq=False)
class Existing(Node):
    """An artefact that is there and that no config declares: a run of another program, a model of another config.

    Args:
        made_as: its identity.
        folder: where it is.
    """

    made_as: Identity = field(default_factory=lambda: Identity(kind=""))
    folder: Folder = field(default_factory=lambda: Folder(""))

    @classmethod
    def of(cls, artifact: Artifact, label: str) -> Existing:
        """The node of a finished artefact."""
        identity = artifact.manifest.identity

        def make(work: Work) -> dict[str, Any]:
            raise ArtifactError(f"{label} was at {artifact.folder} and is gone: make it again, or leave it out")

        return cls(identity.kind, label, make, made_as=identity, folder=artifact.folder)

    @classmethod
    def at(cls, folder: str, kind: str) -> Existing:
        """The node of an artefact that a user gives by its folder.

        Raises:
            ArtifactError: there is none.
        """
        return cls.of(Artifact.open(Folder(folder).absolute(), kind), f"{kind} at {folder}")

    @cached_property
    def identity(self) -> Identity:
        return self.made_as
