"""raydr: distributed training and evaluation of noise-robust dense retrievers on Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raydr.version import __version__

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.verbs.audit import audit
    from raydr.verbs.benchmark import benchmark
    from raydr.verbs.diagnose import diagnose
    from raydr.verbs.doctor import doctor
    from raydr.verbs.encode import encode
    from raydr.verbs.evaluate import evaluate
    from raydr.verbs.export import export
    from raydr.verbs.fuse import fuse
    from raydr.verbs.gc import gc
    from raydr.verbs.import_run import import_run
    from raydr.verbs.import_vectors import import_vectors
    from raydr.verbs.index import index
    from raydr.verbs.inject_noise import inject_noise
    from raydr.verbs.inspect import inspect
    from raydr.verbs.judge import judge
    from raydr.verbs.mine import mine
    from raydr.verbs.plan import plan
    from raydr.verbs.prepare import prepare
    from raydr.verbs.quickstart import quickstart
    from raydr.verbs.refresh import refresh
    from raydr.verbs.report import report
    from raydr.verbs.rerank import rerank
    from raydr.verbs.review import review
    from raydr.verbs.search import search, search_text
    from raydr.verbs.settings import settings
    from raydr.verbs.submit import submit
    from raydr.verbs.train import train
    from raydr.verbs.tune import tune
    from raydr.verbs.why import why

__all__ = [
    "RunConfig",
    "__version__",
    "audit",
    "benchmark",
    "diagnose",
    "doctor",
    "encode",
    "evaluate",
    "export",
    "fuse",
    "gc",
    "import_run",
    "import_vectors",
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
    "rerank",
    "review",
    "search",
    "search_text",
    "settings",
    "submit",
    "train",
    "tune",
    "why",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """Import a verb when it is first used: ``import raydr`` and ``raydr --help`` stay fast."""
    if name not in __all__:
        raise AttributeError(f"module 'raydr' has no attribute {name!r}")
    modules = {
        "RunConfig": "raydr.config.run",
        "search_text": "raydr.verbs.search",
    }
    found = getattr(importlib.import_module(modules.get(name, f"raydr.verbs.{name}")), name)
    globals()[name] = found
    return found
