"""The reference of all settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from raydr.component import Config, Pluggable
from raydr.config.reference import SettingGroup, find_settings, list_settings, settings_page
from raydr.config.run import RunConfig
from raydr.losses.base import Loss
from raydr.losses.nce import NCE

ROOT = Path(__file__).parents[2]


class Depth(Config):
    """How deep."""

    top_k: int = Field(default=100, ge=1, lt=2000)
    """Passages, see :class:`raydr.config.run.RunConfig`
    and the rest."""

    kind: Literal["a", "b"] | None = None


class Run(Config):
    """A run."""

    name: str
    """Of it."""

    loss: Annotated[Loss, Pluggable()] = NCE()
    depth: Depth | None = None


@pytest.fixture(scope="module")
def groups() -> list[SettingGroup]:
    return list_settings(RunConfig)


def test_the_defaults_are_those_of_a_config_without_settings(groups: list[SettingGroup]) -> None:
    config = RunConfig.parse({"data": {"reader": {"name": "beir", "path": "unused"}}})
    defaults = {
        setting.key: setting.default
        for group in groups
        for setting in group.settings
        if group.title == "the run" or " " not in group.title
    }
    for key, default in defaults.items():
        value: Any = config
        for name in key.split("."):
            value = getattr(value, name, None) if value is not None else None
        if isinstance(value, bool):
            assert default == str(value).lower(), key
        elif isinstance(value, int | float):
            assert float(default) == pytest.approx(value), key
    assert defaults["model.query.max_length"] == "64"
    assert defaults["judge.sieve.beta.final"] == "0.5"
    assert (defaults["train.pair_detection"], defaults["negatives"]) == ("auto", "null")


def test_keys_types_defaults_and_meanings() -> None:
    groups = {group.title: group for group in list_settings(Run)}
    assert [group for group in groups if not group.startswith("loss ")] == ["the run", "depth"]
    name, loss = groups["the run"].settings
    assert (name.key, name.type, name.default, name.meaning) == ("name", "text", "required", "Of it.")
    assert loss.type.startswith("loss: `ar2`, `bce`, `corrected_nce`")
    assert loss.default == "nce"
    depth, top_k, kind = groups["depth"].settings
    assert (depth.key, depth.type, depth.default) == ("depth", "section or null", "null")
    assert top_k.meaning == "Passages, see ``raydr.config.run.RunConfig`` and the rest."
    assert (top_k.key, top_k.type, top_k.default) == ("depth.top_k", "integer ≥ 1, < 2,000", "100")
    assert (kind.type, kind.default, kind.meaning) == ("`a`, `b` or null", "null", "")
    # Settings of a section in a component.
    assert groups["loss rcl"].settings[0].key == "beta.final"


def test_every_setting_is_explained(groups: list[SettingGroup]) -> None:
    assert [setting.key for group in groups for setting in group.settings if not setting.meaning] == []


def test_every_section_is_there(groups: list[SettingGroup]) -> None:
    keys = {
        setting.key.split(".")[0]
        for group in groups
        for setting in group.settings
        if group.title == "the run" or " " not in group.title
    }
    assert keys | {setting.key for setting in groups[0].settings} == set(RunConfig.model_fields)


def test_a_part_of_a_key_or_of_a_kind_finds_settings(groups: list[SettingGroup]) -> None:
    assert find_settings(groups, "first_rank")[0].settings[0].key == "negatives.first_rank"
    assert {group.title for group in find_settings(groups, "sampler")} > {"sampler simans", "train"}
    assert find_settings(groups, "nothing like it") == []


def test_the_page_in_the_documentation_is_up_to_date(groups: list[SettingGroup]) -> None:
    written = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert written == settings_page(groups), "run: raydr settings --markdown > docs/settings.md"
