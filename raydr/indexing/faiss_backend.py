"""FAISS: installed distribution, factory strings, indexes and search parameters."""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from types import ModuleType
from typing import Any

from raydr.errors import ConfigError, RaydrError
from raydr.indexing.config import IndexConfig
from raydr.models.scores.base import ScoreFunction

DISTRIBUTIONS = ("faiss-cpu", "faiss-gpu")

#: Query components (queries × dim) from which exact search multiplies matrices; below, it scans vectors one by one. The
#: default of FAISS 1.15, 128,000, is too high for few threads (its pull request 5109): 128 queries of 384 dimensions
#: run ten times slower than necessary.
MATRIX_PRODUCT_FROM = 1_600
_FAISS_DEFAULT = 128_000


class FaissError(RaydrError):
    """FAISS is missing, installed twice, or lacks a feature."""


def installed() -> list[str]:
    """Return the installed FAISS distributions, of :data:`DISTRIBUTIONS`."""
    return [name for name in DISTRIBUTIONS if any(distributions(name=name))]


def load_faiss() -> ModuleType:
    """Import the faiss module.

    Raises:
        FaissError: no distribution is installed, or both are (they overwrite each other's files).
    """
    distributions = installed()
    if not distributions:
        raise FaissError("neither faiss-cpu nor faiss-gpu is installed: pip install faiss-cpu, or faiss-gpu for CUDA")
    if len(distributions) > 1:
        raise FaissError(
            "faiss-cpu and faiss-gpu are both installed and overwrite each other's files: "
            "pip uninstall faiss-cpu faiss-gpu, then pip install one of them"
        )
    faiss = importlib.import_module("faiss")
    if faiss.cvar.distance_compute_blas_threshold == _FAISS_DEFAULT:
        faiss.cvar.distance_compute_blas_threshold = MATRIX_PRODUCT_FROM
    return faiss


