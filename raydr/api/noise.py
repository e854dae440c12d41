"""Finding noise from Python: mismatched pairs, false negatives, and hard negatives without them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from raydr.api.calls import call_config
from raydr.artefacts.negatives import SOURCE
from raydr.artefacts.places import BM25, UNTRAINED
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.pair_shape import pair_shape
from raydr.data.pairs_in_memory import Pairs, PairTable, pair_table
from raydr.errors import DataError
from raydr.pipeline.findings import FalseNegatives, Noise, find_false_candidates, find_mismatched, mined_triplets
from raydr.pipeline.session import open_session

if TYPE_CHECKING:
    import pandas as pd

#: Candidates of each query where nothing else is asked for.
_NUM_CANDIDATES = 30


def find_noise(
    pairs: Pairs,
    *,
    model: str | Path | None = None,
    cross_fit: bool = True,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Noise:
    """Find the pairs whose passage does not belong to the query.

    Each pair is measured by a model that has not learnt it: the pairs are cut into folds, and one short training on
    the other folds measures each. The detector ``local_fdr`` compares the measures with those of random pairs
    (docs/methods.md).

    Args:
        pairs: a list of (query, passage) tuples, a DataFrame, a ``datasets.Dataset``, or the path of a file. Columns
            are recognised by their names.
        model: a Hugging Face name or a folder, of any encoder; MiniLM out of a package if None.
        cross_fit: train on folds. False asks the model as it is: as quick as encoding, and less sure.
        seed: draws folds, batches and random passages.
        workdir: where artefacts are kept; a folder that goes with the process if None.
        settings: further settings as in a YAML file, for example ``{"cross_fit": {"num_folds": 5}}``.

    Raises:
        DataError: a row or a column cannot be used; names both.
        ConfigError: a setting is wrong.
    """
    sections = {} if cross_fit else {"cross_fit": {"num_epochs": 0}}
    config = call_config(pairs, model=model, seed=seed, workdir=workdir, settings=settings, sections=sections)
    with open_session(config) as session:
        return find_mismatched(session, config.data.train_split)


def find_false_negatives(
    pairs: Pairs,
    candidates: str | PairTable = BM25,
    *,
    judge: str = "near_duplicate",
    num_candidates: int = _NUM_CANDIDATES,
    model: str | Path | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> FalseNegatives:
    """Find candidate negatives that answer their query after all.

    Args:
        pairs: as in :func:`find_noise`.
        candidates: ``bm25``: the best passages that BM25 finds for each query; ``source``: the negatives that came with
            the pairs; or rows (query, passage) of your own, whose queries are among the pairs.
        judge: of negatives: ``near_duplicate``, ``margin``, ``guide``, ``sieve``, ... (docs/methods.md).
        num_candidates: of each query, at most.
        model: that the judge asks, and whose similarities it reads; MiniLM out of a package if None.
        seed, workdir, settings: as in :func:`find_noise`.

    Raises:
        DataError: a row or a column cannot be used, or a candidate is of an unknown query.
        ConfigError: a setting is wrong.
    """
    if not isinstance(candidates, str):
        pairs, candidates = _with_candidates(pairs, candidates), SOURCE
    sections = _mining(candidates, num_candidates, model, settings)
    config = call_config(pairs, model=model, seed=seed, workdir=workdir, settings=settings, sections=sections)
    with open_session(config) as session:
        return find_false_candidates(session, config.data.train_split, judge, candidates)


def mine_hard_negatives(
    pairs: Pairs,
    *,
    miner: Literal["bm25", "model"] = "bm25",
    num_negatives: int = 5,
    num_candidates: int = _NUM_CANDIDATES,
    judge: str | None = "near_duplicate",
    model: str | Path | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """Mine hard negatives, without those that a judge takes for positives.

    Args:
        pairs: as in :func:`find_noise`. Their positives are the corpus.
        miner: ``bm25``, or ``model`` as it is.
        num_negatives: of each query, at most; the hardest that are left.
        num_candidates: of each query that are judged.
        judge: as in :func:`find_false_negatives`; None keeps all.
        model: as in :func:`find_false_negatives`.
        seed, workdir, settings: as in :func:`find_noise`.

    Returns:
        A row for each negative: ``query``, ``positive``, ``negative``, and its ``rank`` among the candidates, from 1.
        Trainers of triplets, :func:`train` among them, take it as it is.
    """
    name = {"bm25": BM25, "model": UNTRAINED}[miner]
    sections = _mining(name, num_candidates, model, settings)
    config = call_config(pairs, model=model, seed=seed, workdir=workdir, settings=settings, sections=sections)
    with open_session(config) as session:
        split, recipe = config.data.train_split, session.recipe
        mined = recipe.candidates(split, name)
        if judge is not None:
            judged = recipe.judged([config.judge.judge(judge)], split, name).negatives
            mined = judged if judged is not None else mined
        made, dataset, corpus = session.make(mined, recipe.dataset(), recipe.corpus(), moving=True)
        return mined_triplets(made, Dataset(dataset), Corpus(corpus), split, num_negatives)


def _mining(
    miner: str, num_candidates: int, model: str | Path | None, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Sections for judges of candidates: who proposes them, and whom judges ask: one model, whether as guide or not."""
    guide = dict((settings or {}).get("model", {})) | ({} if model is None else {"checkpoint": str(model)})
    return {"negatives": {"miner": miner, "depth": num_candidates}, "judge": {"model": UNTRAINED, "guide": guide}}


def _with_candidates(pairs: Pairs, candidates: PairTable) -> list[dict[str, Any]]:
    """The pairs with candidates as their negatives.

    Raises:
        DataError: the pairs are none of one split, or a candidate is of a query that they have not.
    """
    if isinstance(pairs, str | Path | Mapping):
        raise DataError("candidates of your own go with pairs of one split in memory: a list, a DataFrame, a Dataset")
    table, candidate_table = pair_table(pairs, "pairs"), pair_table(candidates, "candidates")
    query, positive = _named(table, "pairs")
    candidate_query, candidate = _named(candidate_table, "candidates")
    by_query: dict[str, list[str]] = {}
    texts = candidate_table[candidate_query].to_pylist()
    for text, passage in zip(texts, candidate_table[candidate].to_pylist(), strict=True):
        by_query.setdefault(text, []).append(passage)
    known = table[query].to_pylist()
    if strangers := by_query.keys() - set(known):
        at = next(at for at, text in enumerate(texts) if text in strangers)
        raise DataError(f"candidates, row {at}: its query is none of the pairs: {texts[at]!r:.80}")
    rows = zip(known, table[positive].to_pylist(), strict=True)
    return [{"query": text, "positive": passage, "negative": by_query.get(text, [])} for text, passage in rows]


def _named(table: pa.Table, where: str) -> tuple[str, str]:
    """The columns of queries and passages."""
    columns = pair_shape(table.to_pylist(), where).settings.get("columns", {})
    if not columns:
        raise DataError(f"{where} are records of tevatron or DPR; expected columns of queries and passages")
    return columns["query"], columns["positive"]
