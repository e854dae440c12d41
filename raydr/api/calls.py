"""Config and session of a call of the Python API.

A call builds a config as ``raydr prepare FILE`` does, and makes the same artefacts as the command line. They lie in
``workdir``, or in a temporary folder of the process; existing artefacts are reused. Ray does not start, unless
``settings`` names a cluster (``{"ray": {"address": ...}}``).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from raydr.config.files import merged
from raydr.config.first_config import first_config
from raydr.config.run import RunConfig
from raydr.console import only_warnings
from raydr.data.inputs import absolute
from raydr.data.pairs_in_memory import check_rows, in_rows, place_pairs
from raydr.data.readers.pairs import PairsReader
from raydr.errors import ConfigError, DataError
from raydr.pipeline.session import Session, open_session

if TYPE_CHECKING:
    from raydr.data.pairs_in_memory import Pairs

#: A call computes in this process, whatever the size of the data.
_IN_PROCESS_ROWS = 10**9
#: Subfolder of the working folder for pairs that were passed in memory.
_PAIRS = "pairs"
#: Default number of candidates of a query.
NUM_CANDIDATES = 30
#: Values of arguments that settings may override: a caller who leaves an argument out has not chosen its default.
_DEFAULTS = {"loss": "npc", "seed": 0, "miner": "bm25", "depth": NUM_CANDIDATES}


def call_config(
    pairs: Pairs,
    *,
    model: str | PathLike[str] | None,
    seed: int,
    workdir: str | Path | None,
    settings: Mapping[str, Any] | None,
    sections: Mapping[str, Any] | None = None,
    hold_out: bool = False,
    on_tests: bool = False,
) -> RunConfig:
    """Build the config of a call.

    Args:
        pairs: data of the call.
        model: checkpoint of ``model``; None: its default.
        seed: seed of the run.
        workdir: working folder; None: a temporary folder of the process.
        settings: settings of the caller, which override all others but arguments.
        sections: settings of the called function.
        hold_out: use the dev and test splits of the pairs, or hold out parts of the training split. If False, only the
            training split is used.
        on_tests: use the test splits too, without holding out any.

    Raises:
        DataError: the pairs are invalid.
        ConfigError: a setting is invalid, or contradicts an argument.
    """
    place = absolute(str(workdir)) if workdir is not None else _temporary_folder()
    sections, own = sections or {}, settings_of_call(settings)
    # Judges follow the model of the call, and settings may change them.
    chosen = {name: section for name, section in sections.items() if name != "judge"}
    named = {"seed": seed, "workdir": workdir and str(workdir), "model": checkpoint_of(model)}
    _refuse_contradictions(named | chosen, own)
    # A call computes on this machine, so it reads local files.
    local_folder = place if "://" not in place else _temporary_folder()
    placed, in_memory = place_pairs(pairs, f"{local_folder}/{_PAIRS}"), not isinstance(pairs, str | Path)
    first = first_config(placed, "pairs" if in_memory else "")
    raw = first.raw
    raw.pop("variants", None)
    if not hold_out:
        raw["data"].pop("hold_out", None)
        raw["data"] |= {"dev_split": "", "test_splits": list(first.tests) if on_tests else []}
    raw |= {
        "workdir": place,
        "seed": seed,
        "model": checkpoint_of(model),
        "tracking": {"enabled": False},
        "ray": {"in_process_rows": _IN_PROCESS_ROWS},
    }
    if (data := own.get("data")) and isinstance(data, Mapping) and data.get("hold_out") == {}:
        # Merged with shares of the missing splits, an empty mapping would change nothing.
        raw["data"].pop("hold_out", None)
    config = RunConfig.parse(merged(merged(raw, sections), own), "settings")
    # The queries of a split that the caller has turned off are trained on.
    used = {split: share for split, share in config.data.hold_out.items() if split in config.data.held_out_splits}
    config = config.model_copy(update={"data": config.data.model_copy(update={"hold_out": used})})
    usable = first.trains or (on_tests and first.tests) or "train_split" in config.data.model_fields_set
    if in_memory and not usable:
        raise DataError("pairs has no training split: name a split train, or leave the column of splits out")
    return config


@contextmanager
def call_session(config: RunConfig, verbose: bool, pairs: Pairs = "") -> Iterator[Session]:
    """Open the session of a call, which prints only warnings unless it is verbose.

    Args:
        config: config of the call.
        verbose: print progress and tables too.
        pairs: pairs of the call. If they are in memory, an error has rows of this argument, not of the placed file.
    """
    try:
        with nullcontext() if verbose else only_warnings(), open_session(config) as session:
            yield session
    except DataError as error:
        if isinstance(pairs, str | Path) or not isinstance(config.data.reader, PairsReader):
            raise
        check_rows(config.data.reader, config.data.max_bad_rows)
        raise DataError(in_rows(str(error), config.data.reader)) from None


def settings_of_call(settings: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the settings of a call, empty for None.

    Raises:
        ConfigError: the argument is no mapping.
    """
    if settings is None or isinstance(settings, Mapping):
        return settings or {}
    raise ConfigError(f"settings is {settings!r:.80}; expected a dict of sections, such as {{'train': {{...}}}}")


