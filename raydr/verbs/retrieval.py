"""Retrieval verbs: ``encode``, ``index``, ``mine``, ``search``, ``rerank`` and ``fuse``."""

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


def show_hits(query: str, hits: Sequence[Hit]) -> None:
    """Print the hits of a query: rank, score, id, title and beginning of the text."""
    out = output()
    out.print(Text(shown(query), style="bold"))
    if not hits:
        out.print("no hits: the corpus has no word of the query")
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
    """Search for a text. Reads existing artefacts, without Ray.

    Args:
        config: config of the run.
        text: the query.
        model: retriever, ``bm25``, or ``fused``.
        top_k: number of passages.
        rerank: rerank the first ``rerank.depth`` hits by ``rerank.model``, on the CPU in float32.
        partition: partition to search; empty: all.

    Raises:
        ConfigError: the text is no string or empty, the partition is unknown, or the model is a cross-encoder.
        ArtifactError: the model, its index, the fused run, or the reranking model does not exist.
    """
    if not isinstance(text, str):
        raise ConfigError(f"search_text takes a str, got a {type(text).__name__}: call it for each text")
    if not text.strip():
        raise ConfigError("the text is empty: pass a query")
    places = Places.of(config.workdir)
    if not rerank:
        return _find(config, places, text, model, top_k, partition)
    from raydr.indexing.searcher import rerank_hits

    hits = _find(config, places, text, model, config.rerank.depth, partition)
    return rerank_hits(text, hits, _open_scorer(places, config.rerank.model))[:top_k]


def _find(config: RunConfig, places: Places, text: str, model: str, top_k: int, partition: str) -> list[Hit]:
    from raydr.indexing.searcher import Searcher, bm25_hits, fuse_hits

    if model == FUSED:
        # The run's weights may have been chosen on dev.
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
        raise ConfigError(f"{model} exists only as imported vectors, so it cannot encode a text: pass --split")
    saved = places.open(f"models/{model}", "model")
    if places.pointer(f"index/{model}") is None:
        raise ArtifactError(f"{places.root} has no index of {model}: make it with raydr index --model {model}")
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
    """Return the default split.

    Raises:
        ConfigError: there is no test split.
    """
    if not config.data.test_splits:
        raise ConfigError("data.test_splits is empty: set it, or name a split with --split")
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
