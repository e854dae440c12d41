"""Fusions over nodes: whose runs are put together, and what chooses their weights."""

from __future__ import annotations

from collections.abc import Callable

from raydr.data.partitions import Scope
from raydr.errors import ArtifactError, ConfigError
from raydr.evaluation.config import FUSED, FuseConfig
from raydr.stages.context import Declaring
from raydr.stages.declaration import Node
from raydr.stages.fuse import fused, fusion_weights


def fuse_runs(run: Declaring, split: str, search: Callable[[str, str], Node], scope: Scope | None = None) -> Node:
    """The run that the section ``fuse`` describes.

    Args:
        run: the config.
        split: that is searched; weights are chosen on the dev split, whichever it is.
        search: the run of a system, by split and name.
        scope: a fusion has none.

    Raises:
        ConfigError: a scope is given.
        ArtifactError: there is no such system, or no run of it.
    """
    if scope is not None:
        raise ConfigError(f"{FUSED}@{scope}: what is fused is searched where fuse.systems say: write @{scope} there")
    settings = run.config.fuse or FuseConfig()

    def runs(on: str) -> dict[str, Node]:
        return {system: _run_of(system, on, search) for system in settings.systems}

    weights = None
    if settings.weights == "dev":
        weights = fusion_weights(run, settings, runs(run.config.data.dev_split))
    return fused(run, settings, runs(split), weights, split)


def _run_of(system: str, split: str, search: Callable[[str, str], Node]) -> Node:
    try:
        return search(split, system)
    except ArtifactError as error:
        raise ArtifactError(
            f"fuse.systems: {system!r} has no run over split {split!r} and is no model either ({error}); a run of "
            f"another program is brought by raydr import-run CONFIG FILE --system {system} --split {split}"
        ) from None
