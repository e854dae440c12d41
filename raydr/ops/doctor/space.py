"""Whether what a run writes fits: what its plan says, or the vectors of its passages if it was not planned."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.graph.forecast import FORECAST_FILE, Forecast
from raydr.graph.places import Places
from raydr.ops.doctor.finding import Finding

_GIB = 2**30
_CHECK = "space for artefacts"
#: Passages whose words are counted.
_SAMPLE = 1_000


def check_space(config: RunConfig) -> list[Finding]:
    """What the run will write against what is free; nothing where the working folder is no local one, or too little is
    known."""
    if "://" in config.workdir:
        return []
    folder = Path(config.workdir).absolute()
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    free, places = shutil.disk_usage(there).free, Places.of(config.workdir)
    if places.root.exists(FORECAST_FILE):
        plan = Forecast.from_json(places.root.read_sealed(FORECAST_FILE))
        return [compare_planned(plan.disk_bytes, free, plan.num_passages)]
    num_passages, corpus = config.plan.num_passages, None
    if places.pointer("corpus") is not None:
        corpus = Corpus(places.open("corpus", "corpus"))
        num_passages = num_passages or len(corpus)
    dim, vectors = config.model.projected_dim, config.model.vectors("passage")
    if num_passages is None or dim is None or not vectors.several:
        return []
    most = vectors.most(longest := config.model.passage.max_length)
    fewest = float(most)
    if vectors.kind == "tokens":
        # A word is a token or more.
        words = [len(text.split()) for text in corpus.part(0)["text"][:_SAMPLE].to_pylist()] if corpus else [1]
        fewest = float(np.minimum(words, longest).mean())
    pooling = config.encode.token_pooling if vectors.kind == "tokens" else 1
    return [compare_vectors(num_passages, fewest / pooling, most / pooling, dim, free)]


def compare_planned(planned: int, free: int, num_passages: int) -> Finding:
    """The bytes of a plan against those that are free.

    >>> compare_planned(3 * 2**30, 2**30, 5).state, compare_planned(2**29, 2**30, 5).state
    ('broken', 'ok')
    """
    found = f"planned for {num_passages:,} passages: {planned / _GIB:,.1f} GiB, {free / _GIB:,.1f} GiB free"
    if planned > free:
        return Finding.broken(
            _CHECK, found, "free space, move the working folder, or see `raydr plan` for what is largest"
        )
    return Finding.ok(_CHECK, found)


def compare_vectors(num_passages: int, fewest: float, most: float, dim: int, free: int) -> Finding:
    """Twice the vectors of all passages, as parts and in an index, against the bytes that are free.

    Args:
        num_passages: passages.
        fewest, most: vectors that each has on average.
        dim: of a vector, in half precision.
        free: bytes.

    >>> compare_vectors(21_000_000, 8, 8, 128, 2**40).found
    '21,000,000 passages of 8 vectors of 128 dimensions are 80.1 GiB as they are written twice, 1,024.0 GiB free'
    >>> [compare_vectors(21_000_000, 50, 160, 128, free * 2**30).state for free in (400, 600, 2_000)]
    ['broken', 'warning', 'ok']
    """
    least, size = (num_passages * number * dim * 2 * 2 for number in (fewest, most))
    number = f"{most:g}" if fewest == most else f"{fewest:.0f} to {most:.0f}"
    sizes = f"{size / _GIB:,.1f}" if fewest == most else f"{least / _GIB:,.1f} to {size / _GIB:,.1f}"
    found = (
        f"{num_passages:,} passages of {number} vectors of {dim} dimensions are {sizes} GiB as they are written twice, "
        f"{free / _GIB:,.1f} GiB free"
    )
    if size <= free:
        return Finding.ok(_CHECK, found)
    advice = (
        "free space or move the working folder, lower model.projection or model.passage.max_length, or take a score "
        "function with fewer vectors"
    )
    if least > free:
        return Finding.broken(_CHECK, found, advice)
    return Finding.warning(_CHECK, found, f"`raydr plan` tells from the texts how many vectors they have; {advice}")
