"""Importing FAISS: exactly one of its two distributions must be installed."""

from __future__ import annotations

import importlib
from importlib.metadata import distributions
from types import ModuleType

from raydr.errors import RaydrError

DISTRIBUTIONS = ("faiss-cpu", "faiss-gpu")

#: Exact search multiplies matrices from so many query components (queries × dim) on; below, it goes through the vectors
#: one by one. FAISS 1.15 sets 128,000, which its maintainers found far too high for few threads (its pull request
#: 5109): 128 queries of 384 dimensions are searched a tenth as fast as need be.
MATRIX_PRODUCT_FROM = 1_600
_FAISS_DEFAULT = 128_000


class FaissError(RaydrError):
    """FAISS is missing, installed twice, or cannot do what is asked of it."""


def installed() -> list[str]:
    """The FAISS distributions that are installed, of :data:`DISTRIBUTIONS`."""
    return [name for name in DISTRIBUTIONS if any(distributions(name=name))]


def load_faiss(num_threads: int | None = None) -> ModuleType:
    """The faiss module, with its thread count set if one is given.

    Raises:
        FaissError: no distribution is installed, or both are (they overwrite each other's files).
    """
    found = installed()
    if not found:
        raise FaissError("neither faiss-cpu nor faiss-gpu is installed: pip install faiss-cpu, or faiss-gpu for CUDA")
    if len(found) > 1:
        raise FaissError(
            "faiss-cpu and faiss-gpu are both installed and overwrite each other's files: "
            "pip uninstall faiss-cpu faiss-gpu, then pip install one of them"
        )
    faiss = importlib.import_module("faiss")
    if faiss.cvar.distance_compute_blas_threshold == _FAISS_DEFAULT:
        faiss.cvar.distance_compute_blas_threshold = MATRIX_PRODUCT_FROM
    if num_threads is not None:
        faiss.omp_set_num_threads(num_threads)
    return faiss


def has_cuda() -> bool:
    """Whether the installed FAISS can use CUDA (faiss-gpu); says nothing about devices."""
    return installed() == ["faiss-gpu"]
