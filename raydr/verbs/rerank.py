"""``raydr rerank``: a run in, a run out, ordered by a model that reads the passages."""

from __future__ import annotations

from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TestSplit, takes_config
from raydr.verbs.search import first_test_split, write_trec


@takes_config
def rerank(
    config: RunConfig,
    system: str = "trained",
    split: TestSplit = "",
    by: str = "",
    trec: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Rerank the run of a system; the new one is called SYSTEM+MODEL, and evaluate compares it with the others.

    Args:
        system: whose run is reranked: a model's, bm25, or that of another program.
        by: which model reranks, instead of rerank.model: ranker, or a retriever's name.
        trec: also write the run in TREC format to this file.
    """
    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        made = session.make(session.recipe.reranked(split, system, by))
        if trec and made:
            write_trec(made[0], trec, tag=made[0].info["system"])
        return made
