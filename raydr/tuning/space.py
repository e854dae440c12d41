"""A search space bound to a config: all settings and values are checked before anything starts."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from raydr.component import explain
from raydr.config.files import merged
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.tuning.settings import Objective, Parameter, TuneConfig, as_text

#: Sections that a trial's result depends on.
SEARCHABLE: dict[Objective, tuple[str, ...]] = {
    "training": ("model", "train", "negatives", "judge"),
    "refresh": ("model", "train", "negatives", "judge", "refresh"),
}
#: Settings of these sections that must be equal in all trials, so that their scores can be compared.
_SAME_FOR_ALL = ("train.dev", "train.dtype", "refresh.arms", "refresh.evaluate_splits", "refresh.measure")

#: Maximal number of values that a table lists; of more it shows the ends.
_LISTED = 12


@dataclass(frozen=True)
class Space:
    """A search space bound to a config.

    Args:
        name: name of the search, for folders and titles; by default that of the space file.
        settings: settings of the space file.
        config: config of the default trial: the run's config with the settings that the space fixes.
        parameters: by dotted key.
        defaults: values of these keys in ``config``.
        corners: values and configs: of the default, and of each end (or listed value) of each parameter alone.
    """

    name: str
    settings: TuneConfig
    config: RunConfig
    parameters: dict[str, Parameter]
    defaults: dict[str, Any]
    corners: Sequence[tuple[dict[str, Any], RunConfig]]

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return columns and rows of a table: each setting, its default, and its tried values."""
        rows = []
        for key, parameter in self.parameters.items():
            texts = [as_text(value) for value in parameter.values or parameter.ends]
            spread = f"{texts[0]} to {texts[-1]}" + (", logarithmic" if parameter.log else "")
            listed = parameter.values is not None and len(texts) <= _LISTED
            rows.append([key, as_text(self.defaults[key]), ", ".join(texts) if listed else spread])
        return ["setting", "default", "tried"], rows


def build_space(raw: Mapping[str, Any], config: RunConfig, name: str, where: str = "the space") -> Space:
    """Bind a space to a config.

    Args:
        raw: content of a space file.
        config: config of the run.
        name: name of the search.
        where: name of the space in messages.

    Raises:
        ConfigError: the config lacks a key, or a value of a key is not valid.
    """
    try:
        settings = TuneConfig.model_validate(raw)
    except ValidationError as error:
        raise ConfigError(explain(error, where, TuneConfig)) from None
    if not settings.space:
        raise ConfigError(f"{where}: the section space is empty: there is nothing to search")
    for key, wanted in settings.requires.items():
        value = value_at(config, key)
        if value != wanted:
            raise ConfigError(f"{where} is made for {key} {wanted!r}, the config has {value!r}: choose another space")
    # Variants and arms are further trainings and refreshes, and not part of a search.
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
                f"{where}: {within[0]} lies within {key}, which is searched as a whole: leave one of the two out"
            )
    return Space(name, settings, fixed, parameters, defaults, _corners(fixed, parameters, name))


def _corners(
    config: RunConfig, parameters: Mapping[str, Parameter], name: str
) -> list[tuple[dict[str, Any], RunConfig]]:
    corners: list[tuple[dict[str, Any], RunConfig]] = [({}, config)]
    for key, parameter in parameters.items():
        for value in (*parameter.ends, *parameter.between):
            try:
                corner = with_values(config, {key: value})
            except ConfigError as error:
                # Without the config's text, which the first lines repeat.
                reason = " ".join((str(error).partition(":\n")[2] or str(error)).split())
                raise ConfigError(f"the space {name} cannot have {key} = {as_text(value)}: {reason}") from None
            if value in parameter.ends:
                corners.append(({key: value}, corner))
    return corners


def _as_listed(config: RunConfig, key: str, default: Any, parameter: Parameter) -> Any:
    """Return the default in the shorter form in which the space lists it, such as ``{name: nce}``."""
    for value in parameter.values or ():
        with contextlib.suppress(ConfigError):
            if value_at(with_values(config, {key: value}), key) == default:
                return value
    return default


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """Return the config of a trial.

    Raises:
        ConfigError: the config with these values, by dotted key, is not valid.
    """
    raw = config.model_dump(mode="json")
    for key, value in values.items():
        for step in reversed(key.split(".")):
            value = {step: value}
        raw = merged(raw, value)
    return RunConfig.parse(raw, "the config with " + ", ".join(f"{key} = {value!r}" for key, value in values.items()))


def value_at(config: RunConfig, key: str) -> Any:
    """Return the value of a dotted key in a config.

    Raises:
        ConfigError: there is no such setting; the message lists the settings of its section.
    """
    value: Any = config.model_dump(mode="json")
    steps = key.split(".")
    for depth, step in enumerate(steps):
        path = ".".join(steps[:depth]) or "the config"
        if not isinstance(value, dict):
            raise ConfigError(
                f"{key}: {path} is {as_text(value)} and has no settings; change it in the config, or in the space's "
                "section fixed"
            )
        if step not in value:
            near = difflib.get_close_matches(step, value, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ConfigError(f"{key}: {path} has no setting {step!r}; {hint}there are {', '.join(value)}")
        value = value[step]
    return value


def check_searchable(key: str, objective: Objective = "training") -> None:
    """Check that trials may differ in a setting.

    Raises:
        ConfigError: they may not.
    """
    section, sections = key.partition(".")[0], SEARCHABLE[objective]
    if section not in sections or section == key:
        more = "; with objective: refresh also in those of refresh" if section == "refresh" else ""
        raise ConfigError(f"{key} cannot be searched: trials may differ in settings of {', '.join(sections)}{more}")
    if any(key == fixed or key.startswith(f"{fixed}.") for fixed in _SAME_FOR_ALL):
        raise ConfigError(f"{key} cannot be searched: it must be the same for all trials")
