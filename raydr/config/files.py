"""Files of configs: YAML, overrides, configs that come with raydr, and absolute paths."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import yaml

from raydr.component import Config
from raydr.data.inputs import absolute
from raydr.errors import ConfigError, first_line

#: Maximum of values of a text with expanded anchors; a few lines can expand to more than fits in memory.
_MOST_VALUES = 100_000
#: Tags of numbers, and numbers that YAML 1.1 reads to the base of 8 or 60.
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OTHER_BASE = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-9_.]+)+)")

#: Suffixes of files that hold data and never a config.
_DATA = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".gz")


def is_data(argument: str) -> bool:
    """Return whether an argument is data and not a config: a folder, or a file of another kind than YAML.

    >>> is_data("pairs.csv"), is_data("run.yaml"), is_data("s3://bucket/pairs")
    (True, False, True)
    """
    if argument.endswith((".yaml", ".yml")):
        return False
    return "://" in argument or argument.lower().endswith(_DATA) or Path(argument).expanduser().exists()


def refuse_data(path: Path) -> None:
    """Check that a path is not data, which users pass in place of a config.

    Raises:
        ConfigError: the path is data; the message has the command that makes a config for it.
    """
    if not path.is_dir() and not path.name.lower().endswith(_DATA):
        return
    if not path.exists():
        raise ConfigError(f"there is no file {path}{_near(path)}")
    what = "a folder" if path.is_dir() else "data"
    raise ConfigError(
        f"{path} is {what}; expected the YAML file of a run: raydr prepare {shlex.quote(str(path))} reads the data and "
        "writes this file"
    )


def _near(path: Path) -> str:
    """Return a question with the similar names of files beside a path, for messages."""
    beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    near = [str(path.parent / name) for name in get_close_matches(path.name, beside)]
    return f": did you mean {' or '.join(near)}?" if near else ""


def read_mapping(path: str | Path, what: str, shape: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Args:
        path: local path.
        what: kind of the file, for messages, for example ``config file``.
        shape: content of the mapping, for messages, for example ``of sections``.

    Raises:
        ConfigError: the file is missing, cannot be read, is not YAML, or does not hold a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}{_near(Path(path))}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: give the {what} in it") from None
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid UTF-8 at byte {error.start}: save the {what} as UTF-8") from None
    try:
        content = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must be a mapping {shape}, found {content!r:.200}")
    return content


def parse_yaml(text: str) -> Any:
    """Parse a YAML text that names each key once.

    Raises:
        yaml.YAMLError: the text is not YAML, repeats a key, contains itself or expands to too many values; or YAML 1.1
            reads a number as another number, such as 010 (8) and 12:30 (750).

    >>> parse_yaml("{a: [1, 2], b: null}")
    {'a': [1, 2], 'b': None}
    >>> parse_yaml("a: 1\\nb: 2\\na: 3")
    Traceback (most recent call last):
    yaml.constructor.ConstructorError: the key 'a' is there twice, first in line 1
      in "<unicode string>", line 3, column 1:
        a: 3
        ^
    """
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _count(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, OverflowError, KeyError, AttributeError, TypeError) as error:
        # PyYAML raises Python's errors for a month 13, a number of 5,000 digits, or a tag of another type.
        raise yaml.YAMLError(f"a value is none of its kind ({first_line(error)})") from None
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Count the values of a node with its aliases expanded; ``known`` has the counts of earlier nodes, 0 while open."""
    if id(node) in known:
        if not known[id(node)]:
            raise _wrong("it contains itself", node)
        return known[id(node)]
    known[id(node)] = 0
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated_keys(node)
        inner = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    elif _OTHER_BASE.fullmatch(node.value) and node.tag in _NUMBERS:
        number = yaml.safe_load(node.value)
        raise _wrong(f"YAML reads {node.value} as {number}: write {number}, or {node.value!r} in quotes", node)
    total = 1 + sum(_count(child, known) for child in inner)
    if total > _MOST_VALUES:
        raise _wrong(f"with its anchors written out it holds more than {_MOST_VALUES:,} values", node)
    known[id(node)] = total
    return total


