"""Whether what a run writes fits: what its plan says, or the vectors of its passages if it was not planned."""

from __future__ import annotations

import shutil
from pathlib import Path

from raydr.config.run import RunConfig
from raydr.graph.forecast import FORECAST_FILE, Forecast
from raydr.graph.places import Places
from raydr.models.scores.base import Vectors
from raydr.ops.doctor.finding import Finding

_GIB = 2**30
_CHECK = "space for artefacts"


def check_space(config: RunConfig) -> list[Finding]:
    """What the run will write against what is free; nothing where the working folder is no local one, or too little is
    known."""
    if "://" in config.workdir:
        return []
    folder = Path(config.workdir).absolute()
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    free, places = shutil.disk_usage(there).free, Places.of(config.workdir)
    if places.root.exists(FORECAST_FILE):
        plan = Forecast.from_json(places.root.read_json(FORECAST_FILE))
        return [compare_planned(plan.disk_bytes, free, plan.num_passages)]
    num_passages = config.plan.num_passages
    if num_passages is None and places.pointer("corpus") is not None:
        num_passages = places.open("corpus", "corpus").rows("passages")
    dim, vectors = config.model.projected_dim, config.model.vectors("passage")
    if num_passages is None or dim is None or not vectors.several:
        return []
    return [compare_vectors(num_passages, vectors, config.model.passage.max_length, dim, free)]


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


def compare_vectors(num_passages: int, vectors: Vectors, longest: int, dim: int, free: int) -> Finding:
    """Twice the vectors of all passages, as parts and in an index, against the bytes that are free.

    >>> compare_vectors(21_000_000, Vectors("first", 8), 160, 128, 2**40).found
    '21,000,000 passages of 8 vectors of 128 dimensions are 80.1 GiB as they are written twice, 1,024.0 GiB free'
    """
    most = vectors.most(longest)
    # Half precision, once as parts and once in an index.
    size = num_passages * most * dim * 2 * 2
    number = f"at most {most}" if vectors.kind == "tokens" else str(most)
    found = (
        f"{num_passages:,} passages of {number} vectors of {dim} dimensions are {size / _GIB:,.1f} GiB as they are "
        f"written twice, {free / _GIB:,.1f} GiB free"
    )
    if size <= free:
        return Finding.ok(_CHECK, found)
    advice = (
        "free space or move the working folder, lower model.projection or model.passage.max_length, or take a score "
    )
    advice += "function with fewer vectors"
    if vectors.kind == "tokens":
        return Finding.warning(_CHECK, found, f"`raydr plan` tells from the texts how many vectors they have; {advice}")
    return Finding.broken(_CHECK, found, advice)
