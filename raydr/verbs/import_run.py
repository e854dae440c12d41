"""``raydr import-run``: a run that another program has made."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.config.run import NAME, RunConfig
from raydr.data.corpus import Corpus
from raydr.errors import ConfigError
from raydr.evaluation.config import FUSED
from raydr.graph.session import Session, open_session
from raydr.runtime.console import warn
from raydr.stages.places import BM25, TRAINED, UNTRAINED
from raydr.stages.runs import Run, imported_run
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, TestSplit, takes_config
from raydr.verbs.search import first_test_split


@takes_config
def import_run(
    config: RunConfig,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    system: str,
    split: TestSplit = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Take over a run of another program, such as Lucene's BM25, to mine candidates from or to compare with.

    Args:
        file: the run in TREC format, plain or .gz; local or a URL.
        system: what the run is called: mine and evaluate take that name.

    Raises:
        ConfigError: the name is no name of a folder, or one that raydr gives to runs of its own.
    """
    own = {BM25, UNTRAINED, TRAINED, FUSED, *config.variants}
    if not NAME.fullmatch(system) or system in own:
        raise ConfigError(
            f"{system!r} cannot be the name of a run of another program: expected letters, digits, '.', '_' and "
            f"'-', and none of {', '.join(sorted(own))}"
        )
    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        node = imported_run(file, split, system, config.data.skip_own_id)
        made = session.make(session.recipe.named(f"runs/{split}/{system}", node))
        if made:
            _warn_of_strangers(session, made[0])
        return made


def _warn_of_strangers(session: Session, run: Artifact) -> None:
    """Passages of another corpus would only show as measures near 0."""
    import numpy as np

    if session.places.pointer("corpus") is None:
        return
    corpus = Corpus(session.places.open("corpus", "corpus"))
    found = Run(run).part(run.parts()[0])["passage_id"].unique().to_pylist()
    strange = [found[at] for at in np.flatnonzero(corpus.find(found) < 0).tolist()]
    if strange:
        warn(
            f"{len(strange):,} of the first {len(found):,} passages of the run are not in the corpus at "
            f"{corpus.artifact.folder}, the first is {strange[0]!r}: they count as wrong. Are its ids those of this "
            "corpus?"
        )