def _refuse_repeated_keys(node: yaml.MappingNode) -> None:
    first: dict[tuple[str, str], yaml.Node] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            before = first.setdefault((key.tag, key.value), key)
            if before is not key:
                line = before.start_mark.line + 1
                raise _wrong(f"the key {key.value!r} is there twice, first in line {line}", key)


def _wrong(problem: str, node: yaml.Node) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested settings with changes; a component of another name replaces the whole component."""
    together = dict(base)
    for key, value in changes.items():
        earlier = together.get(key)
        nested = isinstance(value, dict) and isinstance(earlier, dict)
        if nested and value.get("name", earlier.get("name")) == earlier.get("name"):  # type: ignore[union-attr]
            together[key] = merged(earlier, value)  # type: ignore[arg-type]
        else:
            together[key] = value
    return together


def apply_override(raw: dict[str, Any], override: str, option: str = "--set") -> None:
    """Set ``key.path=value`` of a command line in nested settings; the value is YAML.

    Raises:
        ConfigError: the override is not ``key=value``, or a part of the key is a setting without settings of its own.
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"{option} takes key=value, got {override!r}; for example {option} train.num_epochs=3")
    *parents, last = key.split(".")
    target = raw
    for parent in parents:
        inner = target.get(parent)
        if inner is None:
            inner = target[parent] = {}
        elif isinstance(inner, str):
            # A component may be written by its bare name; an override of its settings makes it a mapping.
            inner = target[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"{option} {override}: {parent} is {inner!r} and has no settings of its own")
        target = inner
    try:
        target[last] = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{option} {override}: {text!r} is not YAML ({' '.join(str(error).split())})") from None


#: Folders of configs and search spaces in a checkout.
CONFIGS = ("configs", "configs/benchmarks", "configs/experiments", "jobs/recipes")
SPACES = ("tune_spaces",)

_PACKAGE = Path(__file__).parents[1]
#: Maximum of names that a message lists; of more names, it lists similar names.
_LISTED = 12


def located(name_or_path: str | Path, folders: tuple[str, ...], what: str) -> Path:
    """Return the file at a path, or the file that comes with raydr under that name.

    Args:
        name_or_path: path; or, if no such file exists, name without suffix, for example ``so-codenn``. A folder of
            this name does not count.
        folders: :data:`CONFIGS` or :data:`SPACES`.
        what: kind of the file, for messages, for example ``config file``.

    Raises:
        ConfigError: no file has that name.
    """
    path = Path(name_or_path)
    if path.is_file() or path.suffix or path.name != str(name_or_path):
        return path
    files = {file.stem: file for folder in folders for file in sorted(_folder(folder).glob("*.yaml"))}
    if path.name not in files and path.exists():
        return path
    if path.name not in files:
        near = sorted(files) if len(files) <= _LISTED else get_close_matches(path.name, files)
        hint = f"; with raydr come {', '.join(near)}" if near else ""
        raise ConfigError(f"there is no {what} {path}, and none of that name comes with raydr{hint}")
    return files[path.name]


def _folder(name: str) -> Path:
    """Return a folder of configs: inside the package in a wheel (``setup.py``), beside the package in a checkout."""
    packed = _PACKAGE / "shipped" / Path(name).name
    return packed if packed.is_dir() else _PACKAGE.parent / name


_Settings = TypeVar("_Settings")


def anchored(name: str) -> str:
    """Make the path of an existing file absolute; other values, such as a name on the hub, stay as they are."""
    return absolute(name) if name and "://" not in name and Path(name).expanduser().exists() else name


def with_anchored_checkpoints(settings: _Settings) -> _Settings:
    """Return settings with the absolute path of every checkpoint at any depth."""
    if isinstance(settings, list | tuple):
        return type(settings)(with_anchored_checkpoints(item) for item in settings)
    if not isinstance(settings, Config):
        return settings
    values = {name: getattr(settings, name) for name in type(settings).model_fields}
    changed = {
        name: anchored(value)
        if name in ("checkpoint", "passage_checkpoint") and value
        else with_anchored_checkpoints(value)
        for name, value in values.items()
    }
    return settings.model_copy(update={name: value for name, value in changed.items() if value != values[name]})
