"""Verbs of the retrieval: ``encode``, ``index``, ``mine``, ``search``, ``rerank`` and ``fuse``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from raydr.artefacts.bm25 import open_bm25
from raydr.artefacts.declaration import Node
from raydr.artefacts.places import BM25, TRAINED, Places, vectors_name
from raydr.artefacts.run import Run, export_trec
from raydr.config.run import RunConfig, check_retriever, is_ranker
from raydr.console import output, print_indented, say, shown, warn
from raydr.data.corpus import Corpus
from raydr.errors import ArtifactError, ConfigError
from raydr.evaluation.config import FUSED, FuseConfig
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.pipeline.session import Session, open_session
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.verbs.command import Again, DryRun, Model, TestSplit, TrainSplit, takes_config

if TYPE_CHECKING:
    from raydr.indexing.searcher import Hit
    from raydr.models.pair_scoring import PairScorer


@takes_config
def encode(
    config: RunConfig,
    model: Model = "trained",
    split: str = "",
    again: Again = False,
    dry_run: DryRun = False,
) -> list[Artifact]:
    """Encode the corpus, or the queries of a split; goes on where an interrupted run was.

    Args:
        split: encode the queries of this split; the corpus if left out.
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
    """Find candidate hard negatives: the best passages of a run that are not known positives.

    Args:
        miner: whose run is mined, instead of negatives.miner; or source, or bm25.
    """
    with open_session(config, again, dry_run) as session:
        return session.make(session.recipe.candidates(split or config.data.train_split, miner))


def show_hits(query: str, hits: Sequence[Hit]) -> None:
    """The passages found for one query, readably: rank, score, id, title and the beginning of the text."""
    out = output()
    out.print(Text(shown(query), style="bold"))
    if not hits:
        out.print("nothing found: the corpus has no word of it")
    for hit in hits:
        head = Text.assemble(
            (f"{hit.rank:>3}. ", "bold"), f"{hit.score:.3f}  ", (hit.passage_id, "dim"), "  ", shown(hit.title)
        )
        out.print(head)
        print_indented(out, hit.text, 5, 400)


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
    """Search the queries of a split, or a text given on the command line.

    Args:
        text: search this text and print the top passages.
        model: name of the model in the working folder; or bm25, or fused (raydr fuse).
        top_k: passages to print for TEXT.
        rerank: order what is found for TEXT by rerank.model, as raydr rerank does runs.
        partition: search TEXT among the passages of this one.
        trec: also write the run in TREC format to this file.

    Raises:
        ConfigError: a text and a split were given, or the text is empty.
    """
    if text is not None:
        if split or trec:
            raise ConfigError(f"a text ({text!r:.50}) and {'--split' if split else '--trec'} were given: leave one out")

        show_hits(text, search_text(config, text, model, top_k, rerank, partition))
        return []
    if partition:
        raise ConfigError("--partition goes with a text; where a split's queries are searched says partition.search")
    if rerank:
        raise ConfigError(f"--rerank goes with a text; raydr rerank CONFIG --system {model} reranks a run")

    split = split or first_test_split(config)
    with open_session(config, again, dry_run) as session:
        return _make_run(session, session.recipe.search(split, model), model, trec)


def _make_run(session: Session, run: Node, system: str, trec: str) -> list[Artifact]:
    """Make a run, and write it as a TREC file too where that is asked for."""
    made = session.make(run)
    if trec and made:
        folder, _, name = trec.rpartition("/")
        target = Folder(folder or ".").absolute()
        export_trec(Run(made[0]), target, name, tag=system)
        say(f"the run of {system} in TREC format: {target.path(name)}")
    return made


