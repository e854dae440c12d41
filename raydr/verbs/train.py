"""``raydr train``: a dual encoder, or the run's ranker, on Ray Train."""

from __future__ import annotations

from raydr.config.run import RunConfig, is_ranker
from raydr.errors import ConfigError
from raydr.graph.session import open_session
from raydr.stages.declaration import Existing
from raydr.stages.mine import SOURCE
from raydr.stages.places import BM25, UNTRAINED
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, takes_config


@takes_config
def train(
    config: RunConfig,
    name: str = "trained",
    negatives: str = "",
    dataset: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Train the dual encoder, or the ranker; what it needs is made first, and an interrupted training goes on.

    Args:
        name: name of the model; that of a variant trains that variant, ranker or ranker-X the cross-encoder.
        negatives: folder of a negatives artefact in place of what is mined and judged.
        dataset: folder of a dataset artefact in place of the run's, e.g. a judged one.

    Raises:
        ConfigError: the name is no name of a folder, or one that raydr gives to something else.
    """
    if name in (BM25, UNTRAINED, SOURCE):
        raise ConfigError(f"--name {name}: raydr calls something else so; give the model another name")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        given = (
            Existing.at(negatives, "negatives") if negatives else None,
            Existing.at(dataset, "dataset") if dataset else None,
        )
        return session.make(recipe.ranker(name, *given) if is_ranker(name) else recipe.trained(name, *given))
