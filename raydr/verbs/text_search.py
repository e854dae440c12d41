"""Search for a text in existing artefacts, and show the hits."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from raydr.artefacts.bm25 import open_bm25
from raydr.artefacts.places import BM25, Places, vectors_name
from raydr.config.run import RunConfig, check_retriever, is_ranker
from raydr.console import output, print_indented, shown
from raydr.data.corpus import Corpus
from raydr.errors import ArtifactError, ConfigError, FingerprintError
from raydr.evaluation.config import FUSED, FuseConfig
from raydr.indexing.searcher import Hit, Searcher, bm25_hits, fuse_hits, rerank_hits
from raydr.models.cross_encoder import CrossEncoderScorer
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.pair_scoring import DualEncoderScorer, PairScorer
from raydr.verbs.command import first_test_split, takes_config


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
        text: text of the query.
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
    hits = _find(config, places, text, model, config.rerank.depth, partition)
    return rerank_hits(text, hits, _open_scorer(places, config.rerank.model))[:top_k]


def _find(config: RunConfig, places: Places, text: str, model: str, top_k: int, partition: str) -> list[Hit]:
    if model == FUSED:
        # The run's weights may have been chosen on dev.
        run = places.open(f"runs/{first_test_split(config)}/{FUSED}", "run")
        weights, made_with = run.info["weights"], run.manifest.identity.config
        settings = FuseConfig.model_validate(made_with.get("settings", {}))
        lists = [_find(config, places, text, system, config.search.top_k, partition) for system in weights]
        return fuse_hits(lists, list(weights.values()), settings, top_k)
    if model == BM25:
        index, corpus = places.open(BM25, "bm25"), places.open("corpus", "corpus")
        # The index refers to passages by their rows in its own corpus.
        if index.manifest.identity.inputs["corpus"] != corpus.fingerprint:
            raise FingerprintError(
                f"the BM25 index at {index.folder} was made from another corpus than {corpus.folder}: make it again "
                "with raydr search CONFIG --model bm25 --again"
            )
        return bm25_hits(open_bm25(index.folder, index.fingerprint), Corpus(corpus), text, top_k, partition)
    check_retriever(model)
    if places.pointer(f"models/{model}") is None and places.pointer(vectors_name(model)) is not None:
        raise ConfigError(f"{model} exists only as imported vectors, so it cannot encode a text: pass --split")
    saved = places.open(f"models/{model}", "model")
    if places.pointer(f"index/{model}") is None:
        raise ArtifactError(f"{places.root} has no index of {model}: make it with raydr index CONFIG --model {model}")
    searcher = Searcher.open(
        places.open(f"index/{model}", "index"),
        places.open("corpus", "corpus"),
        saved,
        config.search,
    )
    return searcher.search([text], top_k, partition)[0]


def _open_scorer(places: Places, name: str) -> PairScorer:
    opened, kind = (CrossEncoderScorer, "cross_encoder") if is_ranker(name) else (DualEncoderScorer, "model")
    return opened(places.open(f"models/{name}", kind).local_folder(), "float32", "cpu", TOKEN_BUDGET["cpu"])


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