def checkpoint_of(model: str | PathLike[str] | None) -> dict[str, str]:
    """Return the setting of a call's model; empty without a model.

    Raises:
        ConfigError: the model is neither a name nor a path.
    """
    if model is None:
        return {}
    if isinstance(model, str | PathLike):
        return {"checkpoint": os.fspath(model)}
    raise ConfigError(
        f"model is a {type(model).__name__}; expected a Hugging Face name, a folder, or a model of raydr.train: save "
        "others to a folder"
    )


def _refuse_contradictions(arguments: Mapping[str, Any], settings: Mapping[str, Any], place: str = "") -> None:
    """Reject settings that differ from an argument that the caller has chosen.

    Raises:
        ConfigError: a setting and an argument differ.
    """
    for key in arguments.keys() & settings.keys():
        own, other = arguments[key], settings[key]
        if isinstance(own, Mapping) and isinstance(other, Mapping):
            _refuse_contradictions(own, other, f"{place}{key}.")
        elif own not in (None, {}, other, _DEFAULTS.get(key)):
            raise ConfigError(
                f"{place}{key} is {other!r:.80} in settings, and an argument of the call makes it {own!r:.80}: leave "
                "either out"
            )


def is_config(argument: object) -> TypeGuard[RunConfig]:
    """Return whether an argument is a config, not pairs: a RunConfig, a YAML path or name, or a nested dict.

    >>> is_config("my.yaml"), is_config("pairs.csv"), is_config([("query", "passage")]), is_config({"data": {}})
    (True, False, False, True)
    """
    if isinstance(argument, RunConfig):
        return True
    if isinstance(argument, Mapping):
        return "data" in argument
    if not isinstance(argument, str | Path):
        return False
    path = Path(argument)
    return path.suffix in (".yaml", ".yml") or not (path.suffix or "://" in str(argument) or path.expanduser().exists())


def refuse_options(function: str, options: Mapping[str, Any], arguments: tuple[Any, ...] = ()) -> None:
    """Reject options of configs in a call with pairs.

    Raises:
        ConfigError: such options are set.
    """
    if arguments or options:
        named = ", ".join(options) or f"{len(arguments)} further arguments"
        raise ConfigError(f"raydr.{function} with pairs does not take {named}; pass a RunConfig to use these")


def refuse_pair_options(function: str, options: Mapping[str, Any]) -> None:
    """Reject options of pairs in a call with a config.

    Raises:
        ConfigError: an option differs from its default.
    """
    if changed := [name for name, value in options.items() if value != _DEFAULTS.get(name)]:
        raise ConfigError(f"raydr.{function} with a config does not take {', '.join(changed)}: change the config")


@cache
def _temporary_folder() -> str:
    """Return the temporary working folder of this process."""
    folder = tempfile.mkdtemp(prefix="raydr-")
    atexit.register(_remove, folder, os.getpid())
    return folder


def _remove(folder: str, process: int) -> None:
    """Remove a folder at the exit of the process that made it, and not of its forked children."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
