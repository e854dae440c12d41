"""``raydr import-vectors``: vectors of another embedder, for passages or for the queries of a split."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from raydr.config.run import RunConfig, check_name
from raydr.errors import ConfigError
from raydr.graph import foreign
from raydr.graph.session import open_session
from raydr.stages.import_vectors import imported_vectors
from raydr.stages.places import vectors_name
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, takes_config
from raydr.verbs.search import first_test_split


@takes_config
def import_vectors(
    config: RunConfig,
    file: Annotated[str, typer.Argument(metavar="FILE")],
    system: str,
    split: str = "",
    ids: str = "",
    queries: str = "",
    query_ids: str = "",
    similarity: Literal["cosine", "dot"] = "cosine",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Take over vectors of any other embedder, to index, search, mine, judge and evaluate with them.

    Args:
        file: the vectors: .npy, .npz, .parquet or .faiss; local or a URL.
        system: what the embedder is called: index, search, mine take it.
        split: whose queries they are of; of passages if left out.
        ids: file of their ids, one a line or .npy, where FILE has none.
        queries: with FILE of passages, another with vectors of the queries of SPLIT, or of the first test split.
        query_ids: file of their ids.
        similarity: how the embedder's vectors are compared.

    Raises:
        ConfigError: the name is no name of a folder, or one that raydr gives to systems of its own.
    """
    check_name(system, "system")
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        recipe.dataset()
        if foreign.is_own(recipe.run, system):
            raise ConfigError(f"there is a model called {system!r} in this run: call the embedder otherwise")
        given = [(file, ids, "" if queries else split)]
        given += [(queries, query_ids, split or first_test_split(config))] if queries else []
        return session.make(
            *(
                recipe.named(
                    vectors_name(system, of), imported_vectors(recipe.run, system, vectors, named, of, similarity)
                )
                for vectors, named, of in given
            )
        )
