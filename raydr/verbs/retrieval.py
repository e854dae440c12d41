"""Retrieval verbs: ``encode``, ``index``, ``mine``, ``search``, ``rerank`` and ``fuse``."""

from __future__ import annotations

from typing import Annotated

import typer

from raydr.artefacts.declaration import Node
from raydr.artefacts.places import TRAINED
from raydr.artefacts.run import Run, export_trec
from raydr.config.run import RunConfig, is_ranker
from raydr.console import say, warn
from raydr.data.inputs import place_of
from raydr.errors import ConfigError
from raydr.evaluation.config import FUSED
from raydr.pipeline.session import Session, open_session
from raydr.store.artifact import Artifact
from raydr.verbs.command import Again, DryRun, Model, TestSplit, TrainSplit, first_test_split, takes_config


@takes_config
def encode(
    config: RunConfig,
    model: Model = "trained",
    split: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Encode the corpus, or the queries of a split; resume an interrupted run.

    Args:
        split: split whose queries are encoded; default: the corpus.
    """
    with open_session(config, again, dry_run) as session:
        recipe = session.recipe
        return session.make(recipe.queries(split, model) if split else recipe.passages(model))


@takes_config
def index(config: RunConfig, model: Model = "trained", again: Again = False, dry_run: DryRun = False) -> list[Artifact]:
    """Build the FAISS index over a model's passage vectors."""
    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.index(model))


@takes_config
def mine(
    config: RunConfig,
    split: TrainSplit = "",
    miner: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Mine candidate hard negatives: the best passages of a run that are not known positives.

    Args:
        miner: system whose run is mined, instead of negatives.miner; or source, or bm25.
    """
    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.candidates(split or config.data.train_split, miner))


@takes_config
def search(
    config: RunConfig,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]")] = None,
    model: str = "trained",
    split: TestSplit = "",
    top_k: Annotated[int, typer.Option("--top-k", "-k", min=1)] = 5,
    rerank: bool = False,
    partition: str = "",
    trec: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Search the queries of a split, or a text.

    Args:
        text: query; its top passages are printed.
        model: name of the model in the working folder; or bm25, or fused (raydr fuse).
        top_k: passages to print for TEXT.
        rerank: rerank the hits of TEXT by rerank.model, as raydr rerank does for runs.
        partition: search TEXT among the passages of this partition.
        trec: also write the run in TREC format to this file.

    Raises:
        ConfigError: both a text and a split are set, or the text is empty.
    """
    if text is not None:
        if split or trec:
            raise ConfigError(f"got a text ({text!r:.50}) and {'--split' if split else '--trec'}: leave one out")
        # PyTorch takes seconds to import, and runs that exist need none of it.
        from raydr.verbs.text_search import search_text, show_hits

        show_hits(text, search_text(config, text, model, top_k, rerank, partition))
        return []
    if partition:
        raise ConfigError("--partition needs a text; for the queries of a split set partition.search")
    if rerank:
        raise ConfigError(f"--rerank needs a text; raydr rerank CONFIG --system {model} reranks a run")

    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        return _make_run(session, session.recipe.search(split, model), model, trec)


def _make_run(session: Session, run: Node, system: str, trec: str) -> list[Artifact]:
    """Make a run, and write it as a TREC file if requested."""
    made = session.make(run)
    if trec and made:
        folder, name = place_of(trec)
        target = folder.absolute()
        export_trec(Run(made[0]), target, name, tag=system)
        say(f"the run of {system} in TREC format: {target / name}")
    return made


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
    """Rerank a system's run; evaluate compares the new run, SYSTEM+MODEL, with the others.

    Args:
        system: system whose run is reranked: a model, bm25, or an imported run.
        by: reranking model, instead of rerank.model: ranker, or a retriever's name.
        trec: also write the run in TREC format to this file.
    """
    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        by = by or config.rerank.model
        run = session.recipe.reranked(split, system, by)
        ranker = session.recipe.names.get(f"models/{by}")
        if ranker is not None and is_ranker(by) and session.inventory.state(ranker) != "done":
            say(f"rerank: training {by}, which does not exist yet; --by {TRAINED} reranks by the retriever instead")
        made = _make_run(session, run, f"{system}+{by}", trec)
        for remark in session.inventory.open(ranker).info.get("remarks", []) if made and ranker is not None else []:
            warn(f"{remark}; the reranked run is unlikely to be better than {system}'s")
        return made


@takes_config
def fuse(
    config: RunConfig,
    split: TestSplit = "",
    trec: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Fuse runs of several systems (section fuse) by ranks or scores; evaluate compares the result.

    Args:
        trec: also write the run in TREC format to this file.
    """
    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        return _make_run(session, session.recipe.search(split, FUSED), FUSED, trec)