@contextmanager
def faiss_threads(num_threads: int) -> Iterator[None]:
    """Compute with a number of threads inside the block; all libraries of the process, such as PyTorch, share it."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(num_threads)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def has_cuda() -> bool:
    """Return whether the installed FAISS can use CUDA (faiss-gpu); this does not look for devices."""
    return installed() == ["faiss-gpu"]


#: Factory strings of exact indexes with half-precision vectors.
EXACT = ("Flat", "SQfp16")
FLAT_ROWS = 200_000
EXHAUSTIVE_ROWS = 1_000_000
#: FAISS's minimum of training vectors for each centroid.
ROWS_PER_CELL = 39


def resolve_factory(settings: IndexConfig, num_rows: int, dim: int, score: ScoreFunction) -> tuple[str, str]:
    """Return the factory string of an index, and the reason.

    Args:
        settings: settings of the index.
        num_rows: number of vectors of all passages.
        dim: dimension of the vectors.
        score: score function of the model.

    Raises:
        ConfigError: the index cannot be searched with this score.
    """
    check_factory(settings, score)
    if settings.factory != "auto":
        return settings.factory, "as configured"
    if score.is_inner_product:
        return choose_factory(num_rows, dim, settings.train_rows)
    if score.is_largest_of_tokens:
        if settings.vectors == "codes":
            cells, limit = choose_cells(num_rows, settings.train_rows)
            return f"IVF{cells},SQ8", f"residuals of 8 bits a dimension; {cells} cells = {limit}"
        factory, reason = choose_factory(num_rows, dim, settings.train_rows)
        if factory not in EXACT:
            return factory, f"proposes candidates: {reason}"
    return "SQfp16", f"exact search: the score function {score.name} is no inner product"


def check_factory(settings: IndexConfig, score: ScoreFunction) -> None:
    """Check that the index finds the best scores, and has codes if the config uses them.

    Raises:
        ConfigError: the score function is no inner product but the index maximises inner products; or candidates must
            be scored from codes but the index scores all passages.
    """
    factory = settings.factory
    codes = settings.vectors == "codes" and score.passage_vectors.several
    if codes and (factory in EXACT or not score.is_largest_of_tokens):
        what = f"with the score function {score.name} no index proposes candidates"
        if score.is_largest_of_tokens:
            what = f"index.factory {factory} scores all passages"
        raise ConfigError(
            f"index.vectors is codes, which score candidates, but {what}: set index.vectors to float16, or use "
            "sum_of_max or multi with hard attention and an index.factory like auto or IVF4096,SQ8"
        )
    if factory != "auto" and factory not in EXACT and not (score.is_inner_product or score.is_largest_of_tokens):
        raise ConfigError(
            f"index.factory {factory!r} finds the largest inner products, but the score function {score.name} is none: "
            f"set index.factory to auto, or to {' or '.join(EXACT)}, which score every passage"
        )


def choose_factory(num_rows: int, dim: int, train_rows: int) -> tuple[str, str]:
    """Return the factory string that ``auto`` selects, and the reason.

    It never compresses vectors below half precision, in which embeddings are stored: ``SQfp16`` alone is exact, inside
    an IVF it rounds each vector's difference to its centroid.

    Args:
        num_rows: passages in the corpus.
        dim: dimension of a vector.
        train_rows: vectors for training centroids, at most.

    >>> choose_factory(50_000, 384, 500_000)[0], choose_factory(800_000, 384, 500_000)[0]
    ('Flat', 'SQfp16')
    >>> choose_factory(2_000_000, 768, 500_000)[0], choose_factory(21_015_324, 768, 1_000_000)[0]
    ('IVF5648,SQfp16', 'IVF18336,SQfp16')
    """
    size = f"{num_rows:,} vectors of {dim} dimensions"
    if num_rows <= FLAT_ROWS:
        return "Flat", f"{size}: up to {FLAT_ROWS:,} an exact search of float32 is fast"
    if num_rows <= EXHAUSTIVE_ROWS:
        gib = num_rows * dim * 2 / 2**30
        return "SQfp16", f"{size}: exact, in {gib:.1f} GiB, half of Flat (stored vectors are float16)"
    cells, limit = choose_cells(num_rows, train_rows)
    return f"IVF{cells},SQfp16", f"{size}: above {EXHAUSTIVE_ROWS:,} cells are searched, {cells} = {limit}"


def choose_cells(num_rows: int, train_rows: int) -> tuple[int, str]:
    """Return the number of cells of an IVF, and its limiting factor.

    >>> choose_cells(2_000_000, 500_000), choose_cells(10, 500_000)
    ((5648, '4·√N'), (16, '4·√N'))
    """
    ideal = 4 * math.sqrt(num_rows)
    trainable = train_rows / ROWS_PER_CELL
    limit = "4·√N" if ideal <= trainable else f"index.train_rows {train_rows:,} / {ROWS_PER_CELL}"
    return max(16, int(min(ideal, trainable)) // 16 * 16), limit


def make_index(factory: str, dim: int) -> Any:
    """Make an empty FAISS index whose scores are inner products.

    Raises:
        ConfigError: the factory string is unknown to FAISS, or does not fit ``dim``.
    """
    faiss = load_faiss()
    try:
        return faiss.index_factory(dim, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        reason = str(error).rsplit(": ", 1)[-1]
        raise ConfigError(
            f"index.factory {factory!r} is no index that FAISS {faiss.__version__} supports for {dim} dimensions "
            f"({reason}); examples: Flat, SQfp16, IVF1024,Flat, IVF4096,PQ64, HNSW32, or auto"
        ) from error


def layers(index: Any) -> Iterator[Any]:
    """Yield the parts of an index, from outside in: transforms, a refining index, cells, a graph over them."""
    faiss = load_faiss()
    # A new name: the object behind it belongs to `index`, which must stay alive.
    actual = faiss.downcast_index(index)
    yield actual
    if isinstance(actual, faiss.IndexPreTransform):
        yield from layers(actual.index)
    elif isinstance(actual, faiss.IndexRefine):
        yield from layers(actual.base_index)
    elif isinstance(actual, faiss.IndexIVF):
        yield from layers(actual.quantizer)


def configure_search(index: Any, nprobe: int, ef_search: int, refine_factor: float) -> None:
    """Apply the search settings that this kind of index has.

    Args:
        nprobe: cells visited in an IVF index (all of them, if it has fewer).
        ef_search: breadth of the search in an HNSW index or in the HNSW over an IVF's centroids.
        refine_factor: candidates per result that a refining index scores again.
    """
    faiss = load_faiss()
    for layer in layers(index):
        if isinstance(layer, faiss.IndexRefine):
            layer.k_factor = refine_factor
        elif isinstance(layer, faiss.IndexIVF):
            layer.nprobe = min(nprobe, layer.nlist)
        elif isinstance(layer, faiss.IndexHNSW):
            layer.hnsw.efSearch = ef_search


def uses(index: Any) -> set[str]:
    """Return which of ``nprobe``, ``ef_search`` and ``refine_factor`` change the results of this index.

    >>> sorted(uses(make_index("IVF16,Flat", 8))), uses(make_index("Flat", 8))
    (['nprobe'], set())
    """
    faiss = load_faiss()
    kinds = {"refine_factor": faiss.IndexRefine, "nprobe": faiss.IndexIVF, "ef_search": faiss.IndexHNSW}
    return {name for layer in layers(index) for name, kind in kinds.items() if isinstance(layer, kind)}
