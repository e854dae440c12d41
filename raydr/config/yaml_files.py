"""Reading YAML: files that hold a mapping, and single values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from raydr.errors import ConfigError

#: Values of a text with its anchors written out, at most: a few lines can stand for more than fits in memory.
_MOST_VALUES = 100_000


def read_mapping(path: str | Path, what: str, shape: str) -> dict[str, Any]:
    """The content of a file.

    Args:
        path: local.
        what: it is, for messages, for example ``config file``.
        shape: of the mapping, for messages, for example ``of sections``.

    Raises:
        ConfigError: the file is missing, cannot be read, is not YAML, or holds something else than a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no {what} {path}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path} is a folder: give the {what} in it") from None
    except OSError as error:
        raise ConfigError(f"cannot read the {what} {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not valid UTF-8 at byte {error.start}: save the {what} as UTF-8") from None
    try:
        found = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} must be a mapping {shape}, found {found!r:.200}")
    return found


def parse_yaml(text: str) -> Any:
    """The value of a YAML text, which names each key once.

    Raises:
        yaml.YAMLError: it is not YAML, repeats a key, contains itself, or stands for too many values.

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
    finally:
        loader.dispose()


def _count(node: yaml.Node, known: dict[int, int]) -> int:
    """Values that a node stands for, aliases written out; ``known`` has those of nodes met before, 0 while open."""
    if id(node) in known:
        if not known[id(node)]:
            raise _wrong("it contains itself", node)
        return known[id(node)]
    known[id(node)] = 0
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        _refuse_repeated_keys(node)
        inner = [one for pair in node.value for one in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    total = 1 + sum(_count(one, known) for one in inner)
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
