"""Reference of all settings, from the JSON schema of the config classes: key, type, default and meaning.

The meaning of a setting is the docstring under its field.
"""

from __future__ import annotations

import ast
import inspect
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import yaml
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_jsonable_python

from raydr.component import Component, Config

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}
_ROLE = re.compile(r":\w+:`~?([^`]*)`")
_REQUIRED = object()


@dataclass(frozen=True)
class Setting:
    """Setting of a config file.

    Args:
        key: dotted key.
        type: allowed values, in words.
        default: default as in YAML; ``required`` without a default.
        meaning: meaning in words; may hold ``code``.
    """

    key: str
    type: str
    default: str
    meaning: str


@dataclass(frozen=True)
class SettingGroup:
    """Settings of a section, or of a component that is chosen by its name.

    Args:
        title: key of the section, or kind and name of the component.
        about: first paragraph of the class's docstring.
        settings: settings in the order of the class.
    """

    title: str
    about: str
    settings: tuple[Setting, ...]


class _Schema(GenerateJsonSchema):
    """JSON schema with the docstrings of fields as descriptions, and components as the names of their kind.

    Pydantic's ``use_attribute_docstrings`` parses every class at import, which costs each process of a run 0.1 s.
    """

    def __init__(self, kinds: dict[type[Component], None]) -> None:
        super().__init__()
        #: Kinds of the components that the class names; added to the caller's.
        self.kinds = kinds

    def model_schema(self, schema: Any) -> dict[str, Any]:
        described = super().model_schema(schema)
        for name, meaning in _field_docstrings(schema["cls"]).items():
            if name in described.get("properties", {}):
                described["properties"][name]["description"] = meaning
        return described

    def is_instance_schema(self, schema: Any) -> dict[str, Any]:
        kind: type[Component] = schema["cls"]
        self.kinds.setdefault(kind)
        return {"title": kind.kind, "enum": list(_choices(kind))}

    def encode_default(self, dft: Any) -> Any:
        return _plain(dft)


def list_settings(config: type[Config]) -> list[SettingGroup]:
    """Return the settings of the run, then of its sections, then of the components of each kind."""
    kinds: dict[type[Component], None] = {}
    schema = _Schema(kinds).generate(config.__pydantic_core_schema__)
    own: list[Setting] = []
    sections: list[SettingGroup] = []
    for name, field in schema["properties"].items():
        section, settings = _section(field, schema), tuple(_settings(name, field, schema))
        if section is None:
            own += settings
        else:
            sections.append(SettingGroup(name, _first_paragraph(section), settings))
    groups = [SettingGroup("the run", _first_paragraph(schema), tuple(own)), *sections]
    done: set[type[Component]] = set()
    # The settings of a component may name further kinds.
    while remaining := [kind for kind in kinds if kind not in done]:
        done.add(remaining[0])
        for name, component in _choices(remaining[0]).items():
            schema = _Schema(kinds).generate(component.__pydantic_core_schema__)
            fields = [(key, field) for key, field in schema["properties"].items() if key != "name"]
            below = tuple(setting for key, field in fields for setting in _settings(key, field, schema))
            groups.append(SettingGroup(f"{remaining[0].kind} {name}", _first_paragraph(schema), below))
    return groups


def find_settings(groups: Sequence[SettingGroup], part: str) -> list[SettingGroup]:
    """Return the settings whose key, or whose group's title, contains ``part``; empty groups are left out."""
    matches = []
    for group in groups:
        settings = tuple(setting for setting in group.settings if part in group.title or part in setting.key)
        if settings or part in group.title:
            matches.append(replace(group, settings=settings))
    return matches