@takes_config
def search_text(
    config: RunConfig,
    text: str,
    model: str = "trained",
    top_k: int = 10,
    rerank: bool = False,
    partition: str = "",
) -> list[Hit]:
    """The passages that a model finds for one text; opens what is there, and needs no Ray.

    Args:
        config: the run.
        text: the query.
        model: the retriever, ``bm25``, or ``fused``.
        top_k: passages.
        rerank: the best of the first ``rerank.depth``, by ``rerank.model``; on the CPU in float32.
        partition: where they are looked for; everywhere if empty.

    Raises:
        ConfigError: the text is none, or is empty, there is no such partition, or the model is a cross-encoder.
        ArtifactError: there is no model of that name, no index of it, no fused run, or no model that reranks.
    """
    if not isinstance(text, str):
        raise ConfigError(f"search_text takes one text, got a {type(text).__name__}: call it for each of them")
    if not text.strip():
        raise ConfigError("the text is empty: give some text to search for")
    places = Places.of(config.workdir)
    if not rerank:
        return _find(config, places, text, model, top_k, partition)
    from raydr.indexing.searcher import rerank_hits

    hits = _find(config, places, text, model, config.rerank.depth, partition)
    return rerank_hits(text, hits, _open_scorer(places, config.rerank.model))[:top_k]


def _find(config: RunConfig, places: Places, text: str, model: str, top_k: int, partition: str) -> list[Hit]:
    from raydr.indexing.searcher import Searcher, bm25_hits, fuse_hits

    if model == FUSED:
        # As the run was made: the weights may have been chosen on dev.
        run = places.open(f"runs/{first_test_split(config)}/{FUSED}", "run")
        weights, made_with = run.info["weights"], run.manifest.identity.config
        settings = FuseConfig.model_validate(made_with.get("settings", {}))
        lists = [_find(config, places, text, system, config.search.top_k, partition) for system in weights]
        return fuse_hits(lists, list(weights.values()), settings, top_k)
    if model == BM25:
        index = places.open(BM25, "bm25")
        opened = open_bm25(index.folder, index.fingerprint)
        return bm25_hits(opened, Corpus(places.open("corpus", "corpus")), text, top_k, partition)
    check_retriever(model)
    if places.pointer(f"models/{model}") is None and places.pointer(vectors_name(model)) is not None:
        raise ConfigError(f"{model} is there as vectors, and nothing encodes a text as it does: give --split")
    saved = places.open(f"models/{model}", "model")
    if places.pointer(f"index/{model}") is None:
        raise ArtifactError(f"there is no index of {model} in {places.root}: raydr index --model {model} makes it")
    searcher = Searcher.open(
        places.open(f"index/{model}", "index"),
        places.open("corpus", "corpus"),
        saved,
        config.search,
    )
    return searcher.search([text], top_k, partition)[0]


def _open_scorer(places: Places, name: str) -> PairScorer:
    from raydr.models.cross_encoder import CrossEncoderScorer
    from raydr.models.pair_scoring import DualEncoderScorer

    opened, kind = (CrossEncoderScorer, "cross_encoder") if is_ranker(name) else (DualEncoderScorer, "model")
    return opened(places.open(f"models/{name}", kind).local_folder(), "float32", "cpu", TOKEN_BUDGET["cpu"])


def first_test_split(config: RunConfig) -> str:
    """The split that is meant where none is named.

    Raises:
        ConfigError: there is none.
    """
    if not config.data.test_splits:
        raise ConfigError("data.test_splits is empty: name a split with --split")
    return config.data.test_splits[0]


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
        by = by or config.rerank.model
        run = session.recipe.reranked(split, system, by)
        ranker = session.recipe.names.get(f"models/{by}")
        if ranker is not None and session.inventory.state(ranker) != "done":
            say(f"rerank: there is no {by} yet, it is trained first; --by {TRAINED} takes the retriever in its place")
        made = _make_run(session, run, f"{system}+{by}", trec)
        for remark in session.inventory.open(ranker).info.get("remarks", []) if made and ranker is not None else []:
            warn(f"{remark}; the reranked run is not likely to be better than {system}'s")
        return made


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
        return _make_run(session, session.recipe.search(split, FUSED), FUSED, trec)
