"""Declaration of artefacts: the signature of a stage states what its artefact is made from.

::

    @artefact("quantized", rows=lambda of: NUM_CALIBRATING, asks_model=True, temporary=True)
    def quantize_encoder(making: Building, pool: Pool, model: Artifact, corpus: Corpus, *, num_passages: int) -> dict:
        ...

    quantize_encoder.node("quantize-trained", model=..., corpus=..., num_passages=200)

A node is an artefact that exists or can be made. It determines the identity, the folder and the step in MLflow, and
whether and why the artefact is made.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Generic, Literal, ParamSpec, Union, get_args, get_origin, get_type_hints

from raydr.component import Config, content_of, is_neutral
from raydr.data.parts import ArtifactView
from raydr.distributed.pool import Pool
from raydr.errors import ArtifactError
from raydr.store import Artifact, Building, Folder, Identity
from raydr.tracking.tracker import Tracker

#: CPUs and GPUs by Ray's names.
Resources = Mapping[str, float]


@dataclass(frozen=True)
class NodeWork:
    """Context of the work on a node.

    Args:
        making: artefact to make.
        pool: pool that makes its parts.
        inputs: input artefacts by role.
        tracker: tracker of its step in MLflow.
    """

    making: Building
    pool: Pool
    inputs: Mapping[str, Artifact]
    tracker: Tracker


@dataclass(frozen=True, eq=False)
class Node:
    """An artefact that exists or can be made.

    Args:
        kind: kind of the artefact.
        label: display name in lists and in MLflow, for example ``round-2/train``; not part of the identity.
        make: function that makes it, and returns the info of its manifest.
        settings: settings that determine its content; JSON values.
        inputs: input nodes by role.
        version: version of the content; rises when the same settings lead to other content.
        num_rows: function from the inputs to the rows of work; these decide between this process and Ray.
        asks_model: whether a model reads the rows.
        demand: minimum of resources.
        after: nodes to make earlier that are not part of the identity.
        temporary: whether only other nodes need it; it is removed at the end of the round.
        moves: whether its name moves without a confirmation, as for pages.
        check: function that raises an error if it cannot be made; called before any work.
    """

    kind: str
    label: str
    make: Callable[[NodeWork], dict[str, Any]]
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
    #: Arguments of the stage, by parameter.
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def identity(self) -> Identity:
        inputs = {role: node.key for role, node in self.inputs.items()}
        return Identity(kind=self.kind, version=self.version, config=dict(self.settings), inputs=inputs)

    @cached_property
    def key(self) -> str:
        """Hash of kind, version, settings and the keys of the inputs."""
        return self.identity.fingerprint

    def ancestors(self) -> dict[str, Node]:
        """Return all direct and indirect inputs by key, in topological order."""
        nodes: dict[str, Node] = {}

        def visit(node: Node) -> None:
            for dependency in (*node.inputs.values(), *node.after):
                if dependency.key not in nodes:
                    visit(dependency)
                    nodes[dependency.key] = dependency

        visit(self)
        return nodes


@dataclass(frozen=True, eq=False)
class Existing(Node):
    """An existing artefact outside the config: a run of another program, a model of another config.

    Args:
        made_as: identity of the artefact.
        folder: its folder.
    """

    made_as: Identity = field(default_factory=lambda: Identity(kind=""))
    folder: Folder = field(default_factory=lambda: Folder(""))

    @classmethod
    def of(cls, artifact: Artifact, label: str) -> Existing:
        """Return the node of a finished artefact."""
        identity = artifact.manifest.identity

        def make(work: NodeWork) -> dict[str, Any]:
            raise ArtifactError(f"{label} was at {artifact.folder} and is gone: make it again, or leave it out")

        return cls(identity.kind, label, make, made_as=identity, folder=artifact.folder)

    @classmethod
    def at(cls, folder: str, kind: str) -> Existing:
        """Return the node of the artefact in a folder.

        Raises:
            ArtifactError: the folder holds no artefact of this kind.
        """
        return cls.of(Artifact.open(Folder(folder).absolute(), kind), f"{kind} at {folder}")

    @cached_property
    def identity(self) -> Identity:
        return self.made_as


#: Parameters that the pipeline fills in, by type.
_OF_THE_RUN: dict[type, Callable[[NodeWork], Any]] = {
    Building: lambda work: work.making,
    Pool: lambda work: work.pool,
    Tracker: lambda work: work.tracker,
}
P = ParamSpec("P")


@dataclass(frozen=True)
class _Parameter:
    """Parameter of a stage: an input, a group of inputs by name, or a setting."""

    name: str
    role: Literal["run", "input", "group", "setting"]
    kind: Any
    neutral: bool
    default: Any
    declared: type[Config] | None

    @classmethod
    def of(cls, parameter: inspect.Parameter, hint: Any) -> _Parameter:
        marks = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        plain = get_args(hint)[0] if marks else hint
        choices = get_args(plain) if get_origin(plain) in (Union, UnionType) else (plain,)
        classes = [choice for choice in choices if isinstance(choice, type)]
        kind = next((choice for choice in classes if choice in _OF_THE_RUN), None)
        role: Literal["run", "input", "group", "setting"] = "setting"
        if kind is not None:
            role = "run"
        elif opened := next((choice for choice in classes if issubclass(choice, Artifact | ArtifactView)), None):
            role, kind = "input", opened
        elif get_origin(plain) is Mapping and get_args(plain)[1] is Artifact:
            role, kind = "group", Artifact
        declared = next((choice for choice in classes if issubclass(choice, Config)), None)
        return cls(parameter.name, role, kind, any(map(is_neutral, marks)), parameter.default, declared)


class Declaration(Generic[P]):
    """A stage with the properties of its artefact; made by :func:`artefact`."""

    def __init__(self, function: Callable[P, dict[str, Any]], kind: str, **facts: Any) -> None:
        self.function, self.kind, self.facts = function, kind, facts
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: P.args, **options: P.kwargs) -> dict[str, Any]:
        return self.function(*arguments, **options)

    @cached_property
    def parameters(self) -> dict[str, _Parameter]:
        """Parameters of the stage by name; resolved at the first declaration of a node, not at import."""
        hints = get_type_hints(self.function, include_extras=True)
        signature = inspect.signature(self.function).parameters
        return {name: _Parameter.of(parameter, hints[name]) for name, parameter in signature.items()}

    def node(
        self,
        label: str,
        *,
        demand: Resources | None = None,
        after: tuple[Node, ...] = (),
        check: Callable[[], None] = lambda: None,
        asks_model: bool | None = None,
        **arguments: Any,
    ) -> Node:
        """Return the node of the artefact that this stage makes.

        Args:
            label: display name in lists and in MLflow.
            demand: minimum of resources; one CPU if None.
            after: nodes to make earlier that are not part of the identity.
            check: function that raises an error if the artefact cannot be made.
            asks_model: whether a model reads the rows, if that depends on the arguments.
            arguments: a node for each input, a mapping of nodes for each group, a value for each setting.

        Raises:
            TypeError: an argument has no parameter, or a parameter has no argument.
        """
        unknown = arguments.keys() - {name for name, parameter in self.parameters.items() if parameter.role != "run"}
        if unknown:
            raise TypeError(f"{self.kind} {label} is made from no {', '.join(sorted(unknown))}")
        inputs: dict[str, Node] = {}
        settings: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            if parameter.role == "run":
                continue
            value = arguments.get(name, parameter.default)
            if value is inspect.Parameter.empty:
                raise TypeError(f"{self.kind} {label} needs {name}")
            if parameter.role == "setting":
                settings[name] = value
            elif parameter.role == "group":
                inputs |= {f"{name}/{key}": node for key, node in value.items()}
            elif value is not None:
                inputs[name] = value
                if issubclass(parameter.kind, ArtifactView) and value.kind != parameter.kind.kind:
                    raise TypeError(f"{self.kind} {label}: {name} is a {parameter.kind.kind}, got a {value.kind}")
        rows = self.facts["rows"]
        return Node(
            self.kind,
            label,
            lambda work: self._make(work, settings),
            self._content(settings),
            inputs,
            self.facts["version"],
            num_rows=lambda made: 0 if rows is None else rows(SimpleNamespace(**settings, **made)),
            asks_model=self.facts["asks_model"] if asks_model is None else asks_model,
            demand={"CPU": 1.0} if demand is None else demand,
            after=after,
            temporary=self.facts["temporary"],
            moves=self.facts["moves"],
            check=check,
            arguments=settings,
        )

    def _content(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        explicit = self.facts["content"]
        if explicit is not None:
            return dict(content_of(explicit(SimpleNamespace(**settings))))
        content: dict[str, Any] = {}
        for name, value in settings.items():
            parameter = self.parameters[name]
            if parameter.neutral:
                continue
            part, default = content_of(value, parameter.declared), parameter.default
            if default is inspect.Parameter.empty or part != content_of(default):
                content[name] = part
        return content

    def _make(self, work: NodeWork, settings: Mapping[str, Any]) -> dict[str, Any]:
        arguments: dict[str, Any] = dict(settings)
        for name, parameter in self.parameters.items():
            if parameter.role == "run":
                arguments[name] = _OF_THE_RUN[parameter.kind](work)
            elif parameter.role == "group":
                start = f"{name}/"
                group = {role: made for role, made in work.inputs.items() if role.startswith(start)}
                arguments[name] = {role.removeprefix(start): made for role, made in group.items()}
            elif parameter.role == "input":
                made = work.inputs.get(name)
                arguments[name] = made if made is None or parameter.kind is Artifact else parameter.kind(made)
        make: Callable[..., dict[str, Any]] = self.function
        return make(**arguments)


def artefact(
    kind: str,
    *,
    version: int = 1,
    rows: Callable[[Any], int] | None = None,
    asks_model: bool = False,
    temporary: bool = False,
    moves: bool = False,
    content: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Callable[[Callable[P, dict[str, Any]]], Declaration[P]]:
    """Declare the artefact that a stage makes; the signature of the stage determines the identity.

    Parameters of the type ``Artifact``, or of a class that opens artefacts, are inputs: their names are the roles.
    ``Mapping[str, Artifact]`` is a group of inputs by name. The pipeline fills in ``Building``, ``Pool`` and
    ``Tracker``. All other parameters are settings. A setting enters the key unless its type is
    ``Annotated[..., Neutral]`` or its value is the default.

    Args:
        kind: kind of the artefact.
        version: version of the content; raise it when the same settings lead to other content, or a default changes.
        rows: function from inputs and settings to the rows of work; these decide between this process and Ray.
        asks_model: whether a model reads the rows.
        temporary: whether only other nodes need it; it is removed at the end of the round.
        moves: whether its name moves without a confirmation, as for pages.
        content: function from the settings to the content of the key, where the signature cannot express it.
    """
    facts: dict[str, Any] = {"version": version, "rows": rows, "asks_model": asks_model, "temporary": temporary}
    facts |= {"moves": moves, "content": content}
    return lambda function: Declaration(function, kind, **facts)
