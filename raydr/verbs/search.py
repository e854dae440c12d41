"""``raydr search``: the best passages for the queries of a split, or for one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from raydr.errors import ConfigError
from raydr.verbs.command import Again, DryRun, TestSplit

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.indexing.searcher import Hit
    from raydr.store.artifact import Artifact


def search(
    config: RunConfig,
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="Search this text and print the top passages.")] = "",
    model: Annotated[
        str, typer.Option("--model", help="Name of the model in the working folder; bm25 searches a split without one.")
    ] = "trained",
    split: TestSplit = "",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1, help="Passages to print for TEXT.")] = 5,
    trec: Annotated[str, typer.Option("--trec", help="Also write the run in TREC format to this file.")] = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Search the queries of a split, or a text given on the command line."""
    if text:
        from raydr.verbs.hits import show_hits

        show_hits(text, search_text(config, text, model, top_k))
        return []
    from raydr.graph.session import open_session

    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        made = session.make(session.recipe.search(split, model))
        if trec and made:
            from raydr.stages.runs import Run, export_trec
            from raydr.store.folder import Folder

            folder, _, name = trec.rpartition("/")
            export_trec(Run(made[0]), Folder(folder or ".").absolute(), name, tag=model)
        return made


def search_text(config: RunConfig, text: str, model: str = "trained", top_k: int = 10) -> list[Hit]:
    """The passages that a model finds for one text; opens what is there, and needs no Ray.

    Raises:
        ArtifactError: there is no index of that model.
    """
    from raydr.graph.places import Places
    from raydr.indexing.searcher import Searcher

    places = Places.of(config.workdir)
    searcher = Searcher.open(
        places.open(f"index/{model}", "index").folder,
        places.open("corpus", "corpus").folder,
        places.open(f"models/{model}", "model").folder,
        config.search,
    )
    return searcher.search([text], top_k)[0]


def first_test_split(config: RunConfig) -> str:
    """The split that is meant where none is named.

    Raises:
        ConfigError: there is none.
    """
    if not config.data.test_splits:
        raise ConfigError("data.test_splits is empty: name a split with --split")
    return config.data.test_splits[0]
