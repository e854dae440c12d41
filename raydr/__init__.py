"""raydr: distributed training and evaluation of noise-robust dense retrievers on Ray.

``find_noise``, ``find_false_negatives``, ``mine_hard_negatives``, ``train`` and ``evaluate`` take pairs in memory. The
functions that are called as the verbs of the command line take a config.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raydr.verbs import VERBS
from raydr.version import __version__

if TYPE_CHECKING:
    from raydr.api.noise import find_false_negatives, find_noise, mine_hard_negatives
    from raydr.api.training import Model, evaluate, train
    from raydr.config.run import RunConfig
    from raydr.graph.findings import FalseNegatives, Noise
    from raydr.verbs.audit import audit
    from raydr.verbs.benchmark import benchmark
    from raydr.verbs.clean import clean
    from raydr.verbs.diagnose import diagnose
    from raydr.verbs.doctor import doctor
    from raydr.verbs.encode import encode
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
    from raydr.verbs.tune import tune
    from raydr.verbs.why import why

__all__ = [
    "FalseNegatives",
    "Model",
    "Noise",
    "RunConfig",
    "__version__",
    "audit",
    "benchmark",
    "clean",
    "diagnose",
    "doctor",
    "encode",
    "evaluate",
    "export",
    "find_false_negatives",
    "find_noise",
    "fuse",
    "gc",
    "import_run",
    "import_vectors",
    "index",
    "inject_noise",
    "inspect",
    "judge",
    "mine",
    "mine_hard_negatives",
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
    """Import a function when it is first used: ``import raydr`` and ``raydr --help`` stay fast."""
    if name not in __all__:
        raise AttributeError(f"module 'raydr' has no attribute {name!r}")
    modules = {
        "RunConfig": "raydr.config.run",
        **dict.fromkeys(("find_false_negatives", "find_noise", "mine_hard_negatives"), "raydr.api.noise"),
        "Model": "raydr.api.training",
        **dict.fromkeys(("FalseNegatives", "Noise"), "raydr.graph.findings"),
        **{verb.replace("-", "_"): f"raydr.verbs.{module}" for verb, (module, _) in VERBS.items()},
        "search_text": "raydr.verbs.retrieval",
    }
    # Of the functions that are there twice, those of the Python API take configs too.
    modules |= dict.fromkeys(("evaluate", "train"), "raydr.api.training")
    value = getattr(importlib.import_module(modules[name]), name)
    globals()[name] = value
    return value
