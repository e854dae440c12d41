"""All settings of a run, read from the config classes: key, type, default, and the words beside the field.

What a setting means stands once, in the docstring under its field.
"""

from __future__ import annotations

import ast
import functools
import inspect
import json
import math
import re
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from raydr.component import Component, Config, Pluggable

_BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_ROLE = re.compile(r":\w+:`~?([^`]*)`")


@dataclass(frozen=True)
class Setting:
    """One key of the config file.

    Args:
        key: dotted.
        type: what it takes.
        default: as in YAML; ``required`` if it has none.
        meaning: in words; may hold ``code``.
    """

    key: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class SettingGroup:
    """Settings that belong together: a section, or a component that is chosen by its name.

    Args:
        title: the section's key, or the kind and name of the component.
        about: the first sentence of the class.
        settings: in the order of the class.
    """

    title: str
    about: str
    settings: tuple[Setting, ...]


def list_settings(config: type[Config]) -> list[SettingGroup]:
    """Sections first, then the components of each kind, each once."""
    kinds: dict[type[Component], None] = {}
    groups = _sections(config, kinds)
    done: set[type[Component]] = set()
    while remaining := [kind for kind in kinds if kind not in done]:
        kind = remaining[0]
        done.add(kind)
        for name, component in _choices(kind).items():
            own = [field for field in component.model_fields if field != "name"]
            groups.append(
                SettingGroup(
                    f"{kind.kind} {name}",
                    _about(component),
                    tuple(setting for field in own for setting in _of_field(component, field, field, kinds)),
                )
            )
    return groups


def find_settings(groups: Sequence[SettingGroup], wanted: str) -> list[SettingGroup]:
    """The groups with only those settings whose key, or the group's title, has ``wanted`` in it; without empty ones."""
    matches = []
    for group in groups:
        whole = wanted in group.title
        settings = tuple(setting for setting in group.settings if whole or wanted in setting.key)
        if settings or whole:
            matches.append(SettingGroup(group.title, group.about, settings))
    return matches