def settings_page(groups: Sequence[SettingGroup]) -> str:
    """Return the reference as Markdown."""
    lines = [
        "# All settings\n",
        "Made by `raydr settings --markdown` from the config classes. Settings of a component (`loss`, `judge`) stand",
        "beside its `name`: `train: {loss: {name: rcl, reduction: reference}}`.",
    ]
    for group in groups:
        lines.append(f"\n## {group.title}\n\n{group.about}")
        if group.settings:
            lines.append("\n| key | type | default | meaning |\n|---|---|---|---|")
        for setting in group.settings:
            cells = (f"`{setting.key}`", setting.type, f"`{setting.default}`", setting.meaning)
            escaped = (cell.replace("|", r"\|").replace("``", "`") for cell in cells)
            lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines) + "\n"


def _settings(
    key: str, field: Mapping[str, Any], schema: Mapping[str, Any], default: Any = _REQUIRED
) -> Iterator[Setting]:
    """Yield the setting of a field, or the settings of a section with a default."""
    section = _section(field, schema)
    if default is _REQUIRED:
        default = field.get("default", _REQUIRED)
    if section is None or default is None or isinstance(default, str):
        written = "required" if default is _REQUIRED else _as_yaml(default)
        yield Setting(key, _type(field), written, field.get("description", ""))
    if section is not None:
        defaults = default if isinstance(default, Mapping) else {}
        for name, below in section["properties"].items():
            yield from _settings(f"{key}.{name}", below, schema, defaults.get(name, _REQUIRED))


def _section(field: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema of a field's section, which may also be null; None if the field is a value."""
    names = [_name(choice) for choice in field.get("anyOf", [field]) if "$ref" in choice]
    return schema["$defs"][names[0]] if names else None


def _name(reference: Mapping[str, Any]) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _type(schema: Mapping[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    if "anyOf" in schema:
        return " or ".join("section" if "$ref" in choice else _type(choice) for choice in schema["anyOf"])
    if "$ref" in schema:
        return _name(schema)
    if "const" in schema or "enum" in schema:
        names = ", ".join(f"`{value}`" for value in schema.get("enum", [schema.get("const")]))
        return f"{schema['title']}: {names}" if "type" not in schema else names
    if schema.get("type") == "array":
        items = schema.get("prefixItems") or [schema["items"]]
        return f"list of {', '.join(dict.fromkeys(map(_type, items)))}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"keys with {_type(values if isinstance(values, Mapping) else {})}"
    bounds = ", ".join(f"{sign} {schema[bound]:,.10g}" for bound, sign in _BOUNDS.items() if bound in schema)
    return f"{_TYPES.get(schema.get('type', ''), 'anything')} {bounds}".rstrip()


def _plain(value: Any) -> Any:
    """Return a default as JSON values; a component has its name and the settings that differ from its defaults."""
    if isinstance(value, Component):
        changed = value.model_dump(mode="json", exclude_defaults=True, exclude={"name"})
        return {"name": value.name, **changed} if changed else value.name
    if isinstance(value, Config):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    return to_jsonable_python(value)


def _as_yaml(value: Any) -> str:
    if isinstance(value, str) and "\n" in value:
        # A line of JSON, which YAML reads too.
        return json.dumps(value)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=math.inf)
    return text.removesuffix("\n...\n").strip()


def _choices(kind: type[Component]) -> dict[str, type[Component]]:
    """Return the components that come with raydr, without those of programs and plug-ins."""
    package = kind.package.partition(".")[0] + "."
    return {name: component for name, component in kind.choices().items() if component.__module__.startswith(package)}


def _first_paragraph(schema: Mapping[str, Any]) -> str:
    return _in_a_line(schema.get("description", "").partition("\n\n")[0])


def _field_docstrings(config: type[Config]) -> dict[str, str]:
    """Return the docstrings under the fields of a class and of its bases."""
    docstrings: dict[str, str] = {}
    for owner in reversed(config.__mro__):
        if issubclass(owner, Config):
            [tree] = ast.parse(inspect.getsource(owner)).body
            assert isinstance(tree, ast.ClassDef)
            for field, below in pairwise(tree.body):
                match field, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                        docstrings[name] = _in_a_line(text)
    return docstrings


def _in_a_line(text: str) -> str:
    """Return a docstring in a single line, without the roles of reStructuredText."""
    return _ROLE.sub(r"``\1``", " ".join(text.split()))
