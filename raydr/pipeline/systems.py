"""Systems that are compared: own runs, imported runs, imported vectors, and fusions of them."""

from __future__ import annotations

from collections.abc import Callable

from raydr.artefacts import search as searches
from raydr.artefacts.context import Context
from raydr.artefacts.corpus import declare_corpus
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.declaration import Existing, Node
from raydr.artefacts.fused_run import fused, fusion_weights
from raydr.artefacts.places import BM25, TRAINED, UNTRAINED, vectors_name
from raydr.config.run import RANKER
from raydr.data.partitions import Scope
from raydr.errors import ArtifactError, ConfigError
from raydr.evaluation.config import FUSED, FuseConfig
from raydr.models.scores.dual import Dual


def is_own(context: Context, system: str) -> bool:
    """Whether a system is one of the config, or a model that is there."""
    own = {BM25, TRAINED, UNTRAINED, RANKER, *context.config.variants}
    return system in own or context.facts.places.pointer(f"models/{system}") is not None


def compared(context: Context, split: str) -> list[str]:
    """Return BM25, the untrained and the trained model, variants, a fusion, and all other runs over a split."""
    config = context.config
    own = [BM25, UNTRAINED, TRAINED, *config.variants, *([FUSED] if config.fuse is not None else [])]
    runs = [name.rpartition("/")[2] for name in context.facts.places.names(f"runs/{split}")]
    return [*own, *(name for name in runs if name not in own)]


def is_run(context: Context, split: str, system: str) -> bool:
    """Whether a system is there as a run alone."""
    return not is_own(context, system) and context.facts.places.pointer(f"runs/{split}/{system}") is not None


def run_of(context: Context, split: str, system: str) -> Node:
    """The run of another program.

    Raises:
        ArtifactError: it was imported with another ``data.skip_own_id``.
    """
    name = f"runs/{split}/{system}"
    node = Existing.of(context.facts.places.open(name, "run"), name)
    if node.identity.config.get("skip_own_id", False) != context.config.data.skip_own_id:
        raise ArtifactError(
            f"{name} was imported before data.skip_own_id was changed: raydr import-run CONFIG FILE --system {system} "
            f"--split {split} --again"
        )
    return node


def with_dev_run(context: Context, system: str) -> str:
    """The miner; refuses one whose run over the training split alone is there.

    Raises:
        ConfigError: the ranker's epoch could not be chosen.
    """
    split = context.config.data.dev_split
    if is_run(context, context.config.data.train_split, system) and not is_run(context, split, system):
        raise ConfigError(
            f"the ranker's epoch is chosen by what {system!r} finds for split {split!r}, and that run is not there: "
            f"raydr import-run CONFIG FILE --system {system} --split {split}; or set ranker.dev to null"
        )
    return system


def is_embedder(context: Context, system: str) -> bool:
    """Whether a system is there as vectors."""
    return not is_own(context, system) and context.facts.places.pointer(vectors_name(system)) is not None


def vectors(context: Context, system: str, split: str = "") -> Node:
    """The vectors of an embedder: of passages, or of the queries of a split.

    Raises:
        ArtifactError: they were not imported, or for other data.
    """
    name, places = vectors_name(system, split), context.facts.places
    if places.pointer(name) is None:
        raise ArtifactError(
            f"there are vectors of {system} for passages, and none for the queries of split {split!r}: raydr "
            f"import-vectors CONFIG FILE --system {system} --split {split}"
        )
    node = Existing.of(places.open(name, "embeddings"), name)
    texts = declare_dataset(context) if split else declare_corpus(context)
    if texts.key not in node.identity.inputs.values():
        raise ArtifactError(f"{name} was imported for other data than the config's: import it again")
    return node


def search(context: Context, index: Node, system: str, split: str, scope: Scope | None = None) -> Node:
    """What an embedder's vectors find for the queries of a split."""
    return searches.in_index(context, index, vectors(context, system, split), system, split, Dual(), scope=scope)


def fuse_runs(context: Context, split: str, search: Callable[[str, str], Node], scope: Scope | None = None) -> Node:
    """The run that the section ``fuse`` describes.

    Args:
        context: the config.
        split: that is searched; weights are chosen on the dev split, whichever it is.
        search: the run of a system, by split and name.
        scope: a fusion has none.

    Raises:
        ConfigError: a scope is given.
        ArtifactError: there is no such system, or no run of it.
    """
    if scope is not None:
        raise ConfigError(f"{FUSED}@{scope}: what is fused is searched where fuse.systems say: write @{scope} there")
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
            f"fuse.systems: {system!r} has no run over split {split!r} and is no model either ({error}); a run of "
            f"another program is brought by raydr import-run CONFIG FILE --system {system} --split {split}"
        ) from None
