"""raydr: distributed training and evaluation of noise-robust dense retrievers on Ray.

``find_noise``, ``find_false_negatives``, ``mine_hard_negatives``, ``train`` and ``evaluate`` take pairs in memory. The
functions that are called as the verbs of the command line take a config.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raydr.verbs import VERBS, function_name
from raydr.version import __version__

if TYPE_CHECKING:
    from raydr.api.noise import find_false_negatives, find_noise, mine_hard_negatives
    from raydr.api.training import Model, evaluate, train
    from raydr.config.run import RunConfig
    from raydr.pipeline.findings import FalseNegatives, Noise
    from raydr.verbs.clean import clean
    from raydr.verbs.data import export, import_run, import_vectors, inject_noise, inspect, prepare
    from raydr.verbs.diagnosis import diagnose
    from raydr.verbs.evaluation import benchmark, quickstart, report
    from raydr.verbs.noise import audit, judge, review, why
    from raydr.verbs.noise_benchmark import benchmark_noise
    from raydr.verbs.operations import doctor, gc, plan, settings, submit
    from raydr.verbs.retrieval import encode, fuse, index, mine, rerank, search
    from raydr.verbs.text_search import search_text
    from raydr.verbs.training import refresh, tune

__all__ = [
    "FalseNegatives",
    "Model",
    "Noise",
    "RunConfig",
    "__version__",
    "audit",
    "benchmark",
    "benchmark_noise",
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
    """Import a function at its first use, so that ``import raydr`` and ``raydr --help`` stay fast."""
    if name not in __all__:
        raise AttributeError(f"module 'raydr' has no attribute {name!r}")
    modules = {
        "RunConfig": "raydr.config.run",
        **dict.fromkeys(("find_false_negatives", "find_noise", "mine_hard_negatives"), "raydr.api.noise"),
        "Model": "raydr.api.training",
        **dict.fromkeys(("FalseNegatives", "Noise"), "raydr.pipeline.findings"),
        **{function_name(verb): f"raydr.verbs.{module}" for verb, (module, _) in VERBS.items()},
        "search_text": "raydr.verbs.text_search",
    }
    # Of functions in both, those of the Python API are exported; they take configs too.
    modules |= dict.fromkeys(("evaluate", "train"), "raydr.api.training")
    value = getattr(importlib.import_module(modules[name]), name)
    globals()[name] = value
    return value
