"""``raydr mine``: candidate hard negatives."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TrainSplit, takes_config


@takes_config
def mine(
    config: RunConfig,
    split: TrainSplit = "",
    miner: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Find candidate hard negatives: the best passages of a run that are not known positives.

    Args:
        miner: whose run is mined, instead of negatives.miner; or source, or bm25.
    """
    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.candidates(split or config.data.train_split, miner))
