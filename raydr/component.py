"""Strict config classes, and components that are picked by name.

A component (a loss, a reader, a judge, a sampler) is a frozen pydantic model: its fields are its settings,
its methods do its work. It lives in one file of its package; adding that file is all it takes to make the
name usable in a config::

    train:
      loss: {name: rcl, beta: 0.3}
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import core_schema

from raydr.errors import ConfigError

#: What pydantic puts into the place of an error for the member of a union.
_UNION_MEMBER = re.compile(r"function-\w+\[|literal\[|constrained-\w+$")
#: Keys that a message proposes, at most.
_SHOWN = 2
#: Entry points of this group name modules of other distributions that declare components.
PLUGINS = "raydr.components"


@cache
def load_plugins() -> None:
    """Import the modules that installed distributions name in their entry points, once a process.

    Raises:
        ConfigError: one of them cannot be imported; names it and its distribution.
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
    """Marks a setting, or a parameter of a stage, that does not change the bytes of an artefact.

    Used as ``cpus_per_task: Annotated[int, Neutral] = 1``: such a setting is no part of any key.
    """


class Resolved(Neutral):
    """Marks a setting that counts by what it resolves to on the machine, which is a parameter of its own.

    For example ``dtype: auto``, which resolves to bfloat16, or a checkpoint's name, which resolves to its checksum.
    """


def is_neutral(mark: Any) -> bool:
    """Whether a mark of an ``Annotated`` type says that the value is no part of a key."""
    return isinstance(mark, type) and issubclass(mark, Neutral)


