"""What a call of the Python API runs: a config for the given pairs, and the session that makes its artefacts.

A call writes a config as ``raydr prepare FILE`` does, and makes the same artefacts as the command line. They lie in
``workdir``, or in a folder that goes with the process; what is there already is not made again. No Ray starts, unless
``settings`` names a cluster (``{"ray": {"address": ...}}``).
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from raydr.config.files import merged
from raydr.config.first_config import first_config
from raydr.config.run import RunConfig
from raydr.data.pairs_in_memory import place_pairs
from raydr.errors import ConfigError

if TYPE_CHECKING:
    from raydr.data.pairs_in_memory import Pairs

#: A call computes in this process, whatever the size of the data: it has the whole machine.
_IN_PROCESS_ROWS = 10**9
#: Below the working folder: pairs that were given in memory.
_GIVEN = "given"


def call_config(
    pairs: Pairs,
    *,
    model: str | Path | None,
    seed: int,
    workdir: str | Path | None,
    settings: Mapping[str, Any] | None,
    sections: Mapping[str, Any] | None = None,
    hold_out: bool = False,
) -> RunConfig:
    """The config of a call.

    Args:
        pairs: what it is about.
        model: checkpoint of ``model``; its default if None.
        seed: of the run.
        workdir: the working folder; one that goes with the process if None.
        settings: what the caller sets, which goes before all else.
        sections: what the function sets.
        hold_out: take the splits for dev and test that the pairs have, or parts of the training split. Without it all
            pairs are of one split.

    Raises:
        DataError: the pairs cannot be used.
        ConfigError: a setting is wrong.
    """
    place = str(workdir) if workdir is not None else _temporary_folder()
    # A call computes on this machine: it reads what it writes.
    local_folder = place if "://" not in place else _temporary_folder()
    raw = first_config(place_pairs(pairs, f"{local_folder}/{_GIVEN}")).raw
    raw.pop("variants", None)
    if not hold_out:
        raw["data"].pop("hold_out", None)
        raw["data"]["dev_split"] = ""
    raw |= {
        "workdir": place,
        "seed": seed,
        "model": {} if model is None else {"checkpoint": str(model)},
        "tracking": {"enabled": False},
        "ray": {"in_process_rows": _IN_PROCESS_ROWS},
    }
    return RunConfig.parse(merged(merged(raw, sections or {}), settings or {}), "settings")


def is_config(argument: object) -> TypeGuard[RunConfig]:
    """Whether a call is given a config in the place of pairs: a RunConfig, a YAML file's path or name, a nested dict.

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


def refuse_options(function: str, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Refuse what belongs to a config, where pairs are given.

    Raises:
        ConfigError: there is something.
    """
    if arguments or options:
        named = ", ".join(options) or f"{len(arguments)} further arguments"
        raise ConfigError(f"raydr.{function} of pairs does not take {named}; a RunConfig in their place would")


@cache
def _temporary_folder() -> str:
    """The working folder of this process, which goes with it."""
    folder = tempfile.mkdtemp(prefix="raydr-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
