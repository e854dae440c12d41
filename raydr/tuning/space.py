"""A search space bound to a config: every setting is there, and every value of it is valid before anything starts."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raydr.component import explain
from raydr.config.run import RunConfig, merged
from raydr.config.yaml_files import read_mapping
from raydr.errors import ConfigError
from raydr.tuning.distributions import Distribution, Values, as_text, parse_distribution
from raydr.tuning.settings import TuneConfig
from raydr.tuning.trial_config import changed, check_searchable, value_at, with_values

#: Names that a Python space may have in its file: a mapping, or a function from the config to one.
SPACE, SPACE_FUNCTION = "SPACE", "space"

#: What a space must be, for messages.
_SHAPE = "with a section space"
#: Wrong values that one message lists.
_MOST_ERRORS = 5


@dataclass(frozen=True)
class Space:
    """What is searched.

    Args:
        name: of the space, for folders and titles.
        settings: of the space file.
        config: the run with what the space fixes: the config of the default trial.
        parameters: distributions by dotted key.
        defaults: what ``config`` says for these keys.
    """

    name: str
    settings: TuneConfig
    config: RunConfig
    parameters: dict[str, Distribution]
    defaults: dict[str, Any]

    def corners(self) -> Iterator[tuple[dict[str, Any], RunConfig]]:
        """The default and every end (or listed value) of every parameter, one changed at a time, with its config.

        Raises:
            ConfigError: a value is not valid; the message lists what was found.
        """
        yield {}, self.config
        problems: list[str] = []
        for key, distribution in self.parameters.items():
            for value in distribution.ends:
                try:
                    config = with_values(self.config, {key: value})
                except ConfigError as error:
                    problems.append(_reason(key, value, error))
                    continue
                yield {key: value}, config
        if problems:
            shown = problems[:_MOST_ERRORS]
            shown += [f"... and {len(problems) - len(shown)} more"] * (len(problems) > len(shown))
            raise ConfigError(f"the space {self.name} has values that are not valid:\n  " + "\n  ".join(shown))


def load_space(path: str | Path, config: RunConfig, overrides: Mapping[str, Any] | None = None) -> Space:
    """Read a space file, YAML or Python, and bind it to a config.

    Args:
        path: a ``.py`` file with a mapping ``SPACE`` or a function ``space(config)`` that returns one; else YAML.
        config: the run.
        overrides: nested settings of the space file that are changed.

    Raises:
        ConfigError: the file is missing or wrong, a key is not in the config, or a value of it is not valid.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigError(f"there is no space file {file}; spaces that come with raydr are in tune_spaces/")
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
    fixed = changed(alone, settings.fixed, f"{where}: the config with the section fixed")
    parameters, defaults = {}, {}
    for key, distribution in settings.space.items():
        check_searchable(key, settings.objective)
        defaults[key] = value_at(fixed, key)
        parameters[key] = parse_distribution(f"{where}: {key}", distribution, defaults[key])
        defaults[key] = _as_listed(fixed, key, defaults[key], parameters[key])
    _refuse_overlaps(list(parameters), where)
    space = Space(name, settings, fixed, parameters, defaults)
    for _ in space.corners():
        pass
    return space


def _as_listed(config: RunConfig, key: str, default: Any, distribution: Distribution) -> Any:
    """The default as the space writes it, if the space lists it with fewer words: ``{name: nce}``."""
    if isinstance(distribution, Values) and not distribution.ordered:
        for value in distribution.values:
            with contextlib.suppress(ConfigError):
                if value_at(with_values(config, {key: value}), key) == default:
                    return value
    return default


def _refuse_overlaps(keys: list[str], where: str) -> None:
    for key in keys:
        for other in keys:
            if other.startswith(f"{key}."):
                raise ConfigError(
                    f"{where}: {other} lies within {key}, which is searched as a whole: search one of them"
                )


def _reason(key: str, value: Any, error: ConfigError) -> str:
    """What is wrong with a value, without the repetition of the whole config."""
    findings = str(error).partition(":\n")[2].strip() or str(error)
    return f"{key} = {as_text(value)}: {' '.join(findings.split())}"


def _from_python(file: Path, config: RunConfig) -> dict[str, Any]:
    spec = importlib.util.spec_from_file_location(f"raydr_space_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, SPACE_FUNCTION, None)
    raw = made(config) if callable(made) else getattr(module, SPACE, None)
    if raw is None:
        raise ConfigError(f"{file} has neither a mapping {SPACE} nor a function {SPACE_FUNCTION}(config)")
    if not isinstance(raw, dict):
        raise ConfigError(f"{file} must be a mapping {_SHAPE}, found {raw!r}")
    return raw
