"""From a config and searched values to the config of a trial."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from raydr.config.overrides import merged
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.training.config import NEUTRAL
from raydr.tuning.settings import Objective

#: Sections that a trial's result depends on; the dev split must stay comparable.
SEARCHABLE: dict[Objective, tuple[str, ...]] = {
    "training": ("model", "train", "negatives", "judge"),
    "refresh": ("model", "train", "negatives", "judge", "refresh"),
}

#: Settings in these sections that cannot be searched, and why.
_EXCLUDED = {
    "train.dev": "decides what the trials are measured with, which must be the same for all",
    **{f"train.{name}": "does not change what is learnt" for name in NEUTRAL if name != "dev"},
    "train.dtype": "is resolved once for the whole search",
    "negatives.miner": "decides what candidates are taken from, which is made once for all trials",
    "judge.model": "names a model of the working folder, the same for all trials",
    "judge.guide": "names a model that is the same for all trials",
    "judge.scores": "is the same for all trials",
    "refresh.arms": "names refreshes to compare, and a trial is one",
    "refresh.evaluate_splits": "says what is reported, and trials are compared on the dev split",
    "refresh.measure": "decides what the trials are compared by, which must be the same for all",
    "refresh.keep_vectors": "does not change what is learnt",
}


def with_values(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The config of a trial.

    Raises:
        ConfigError: the values, by dotted key, make no valid config, alone or together.
    """
    raw = config.model_dump(mode="json")
    for key, value in values.items():
        for step in reversed(key.split(".")):
            value = {step: value}
        raw = merged(raw, value)
    return RunConfig.parse(raw, "the config with " + ", ".join(f"{key} = {value!r}" for key, value in values.items()))


def value_at(config: RunConfig, key: str) -> Any:
    """What the config says for a dotted key.

    Raises:
        ConfigError: there is no such setting; the message has the ones that are there.
    """
    found: Any = config.model_dump(mode="json")
    path = "the config"
    for step in key.split("."):
        if found is None:
            raise ConfigError(f"{key}: the config has no {path}; set it in the config, or in the space's section fixed")
        if not isinstance(found, dict):
            raise ConfigError(f"{key}: {path} is {found!r} and has no settings of its own")
        if step not in found:
            near = difflib.get_close_matches(step, found, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            named = f"{path} is {found['name']!r}, which" if path != "the config" and "name" in found else path
            raise ConfigError(f"{key}: {named} has no setting {step!r}; {hint}there are {', '.join(found)}")
        path = step if path == "the config" else f"{path}.{step}"
        found = found[step]
    return found


def check_searchable(key: str, objective: Objective = "training") -> None:
    """
    Raises:
        ConfigError: the setting is not one that trials may differ in.
    """
    section, sections = key.partition(".")[0], SEARCHABLE[objective]
    if section not in sections or section == key:
        more = "; with objective: refresh also in those of refresh" if section == "refresh" else ""
        raise ConfigError(f"{key} cannot be searched: trials may differ in settings of {', '.join(sections)}{more}")
    for excluded, reason in _EXCLUDED.items():
        if key == excluded or key.startswith(f"{excluded}."):
            raise ConfigError(f"{key} cannot be searched: it {reason}")