def content_of(value: Any, declared: type[Config] | None = None) -> Any:
    """The JSON value that stands for a setting in a key.

    Of a section this is what differs from the defaults of its declared class, neutral settings left out: a setting
    that is added later changes no key. A component keeps its name. A ``content`` of a value's own takes precedence.

    Args:
        value: the setting.
        declared: the class that the setting is declared with; a section of a derived class may have other defaults.

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
    """Base of every config class: unknown keys are errors, values are validated, instances are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _keep_defaults_of_sections(cls, settings: Any) -> Any:
        """Settings of a section that are left out are those that the field's default sets, not its class's.

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
        """The settings that differ from the defaults, neutral ones left out, as JSON values.

        Args:
            declared: the class whose defaults count, this one or a base of it; this one if None. A component's own
                class always counts: its name stands for it.
        """
        of_class = declared if declared is not None and not isinstance(self, Component) else type(self)
        content: dict[str, Any] = {}
        for name, own in type(self).model_fields.items():
            if any(is_neutral(mark) for mark in own.metadata):
                continue
            field = of_class.model_fields.get(name, own)
            default = None if field.is_required() else field.get_default(call_default_factory=True)
            value = content_of(getattr(self, name), type(default) if isinstance(default, Config) else None)
            always = field.is_required() or (name == "name" and isinstance(self, Component))
            if always or value != content_of(default):
                content[name] = value
        return content


def _is_number(annotation: Any) -> bool:
    """Whether a field takes numbers and no booleans, which pydantic would take for 1 and 0."""
    kinds = {annotation}
    while more := {kind for outer in kinds for kind in get_args(outer) if isinstance(kind, Hashable)} - kinds:
        kinds |= more
    return bool({int, float} & kinds) and bool not in kinds


class Component(Config):
    """A config that also does the work it configures; subclasses pin ``name`` with a ``Literal``."""

    name: str

    package: ClassVar[str]
    """The package whose modules define the subclasses; set on the base class of each kind."""

    kind: ClassVar[str]
    """What the kind is called in messages, for example ``loss``."""

    @classmethod
    def choices(cls) -> dict[str, type[Component]]:
        """All components of this kind by name: those of its package, of plug-ins, and of what else was imported."""
        load_plugins()
        load_modules(cls.package)
        components: dict[str, type[Component]] = {}
        pending: list[type[Component]] = [cls]
        while pending:
            candidate = pending.pop()
            pending.extend(candidate.__subclasses__())
            default = candidate.model_fields["name"].default
            if isinstance(default, str):
                components[default] = candidate
        return dict(sorted(components.items()))


ComponentT = TypeVar("ComponentT", bound=Component)


class Pluggable:
    """Annotation that resolves ``{name: ...}`` to the component of that name.

    Used as ``loss: Annotated[Loss, Pluggable()]``; the annotated class says which kind is meant.
    """

    def __get_pydantic_core_schema__(self, source: type[Component], handler: GetCoreSchemaHandler) -> Any:
        def resolve(value: Any) -> Component:
            if isinstance(value, source):
                return value
            if isinstance(value, str):
                value = {"name": value}
            if not isinstance(value, dict) or "name" not in value:
                raise ValueError(f"a {source.kind} is written as {{name: ..., settings ...}}, got {value!r}")
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
    """The component of ``kind`` described by ``value`` (a name or a dict); for use outside a config tree."""
    chosen = kind.choices().get(value if isinstance(value, str) else value.get("name", ""))
    if chosen is None:
        raise ConfigError(f"unknown {kind.kind} {value!r}; allowed: {', '.join(kind.choices())}")
    made = chosen.model_validate({"name": value} if isinstance(value, str) else value)
    assert isinstance(made, kind)
    return made


def explain(error: ValidationError, where: str, of: type[Config] | None = None) -> str:
    """Pydantic's findings as one line a key: which key, what was found, what is allowed.

    Args:
        error: of the validation.
        where: the settings stand, for people.
        of: the class that was validated; what an unknown key may have meant is looked for there.
    """
    lines = findings(error, of)
    return f"{where} has {len(lines)} wrong {'setting' if len(lines) == 1 else 'settings'}:\n  " + "\n  ".join(lines)


def findings(error: ValidationError, of: type[Config] | None = None) -> list[str]:
    """One line a key that is wrong."""
    lines = []
    errors = error.errors(include_url=False)
    for finding in errors:
        steps = [str(step) for step in finding["loc"]]
        key = ".".join(step for step in steps if not _UNION_MEMBER.match(step))
        depth = len(steps) - 1
        beside = [other["loc"][depth:] for other in errors if other["loc"][:depth] == finding["loc"][:depth]]
        literals = [str(steps_below[0]).startswith("literal[") for steps_below in beside if steps_below]
        if steps and steps[-1].startswith("literal[") and not all(literals):
            # Another member of the union says what is wrong with what was meant.
            continue
        if finding["type"] == "extra_forbidden":
            lines.append(f"{key}: unknown key (value {finding['input']!r}){_meant(key, of)}")
        elif finding["type"] == "missing":
            lines.append(f"{key}: is missing")
        else:
            message = finding["msg"].removeprefix("Value error, ")
            # What concerns several settings names them and their values itself: the whole section is not repeated.
            names_it = finding["type"] == "value_error" and isinstance(finding["input"], dict)
            got = "" if names_it else f" (got {finding['input']!r})"
            lines.append(f"{key}: {message}{got}" if key else message)
    return lines


def _meant(key: str, of: type[Config] | None) -> str:
    """The keys that an unknown key may have meant: of its own section, else of the same name in others."""
    section, _, last = key.rpartition(".")
    keys = list(_keys(of)) if of is not None else []
    beside = {candidate.rpartition(".")[2]: candidate for candidate in keys if candidate.rpartition(".")[0] == section}
    near = [beside[name] for name in get_close_matches(last, beside, _SHOWN, 0.75)] or [
        candidate for candidate in keys if candidate.rpartition(".")[2] == last
    ][:_SHOWN]
    return f": did you mean {' or '.join(near)}?" if near else ""


def _keys(of: type[Config], section: str = "") -> Iterator[str]:
    """The keys of a class and of its sections, dotted."""
    for name, field in of.model_fields.items():
        yield f"{section}{name}"
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Config) and not issubclass(kind, Component):
                yield from _keys(kind, f"{section}{name}.")
