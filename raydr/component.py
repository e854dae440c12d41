"""Strict config classes, and components selected by name.

A component (a loss, a reader, a judge, a sampler) is a frozen pydantic model: its fields are its settings, its methods
do its work. A file in the package of its kind suffices to make its name available in configs::

    train:
      loss: {name: rcl, beta: 0.3}
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Hashable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import core_schema

from raydr.errors import ConfigError

#: Pydantic's location of an error within a union.
_UNION_MEMBER = re.compile(r"function-\w+\[|literal\[|constrained-\w+$")
#: Largest number of proposed keys in a message.
_SHOWN = 2
#: Entry-point group of modules of other distributions that declare components.
PLUGINS = "raydr.components"


@cache
def load_plugins() -> None:
    """Import the modules of installed distributions' entry points, once a process.

    Raises:
        ConfigError: an import fails; the message names the module and its distribution.
    """
    for point in entry_points(group=PLUGINS):
        try:
            importlib.import_module(point.value)
        except Exception as error:
            source = point.dist.name if point.dist is not None else "an unknown distribution"
            raise ConfigError(
                f"the components of {source} cannot be imported: its entry point {point.name!r} of the group {PLUGINS} "
                f"names {point.value!r}: {type(error).__name__}: {error}. Repair or uninstall it"
            ) from error


@cache
def load_modules(package: str) -> None:
    """Import all modules of a package, once a process."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")


class Neutral:
    """Mark of a setting, or stage parameter, that does not change the bytes of an artefact.

    ``cpus_per_task: Annotated[int, Neutral] = 1`` is part of no key.
    """


class Resolved(Neutral):
    """Mark of a setting whose resolved value, a separate parameter, is part of the key.

    For example ``dtype: auto`` resolves to bfloat16, and a checkpoint's name to its checksum.
    """


def is_neutral(mark: Any) -> bool:
    """Return whether a mark of an ``Annotated`` type excludes the value from keys."""
    return isinstance(mark, type) and issubclass(mark, Neutral)


