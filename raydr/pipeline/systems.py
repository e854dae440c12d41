"""Compared systems: own runs, imported runs, imported vectors, and fusions."""

from __future__ import annotations

from collections.abc import Callable

from raydr.artefacts import Context, Existing, Node
from raydr.artefacts import search as searches
from raydr.artefacts.dataset import declare_corpus, declare_dataset
from raydr.artefacts.fused_run import fused, fusion_weights
from raydr.artefacts.places import BM25, TRAINED, UNTRAINED, vectors_name
from raydr.config.run import RANKER
from raydr.data.parts import Scope
from raydr.errors import ArtifactError, ConfigError
from raydr.evaluation.config import FUSED, FuseConfig
from raydr.models.scores.dual import Dual


def is_own(context: Context, system: str) -> bool:
    """Return whether a system belongs to the config, or is an existing model."""
    own = {BM25, TRAINED, UNTRAINED, RANKER, *context.config.variants}
    return system in own or context.facts.places.pointer(f"models/{system}") is not None


def compared(context: Context, split: str) -> list[str]:
    """Return BM25, the untrained and the trained model, variants, a fusion, and all other runs over a split."""
    config = context.config
    own = [BM25, UNTRAINED, TRAINED, *config.variants, *([FUSED] if config.fuse is not None else [])]
    runs = [name.rpartition("/")[2] for name in context.facts.places.names(f"runs/{split}")]
    return [*own, *(name for name in runs if name not in own)]


def is_run(context: Context, split: str, system: str) -> bool:
    """Return whether a system exists only as a run."""
    return not is_own(context, system) and context.facts.places.pointer(f"runs/{split}/{system}") is not None


def run_of(context: Context, split: str, system: str) -> Node:
    """Return the imported run of another program.

    Raises:
        ArtifactError: the run was imported with another ``data.skip_own_id``.
    """
    name = f"runs/{split}/{system}"
    node = Existing.of(context.facts.places.open(name, "run"), name)
    if node.identity.config.get("skip_own_id", False) != context.config.data.skip_own_id:
        raise ArtifactError(
            f"{name} was imported with another data.skip_own_id: raydr import-run CONFIG FILE --system {system} "
            f"--split {split} --again"
        )
    return node


def require_split(context: Context, split: str, system: str) -> None:
    """Refuse a system that exists only as runs over other splits.

    Raises:
        ArtifactError: the system has no run over the split; the message names the other splits and the importing verb.
    """
    if is_own(context, system):
        return
    runs = [name.split("/") for name in context.facts.places.names("runs")]
    if others := [over for _, over, named in runs if named == system]:
        raise ArtifactError(
            f"{system} has runs over {', '.join(others)}, and none over split {split!r}: raydr import-run CONFIG FILE "
            f"--system {system} --split {split}"
        )


def with_dev_run(context: Context, system: str) -> str:
    """Return the miner; check that an imported miner also has a run over the dev split.

    Raises:
        ConfigError: the dev run is missing, so the ranker's epoch cannot be selected.
    """
    split = context.config.data.dev_split
    if is_run(context, context.config.data.train_split, system) and not is_run(context, split, system):
        raise ConfigError(
            f"selecting the ranker's epoch needs a run of {system!r} over split {split!r}, which does not exist: raydr "
            f"import-run CONFIG FILE --system {system} --split {split}; or set ranker.dev to null"
        )
    return system


def is_embedder(context: Context, system: str) -> bool:
    """Return whether a system exists as vectors."""
    return not is_own(context, system) and context.facts.places.pointer(vectors_name(system)) is not None


def vectors(context: Context, system: str, split: str = "") -> Node:
    """Return the vectors of an embedder: of passages, or of a split's queries.

    Raises:
        ArtifactError: they are missing, or were imported for other data.
    """
    name, places = vectors_name(system, split), context.facts.places
    if places.pointer(name) is None:
        raise ArtifactError(
            f"{system} has vectors of passages, but none of the queries of split {split!r}: raydr import-vectors "
            f"CONFIG FILE --system {system} --split {split}"
        )
    node = Existing.of(places.open(name, "embeddings"), name)
    texts = declare_dataset(context) if split else declare_corpus(context)
    if texts.key not in node.identity.inputs.values():
        raise ArtifactError(f"{name} was imported for other data than the config's: import it again")
    return node


def search(context: Context, index: Node, system: str, split: str, scope: Scope | None = None) -> Node:
    """Search a split with an embedder's vectors."""
    return searches.in_index(context, index, vectors(context, system, split), system, split, Dual(), scope=scope)


def fuse_runs(context: Context, split: str, search: Callable[[str, str], Node], scope: Scope | None = None) -> Node:
    """Return the run of the section ``fuse``.

    Args:
        context: config.
        split: searched split; weights are always chosen on the dev split.
        search: returns a system's run, by split and name.
        scope: must be None.

    Raises:
        ConfigError: a scope is given.
        ArtifactError: a system or its run does not exist.
    """
    if scope is not None:
        raise ConfigError(f"{FUSED}@{scope}: a fusion has no scope; write @{scope} at the names in fuse.systems")
    settings = context.config.fuse or FuseConfig()

    def runs(on: str) -> dict[str, Node]:
        return {system: _run_of(system, on, search) for system in settings.systems}

    weights = None
    if settings.weights == "dev":
        weights = fusion_weights(context, settings, runs(context.config.data.dev_split))
    return fused(context, settings, runs(split), weights, split)


def _run_of(system: str, split: str, search: Callable[[str, str], Node]) -> Node:
    try:
        return search(split, system)
    except ArtifactError as error:
        raise ArtifactError(
            f"fuse.systems: {system!r} has no run over split {split!r} and is no model ({error}); import a run of "
            f"another program with raydr import-run CONFIG FILE --system {system} --split {split}"
        ) from None
