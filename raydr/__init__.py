"""raydr: distributed training and evaluation of noise-robust dense retrievers on Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raydr.version import __version__

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.verbs.api import (
        audit,
        doctor,
        encode,
        evaluate,
        export,
        import_run,
        index,
        inject_noise,
        inspect,
        judge,
        mine,
        plan,
        prepare,
        quickstart,
        refresh,
        report,
        search,
        search_text,
        settings,
        submit,
        train,
        tune,
        why,
    )

__all__ = [
    "RunConfig",
    "__version__",
    "audit",
    "doctor",
    "encode",
    "evaluate",
    "export",
    "import_run",
    "index",
    "inject_noise",
    "inspect",
    "judge",
    "mine",
    "plan",
    "prepare",
    "quickstart",
    "refresh",
    "report",
    "search",
    "search_text",
    "settings",
    "submit",
    "train",
    "tune",
    "why",
]


def __getattr__(name: str) -> Any:
    """Import the verbs when they are first used: ``import raydr`` and ``raydr --help`` stay fast."""
    if name == "RunConfig":
        return importlib.import_module("raydr.config.run").RunConfig
    if name in __all__:
        function = getattr(importlib.import_module("raydr.verbs.api"), name)
        globals()[name] = function
        return function
    raise AttributeError(f"module 'raydr' has no attribute {name!r}")