def settings_page(groups: Sequence[SettingGroup]) -> str:
    """The reference as Markdown."""
    lines = [
        "# All settings",
        "",
        "Made by `raydr settings --markdown` from the config classes. What stands under a kind of component (`loss`, "
        "`judge`, ...) is",
        "written beside its `name`: `train: {loss: {name: rcl, reduction: reference}}`.",
    ]
    for group in groups:
        lines += ["", f"## {group.title}", "", group.about]
        if group.settings:
            lines += ["", "| key | type | default | meaning |", "|---|---|---|---|"]
            lines += [
                "| "
                + " | ".join(
                    _cell(text) for text in (f"`{setting.key}`", setting.type, f"`{setting.default}`", setting.meaning)
                )
                + " |"
                for setting in group.settings
            ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`")


def _sections(config: type[Config], kinds: dict[type[Component], None]) -> list[SettingGroup]:
    """The settings of the run itself, then those of each of its sections."""
    fields = config.model_fields
    sections = {name: section for name in fields if (section := _section(fields[name].annotation)) is not None}
    own = (setting for name in fields if name not in sections for setting in _of_field(config, name, name, kinds))
    return [
        SettingGroup("the run", _about(config), tuple(own)),
        *(
            SettingGroup(name, _about(section), tuple(_of_field(config, name, name, kinds)))
            for name, section in sections.items()
        ),
    ]


def _section(annotation: Any) -> type[Config] | None:
    """The config class that a field is, or may be beside null; None if it is a value or a component."""
    for choice in _alternatives(annotation):
        if isinstance(choice, type) and issubclass(choice, Config) and not issubclass(choice, Component):
            return choice
    return None


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _of_field(
    config: type[Config], name: str, key: str, kinds: dict[type[Component], None], instance: Config | None = None
) -> Iterator[Setting]:
    """A field, or those below it; ``instance`` is the default of the section that it is in, if that has one."""
    field = config.model_fields[name]
    section = _section(field.annotation)
    if section is None:
        default = _as_yaml(getattr(instance, name)) if instance is not None else _default_of(field)
        yield Setting(key, _type_of(field, kinds), default, _meaning(config, name))
        return
    default_section = None if field.is_required() else field.get_default(call_default_factory=True)
    if instance is not None:
        default_section = getattr(instance, name)
    if not isinstance(default_section, Config) and not field.is_required():
        words = [f"`{value}`" for choice in _alternatives(field.annotation) for value in typing.get_args(choice)]
        type_ = " or ".join(["section", *words, "null"])
        yield Setting(key, type_, _as_yaml(default_section), _meaning(config, name))
        default_section = None
    for below in section.model_fields:
        yield from _of_field(section, below, f"{key}.{below}", kinds, default_section)


def _type_of(field: FieldInfo, kinds: dict[type[Component], None]) -> str:
    bounds = [
        f"{sign} {bound:g}" if isinstance(bound, float) else f"{sign} {bound:,}"
        for mark in field.metadata
        for name, sign in _BOUNDS.items()
        if (bound := getattr(mark, name, None)) is not None
    ]
    pluggable = any(isinstance(mark, Pluggable) for mark in field.metadata)
    shown = _shown(field.annotation, pluggable, kinds)
    return f"{shown}, {', '.join(bounds)}" if bounds else shown


def _shown(annotation: Any, pluggable: bool, kinds: dict[type[Component], None]) -> str:
    """A type in words."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _shown(arguments[0], any(isinstance(argument, Pluggable) for argument in arguments[1:]), kinds)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_shown(argument, pluggable, kinds) for argument in arguments))
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if isinstance(annotation, type) and issubclass(annotation, Component) and pluggable:
        kinds.setdefault(annotation)
        return f"{annotation.kind}: {', '.join(f'`{name}`' for name in _choices(annotation))}"
    if origin in (list, tuple, dict, frozenset, set):
        inner = [_shown(argument, pluggable, kinds) for argument in arguments if argument is not Ellipsis]
        return f"keys with {inner[-1]}" if origin is dict else f"list of {', '.join(dict.fromkeys(inner))}"
    names = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null", Any: "anything"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _choices(kind: type[Component]) -> dict[str, type[Component]]:
    """The components that come with raydr; a program may have defined others."""
    package = kind.package.partition(".")[0] + "."
    return {name: component for name, component in kind.choices().items() if component.__module__.startswith(package)}


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return _as_yaml(field.get_default(call_default_factory=True))


def _as_yaml(value: Any) -> str:
    if isinstance(value, Component):
        settings = value.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
        return value.name if not settings else _as_yaml({"name": value.name, **settings})
    plain = to_jsonable_python(value)
    if isinstance(plain, str) and "\n" in plain:
        # On one line, which YAML reads too.
        return json.dumps(plain)
    return (
        yaml.safe_dump(plain, default_flow_style=True, sort_keys=False, width=math.inf).removesuffix("\n...\n").strip()
    )


def _about(config: type[Config]) -> str:
    text = inspect.getdoc(config) or ""
    return _plain(" ".join(text.split("\n\n")[0].split()))


def _meaning(config: type[Config], name: str) -> str:
    """The docstring under a field, of the class itself or of one that it is derived from."""
    owners = (owner for owner in config.__mro__ if issubclass(owner, Config))
    return _plain(
        next((docstrings[name] for owner in owners if name in (docstrings := _attribute_docstrings(owner))), "")
    )


@functools.cache
def _attribute_docstrings(config: type[Config]) -> dict[str, str]:
    """The docstrings under the attributes of a class, each in one line.

    Pydantic's ``use_attribute_docstrings`` gives the same, but parses every class when it is imported: 0.1 s or more
    in each process of a run, for what only the reference shows.
    """
    docstrings = {}
    (tree,) = ast.parse(inspect.getsource(config)).body
    assert isinstance(tree, ast.ClassDef)
    for attribute, below in pairwise(tree.body):
        match attribute, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                docstrings[name] = " ".join(text.split())
    return docstrings


def _plain(text: str) -> str:
    """Without the roles of the documentation's language."""
    return _ROLE.sub(r"``\1``", text)
