"""A search space bound to a config: every setting is there, and every value of it is valid before anything starts."""

from __future__ import annotations

import contextlib
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raydr.component import explain
from raydr.config.overrides import merged
from raydr.config.run import RunConfig
from raydr.config.shipped import SPACES, located
from raydr.config.yaml_files import read_mapping
from raydr.errors import ConfigError
from raydr.tuning.parameters import Parameter, as_text
from raydr.tuning.settings import TuneConfig
from raydr.tuning.trial_config import check_searchable, value_at, with_values

#: Names that a Python space may have in its file: a mapping, or a function from the config to one.
SPACE, SPACE_FUNCTION = "SPACE", "space"

#: What a space must be, for messages.
_SHAPE = "with a section space"
#: Values that are listed for people; of more only the ends are shown.
_LISTED = 12
#: Wrong values that one message lists.
_MOST_ERRORS = 5


@dataclass(frozen=True)
class Space:
    """What is searched.

    Args:
        name: of the space, for folders and titles.
        settings: of the space file.
        config: the run with what the space fixes: the config of the default trial.
        parameters: by dotted key.
        defaults: what ``config`` says for these keys.
        corners: the default, and every end (or listed value) of every parameter, one changed at a time; with configs.
    """

    name: str
    settings: TuneConfig
    config: RunConfig
    parameters: dict[str, Parameter]
    defaults: dict[str, Any]
    corners: Sequence[tuple[dict[str, Any], RunConfig]]

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows: each setting, its default, and what is tried."""
        rows = []
        for key, one in self.parameters.items():
            texts = [as_text(value) for value in one.values or one.ends]
            spread = f"{texts[0]} to {texts[-1]}" + (", logarithmic" if one.log else "")
            listed = one.values is not None and len(texts) <= _LISTED
            rows.append([key, as_text(self.defaults[key]), ", ".join(texts) if listed else spread])
        return ["setting", "default", "tried"], rows


def load_space(path: str | Path, config: RunConfig, overrides: Mapping[str, Any] | None = None) -> Space:
    """Read a space file, YAML or Python, and bind it to a config.

    Args:
        path: a ``.py`` file with a mapping ``SPACE`` or a function ``space(config)`` that returns one; else YAML. Or
            the name of a space that comes with raydr, such as ``npc``.
        config: the run.
        overrides: nested settings of the space file that are changed.

    Raises:
        ConfigError: the file is missing or wrong, a key is not in the config, or a value of it is not valid.
    """
    file = located(path, SPACES, "space file")
    if not file.is_file():
        raise ConfigError(f"there is no space file {file}")
    raw = _from_python(file, config) if file.suffix == ".py" else read_mapping(file, "space file", _SHAPE)
    return build_space(merged(raw, overrides or {}), config, file.stem, str(file))


def build_space(raw: Mapping[str, Any], config: RunConfig, name: str, where: str = "the space") -> Space:
    """Bind a space to a config, see :func:`load_space`."""
    try:
        settings = TuneConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain(error, where)) from None
    if not settings.space:
        raise ConfigError(f"{where}: the section space is empty: there is nothing to search")
    for key, wanted in settings.requires.items():
        found = value_at(config, key)
        if found != wanted:
            raise ConfigError(f"{where} is made for {key} {wanted!r}, the config has {found!r}: take another space")
    # Variants are further trainings, and arms further refreshes, which have no part in a search.
    alone = config.model_copy(update={"variants": {}, "refresh": config.refresh.model_copy(update={"arms": {}})})
    raw_fixed = merged(alone.model_dump(mode="json"), settings.fixed)
    fixed = RunConfig.parse(raw_fixed, f"{where}: the config with the section fixed")
    parameters, defaults = {}, {}
    for key, entry in settings.space.items():
        check_searchable(key, settings.objective)
        defaults[key] = value_at(fixed, key)
        try:
            parameters[key] = entry.parameter(defaults[key])
        except ValueError as error:
            raise ConfigError(f"{where}: {key}: {error}") from None
        defaults[key] = _as_listed(fixed, key, defaults[key], parameters[key])
    for key in parameters:
        if within := [other for other in parameters if other.startswith(f"{key}.")]:
            raise ConfigError(
                f"{where}: {within[0]} lies within {key}, which is searched as a whole: search one of them"
            )
    return Space(name, settings, fixed, parameters, defaults, _corners(fixed, parameters, name))


def _corners(
    config: RunConfig, parameters: Mapping[str, Parameter], name: str
) -> list[tuple[dict[str, Any], RunConfig]]:
    found: list[tuple[dict[str, Any], RunConfig]] = [({}, config)]
    problems = []
    for key, value in ((key, value) for key, one in parameters.items() for value in one.ends):
        try:
            found.append(({key: value}, with_values(config, {key: value})))
        except ConfigError as error:
            # Without the repetition of the whole config.
            reason = str(error).partition(":\n")[2].strip() or str(error)
            problems.append(f"{key} = {as_text(value)}: {' '.join(reason.split())}")
    if problems:
        more = [f"... and {len(problems) - _MOST_ERRORS} more"] if len(problems) > _MOST_ERRORS else []
        lines = "\n  ".join(problems[:_MOST_ERRORS] + more)
        raise ConfigError(f"the space {name} has values that are not valid:\n  {lines}")
    return found


def _as_listed(config: RunConfig, key: str, default: Any, parameter: Parameter) -> Any:
    """The default as the space writes it, if the space lists it with fewer words: ``{name: nce}``."""
    for value in parameter.values or ():
        with contextlib.suppress(ConfigError):
            if value_at(with_values(config, {key: value}), key) == default:
                return value
    return default


def _from_python(file: Path, config: RunConfig) -> dict[str, Any]:
    found = runpy.run_path(str(file))
    function = found.get(SPACE_FUNCTION)
    raw = function(config) if callable(function) else found.get(SPACE)
    if not isinstance(raw, dict):
        raise ConfigError(
            f"{file} must have a mapping {SPACE}, or a function {SPACE_FUNCTION}(config) that returns one, {_SHAPE}; "
            f"found {raw!r}"
        )
    return raw
