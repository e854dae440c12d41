"""``raydr fuse``: runs in, a run out."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.evaluation.config import FUSED
from raydr.graph.session import open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TestSplit, takes_config
from raydr.verbs.search import first_test_split, write_trec


@takes_config
def fuse(
    config: RunConfig,
    split: TestSplit = "",
    trec: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Fuse the runs of several systems (section fuse) by ranks or scores; evaluate compares it with the others.

    Args:
        trec: also write the run in TREC format to this file.
    """
    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        made = session.make(session.recipe.search(split, FUSED))
        if trec and made:
            write_trec(made[0], trec, tag=FUSED)
        return made
