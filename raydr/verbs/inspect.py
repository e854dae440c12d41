"""``raydr inspect``: what is in a prepared data set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.stages.choose_pool import choose_pool
from raydr.stages.inspect import inspect as look
from raydr.verbs.command import takes_config

if TYPE_CHECKING:
    from raydr.data.inspection_report import InspectionReport


@takes_config
def inspect(config: RunConfig) -> InspectionReport:
    """Show counts, lengths, truncation, duplicates, gaps and examples of the prepared data."""
    with open_session(config) as session:
        [corpus, dataset] = session.make(session.recipe.corpus(), session.recipe.dataset())
        pool = choose_pool(corpus.rows("passages"))
        return look(
            pool,
            corpus,
            dataset,
            session.places.root / "inspection",
            model=config.model,
            settings=config.evaluate,
            train_split=config.data.train_split,
            seed=config.seed,
        )