def content_of(value: Any, declared: type[Config] | None = None) -> Any:
    """Return the JSON value of a setting in a key.

    A section contributes its differences from the defaults of its declared class, without neutral settings, so that new
    settings change no key. A component keeps its name. A value's own ``content`` takes precedence.

    Args:
        value: value of the setting.
        declared: declared class of the setting; a derived class may have other defaults.

    >>> from typing import Annotated
    >>> class Side(Config):
    ...     prefix: str = ""
    ...     cpus: Annotated[int, Neutral] = 1
    >>> content_of(Side(prefix="query: ", cpus=4)), content_of(Side())
    ({'prefix': 'query: '}, {})
    """
    own = getattr(value, "content", None)
    if own is not None and not isinstance(value, type):
        return content_of(own() if callable(own) else own)
    if isinstance(value, Config):
        return value.differing_settings(declared)
    if isinstance(value, Mapping):
        return {str(key): content_of(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [content_of(inner) for inner in value]
    if isinstance(value, set | frozenset):
        return sorted(content_of(inner) for inner in value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: content_of(getattr(value, field.name)) for field in fields(value)}
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(f"{type(value).__name__} {value!r} cannot be part of a key: mark its parameter Neutral")


class Config(BaseModel):
    """Base of config classes: unknown keys are errors, values are validated, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keep_defaults_of_sections(cls, settings: Any) -> Any:
        """Fill omitted settings of a section from the field's default, not its class's.

        >>> class Side(Config):
        ...     prefix: str = ""
        ...     length: int = 128
        >>> class Model(Config):
        ...     query: Side = Side(length=64)
        >>> Model.model_validate({"query": {"prefix": "query: "}}).query.length
        64
        """
        if not isinstance(settings, Mapping):
            return settings
        filled, fields = dict(settings), cls.model_fields
        for name, section in settings.items():
            if isinstance(section, bool) and name in fields and _is_number(fields[name].annotation):
                raise ValueError(f"{name} is {str(section).lower()}, where a number is expected")
            if not isinstance(section, Mapping) or name not in fields:
                continue
            default = fields[name].get_default(call_default_factory=True)
            if isinstance(default, Config) and not isinstance(default, Component):
                filled[name] = {key: getattr(default, key) for key in default.model_fields_set} | dict(section)
        return filled

    def differing_settings(self, declared: type[Config] | None = None) -> dict[str, Any]:
        """Return the settings that differ from the defaults, without neutral settings, as JSON values.

        Args:
            declared: class of the defaults, this class or a base; None: this class. A component always uses its own
                class, which its name represents.
        """
        of_class = declared if declared is not None and not isinstance(self, Component) else type(self)
        content: dict[str, Any] = {}
        for name, own in type(self).model_fields.items():
            if any(is_neutral(mark) for mark in own.metadata):
                continue
            field = of_class.model_fields.get(name, own)
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            value = content_of(getattr(self, name), type(default) if isinstance(default, Config) else None)
            # The defaults of a class outside raydr may change with its code.
            always = field.is_required() or (isinstance(self, Component) and (name == "name" or bool(self.own_code)))
            if always or value != content_of(default):
                content[name] = value
        return content | (self.own_code if isinstance(self, Component) else {})


def _is_number(annotation: Any) -> bool:
    """Return whether a field takes numbers but no booleans, which pydantic would convert to 1 and 0."""
    kinds = {annotation}
    while more := {kind for outer in kinds for kind in get_args(outer) if isinstance(kind, Hashable)} - kinds:
        kinds |= more
    return bool({int, float} & kinds) and bool not in kinds


class Component(Config):
    """A config that also does its work; subclasses pin ``name`` with a ``Literal``."""

    name: str

    package: ClassVar[str]
    """Package whose modules define the subclasses; set on the base class of each kind."""

    kind: ClassVar[str]
    """Name of the kind in messages, for example ``loss``."""

    own_code: ClassVar[dict[str, str]] = {}
    """Checksum of the methods of a class outside raydr, part of keys; raydr's artefacts have versions instead. It is
    taken where the class is defined, since a worker may lack the source."""

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        super().__pydantic_init_subclass__(**options)
        if cls.__module__.startswith("raydr."):
            return
        texts = list(cls.own_code.values())
        for member in vars(cls).values():
            with suppress(OSError, TypeError):
                texts.append(inspect.getsource(getattr(member, "fget", member)))
        cls.own_code = {"code_checksum": hashlib.blake2b("".join(texts).encode(), digest_size=8).hexdigest()}

    @classmethod
    def choices(cls) -> dict[str, type[Component]]:
        """Return all components of this kind by name: those of its package, of plug-ins, and of other imports.

        A class that is defined again, as in a notebook, replaces its former version.

        Raises:
            ConfigError: two classes have the same name.
        """
        load_plugins()
        load_modules(cls.package)
        components: dict[str, type[Component]] = {}
        pending: list[type[Component]] = [cls]
        while pending:
            candidate = pending.pop()
            pending.extend(candidate.__subclasses__())
            default = candidate.model_fields["name"].default
            if not isinstance(default, str):
                continue
            # Of siblings, the latest comes first.
            chosen = components.setdefault(default, candidate)
            if _definition(chosen) != _definition(candidate):
                names = " and ".join(f"{each.__module__}.{each.__qualname__}" for each in (chosen, candidate))
                raise ConfigError(f"two components are the {cls.kind} {default!r}: {names}: rename one")
        return dict(sorted(components.items()))


def _definition(component: type[Component]) -> tuple[str, str]:
    """Return file and name of a class: a file may be loaded as several modules, such as ``__main__`` and its own."""
    file = getattr(sys.modules.get(component.__module__), "__file__", None)
    return file or component.__module__, component.__qualname__


ComponentT = TypeVar("ComponentT", bound=Component)


class Pluggable:
    """Annotation that resolves ``{name: ...}`` to the component with that name.

    In ``loss: Annotated[Loss, Pluggable()]`` the annotated class is the kind.
    """

    def __get_pydantic_core_schema__(self, source: type[Component], handler: GetCoreSchemaHandler) -> Any:
        def resolve(value: Any) -> Component:
            if isinstance(value, source):
                return value
            if isinstance(value, str):
                value = {"name": value}
            if not isinstance(value, dict) or "name" not in value:
                raise ValueError(f"a {source.kind} needs the form {{name: ..., settings ...}}, got {value!r}")
            choices = source.choices()
            chosen = choices.get(value["name"])
            if chosen is None:
                raise ValueError(f"unknown {source.kind} {value['name']!r}; allowed: {', '.join(choices)}")
            return chosen.model_validate(value)

        return core_schema.no_info_plain_validator_function(
            resolve,
            json_schema_input_schema=core_schema.is_instance_schema(source),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda part, info: part.model_dump(mode=info.mode), info_arg=True
            ),
        )


def build(kind: type[ComponentT], value: Any) -> ComponentT:
    """Build the component of ``kind`` from ``value`` (a name or dict), outside a config tree."""
    chosen = kind.choices().get(value if isinstance(value, str) else value.get("name", ""))
    if chosen is None:
        raise ConfigError(f"unknown {kind.kind} {value!r}; allowed: {', '.join(kind.choices())}")
    made = chosen.model_validate({"name": value} if isinstance(value, str) else value)
    assert isinstance(made, kind)
    return made


def explain(error: ValidationError, where: str, of: type[Config] | None = None) -> str:
    """Format a validation error, a line for each key: key, value, allowed values.

    Args:
        error: error of the validation.
        where: place of the settings, for the message.
        of: validated class, which is searched for keys similar to unknown keys.
    """
    lines = findings(error, of)
    return f"{where} has {len(lines)} wrong {'setting' if len(lines) == 1 else 'settings'}:\n  " + "\n  ".join(lines)


def findings(error: ValidationError, of: type[Config] | None = None) -> list[str]:
    """Return a line for each wrong key."""
    lines = []
    errors = error.errors(include_url=False)
    for finding in errors:
        steps = [str(step) for step in finding["loc"]]
        key = ".".join(step for step in steps if not _UNION_MEMBER.match(step))
        depth = len(steps) - 1
        beside = [other["loc"][depth:] for other in errors if other["loc"][:depth] == finding["loc"][:depth]]
        literals = [str(steps_below[0]).startswith("literal[") for steps_below in beside if steps_below]
        if steps and steps[-1].startswith("literal[") and not all(literals):
            # Another union member has the relevant error.
            continue
        if finding["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key (value {finding['input']!r}){_meant(key, of)}")
        elif finding["type"] == "missing":
            lines.append(f"{key}: is missing")
        else:
            message = finding["msg"].removeprefix("Value error, ")
            # An error about several settings already names their values.
            names_it = finding["type"] == "value_error" and isinstance(finding["input"], dict)
            got = "" if names_it else f" (got {finding['input']!r})"
            lines.append(f"{key}: {message}{got}" if key else message)
    return lines


def _meant(key: str, of: type[Config] | None) -> str:
    """Suggest keys for an unknown key: of its section, else of the same name in others."""
    section, _, last = key.rpartition(".")
    keys = list(_keys(of)) if of is not None else []
    beside = {candidate.rpartition(".")[2]: candidate for candidate in keys if candidate.rpartition(".")[0] == section}
    near = [beside[name] for name in get_close_matches(last, beside, _SHOWN, 0.75)] or [
        candidate for candidate in keys if candidate.rpartition(".")[2] == last
    ][:_SHOWN]
    return f": did you mean {' or '.join(near)}?" if near else ""


def _keys(of: type[Config], section: str = "") -> Iterator[str]:
    """Yield the dotted keys of a class and its sections."""
    for name, field in of.model_fields.items():
        yield f"{section}{name}"
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Config) and not issubclass(kind, Component):
                yield from _keys(kind, f"{section}{name}.")
