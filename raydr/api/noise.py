"""Noise detection in Python: mismatched pairs, false negatives, clean hard negatives."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from raydr.api.calls import NUM_CANDIDATES, call_config, call_session, checkpoint_of, settings_of_call
from raydr.artefacts.negatives import SOURCE
from raydr.artefacts.places import BM25, UNTRAINED
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.pair_shape import LOOKED_AT, pair_shape
from raydr.data.pairs import PairColumns, pair_relevance
from raydr.data.pairs_in_memory import Pairs, PairTable, pair_table
from raydr.data.rows import RowError
from raydr.errors import ConfigError, DataError
from raydr.noise.judges.base import Judge, judge_class
from raydr.noise.margins import NUM_EPOCHS
from raydr.pipeline.findings import FalseNegatives, Noise, find_false_candidates, find_mismatched, mined_triplets
from raydr.pipeline.judging import active_judges

if TYPE_CHECKING:
    import pandas as pd


def find_noise(
    pairs: Pairs,
    *,
    model: str | PathLike[str] | None = None,
    cross_fit: bool | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> Noise:
    """Detect the pairs whose passage does not belong to the query.

    A model that has not seen the pair measures it: the checkpoint, or, if it is no retriever yet, a short training on
    other folds of the pairs. The detector ``local_fdr`` compares the measures with those of random pairs
    (docs/methods.md).

    Args:
        pairs: a list of (query, passage) tuples, a DataFrame, an Arrow table, a ``datasets.Dataset``, or the path of a
            file. Columns are recognised by their names.
        model: Hugging Face name or folder of an encoder, or a model of :func:`train`; None: a MiniLM from an installed
            package.
        cross_fit: whether to train on folds. False takes as long as encoding. None: only if the checkpoint is no
            retriever; a retriever detects about as much, or more, without training (docs/experiments/detectors.md).
        seed: seed of folds, batches and random passages.
        workdir: folder of the artefacts; None: a temporary folder of the process.
        settings: further settings of a YAML file, for example ``{"cross_fit": {"num_folds": 5}}``.
        verbose: print progress and tables; False: only warnings.

    Raises:
        DataError: a row or column is invalid; the message names it.
        ConfigError: a setting is invalid.
    """
    sections = {} if cross_fit is None else {"cross_fit": {"num_epochs": NUM_EPOCHS if cross_fit else 0}}
    config = call_config(pairs, model=model, seed=seed, workdir=workdir, settings=settings, sections=sections)
    with call_session(config, verbose, pairs) as session:
        return find_mismatched(session, config.data.train_split)


def find_false_negatives(
    pairs: Pairs,
    candidates: str | PairTable = BM25,
    *,
    judge: str = "near_duplicate",
    num_candidates: int = NUM_CANDIDATES,
    model: str | PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> FalseNegatives:
    """Detect candidate negatives that answer their query.

    Args:
        pairs: pairs as in :func:`find_noise`.
        candidates: ``bm25``: the best passages of BM25 for each query; ``source``: the negatives in the pairs; or your
            own rows (query, passage), whose queries are among the pairs. Of triplets, such as those of
            :func:`mine_hard_negatives`, the negatives are the candidates.
        judge: judge of negatives: ``near_duplicate``, ``margin``, ``guide``, ``sieve``, ... (docs/methods.md).
        num_candidates: candidates of each query, at most.
        model: model of the judge; None: a MiniLM from an installed package.
        seed, workdir, settings, verbose: arguments of :func:`find_noise`.

    Raises:
        DataError: a row or column is invalid, or a candidate's query is unknown.
        ConfigError: a setting is invalid, the judge is none of negatives, or the candidates are not allowed.
    """
    if not isinstance(candidates, str):
        pairs, candidates = _with_candidates(pairs, candidates), SOURCE
    elif candidates not in (BM25, SOURCE):
        raise ConfigError(f"candidates is {candidates!r}; allowed: {BM25}, {SOURCE}, or rows (query, passage)")
    _check_judge(judge)
    sections = _mining(candidates, num_candidates, model, settings)
    config = call_config(pairs, model=model, seed=seed, workdir=workdir, settings=settings, sections=sections)
    with call_session(config, verbose, pairs) as session:
        return find_false_candidates(session, config.data.train_split, judge, candidates)


def mine_hard_negatives(
    pairs: Pairs,
    *,
    miner: Literal["bm25", "model"] = "bm25",
    num_negatives: int = 5,
    num_candidates: int = NUM_CANDIDATES,
    judge: str | None = "near_duplicate",
    model: str | PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    verbose: bool = False,
) -> pd.DataFrame:
    """Mine hard negatives, without candidates that a judge takes for positives.

    Args:
        pairs: pairs as in :func:`find_noise`. Their positives are the corpus.
        miner: ``bm25``, or the untrained ``model``.
        num_negatives: negatives of each query, at most; the hardest that the judge keeps.
        num_candidates: judged candidates of each query.
        judge: judge as in :func:`find_false_negatives`; None: keep all.
        model: model as in :func:`find_false_negatives`.
        seed, workdir, settings, verbose: arguments of :func:`find_noise`.

    Returns:
        A row for each negative: ``query``, ``positive``, ``negative``, and its ``rank`` among the candidates, from 1.
        Trainers of triplets, such as :func:`train`, accept it unchanged.

    Raises:
        DataError: a row or column is invalid.
        ConfigError: an argument or a setting is invalid.
    """
    miners = {"bm25": BM25, "model": UNTRAINED}
    if not isinstance(miner, str) or miner not in miners:
        raise ConfigError(f"miner is {miner!r}; allowed: {', '.join(miners)}")
    if type(num_negatives) is bool or not issubclass(type(num_negatives), Integral) or num_negatives < 1:
        raise ConfigError(f"num_negatives is {num_negatives!r}; expected a whole number from 1")
    if issubclass(type(num_candidates), Integral) and num_candidates < num_negatives:
        raise ConfigError(
            f"num_negatives is {num_negatives}, and num_candidates only {num_candidates}: raise the latter"
        )
    if judge is not None:
        _check_judge(judge)
    name = miners[miner]
    sections = _mining(name, num_candidates, model, settings)
    config = call_config(pairs, model=model, seed=seed, workdir=workdir, settings=settings, sections=sections)
    with call_session(config, verbose, pairs) as session:
        split, recipe = config.data.train_split, session.recipe
        mined = recipe.candidates(split, name)
        if judge is not None:
            judges = active_judges(config.judge, [config.judge.judge(judge)], on_negatives=True)
            judged = recipe.judged(judges, split, name).negatives
            mined = judged if judged is not None else mined
        made, dataset, corpus = session.make(mined, recipe.dataset(), recipe.corpus(), moving=True)
        return mined_triplets(made, Dataset(dataset), Corpus(corpus), split, num_negatives)


def _check_judge(judge: str) -> None:
    """Check that a judge exists and judges negatives.

    Raises:
        ConfigError: the judge is not allowed; the message has the allowed names.
    """
    of_negatives = [name for name in Judge.choices() if judge_class({"name": name}).subject == "negatives"]
    if not isinstance(judge, str) or judge not in of_negatives:
        raise ConfigError(f"judge is {judge!r}; judges of negatives are {', '.join(of_negatives)}")


def _mining(
    miner: str, num_candidates: int, model: str | PathLike[str] | None, settings: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return the sections for judges of candidates: their miner, and their model in every role."""
    of_call = settings_of_call(settings).get("model", {})
    guide = {**(of_call if isinstance(of_call, Mapping) else {}), **checkpoint_of(model)}
    return {"negatives": {"miner": miner, "depth": num_candidates}, "judge": {"model": UNTRAINED, "guide": guide}}


def _with_candidates(pairs: Pairs, candidates: PairTable) -> list[dict[str, Any]]:
    """Return the pairs with candidates as their negatives.

    Raises:
        DataError: the pairs have several splits, or a label is no number, or a candidate's query has no positive.
    """
    if isinstance(pairs, str | Path | Mapping):
        raise DataError("own candidates need pairs of a single split in memory: a list, a DataFrame, or a Dataset")
    table, candidate_table = pair_table(pairs, "pairs"), pair_table(candidates, "candidates")
    columns, own = _columns_of(table, "pairs"), _columns_of(candidate_table, "candidates")
    by_query: dict[str, list[str]] = {}
    texts = candidate_table[own.query].to_pylist()
    for name in own.negatives or [own.positive]:
        for text, passage in zip(texts, candidate_table[name].to_pylist(), strict=True):
            listed = passage if isinstance(passage, list) else [passage]
            by_query.setdefault(text, []).extend(entry for entry in listed if entry is not None)
    records = _positives(table, columns)
    if strangers := by_query.keys() - {record["query"] for record in records}:
        at = next(at for at, text in enumerate(texts) if text in strangers)
        raise DataError(f"candidates, row {at}: the query is not among the pairs: {texts[at]!r:.80}")
    return [record | {"negative": by_query.get(record["query"], [])} for record in records]


def _positives(table: pa.Table, columns: PairColumns) -> list[dict[str, Any]]:
    """Return query, positive and title of the relevant pairs: beside negatives no label is read."""
    names = {"query": columns.query, "positive": columns.positive, "title": columns.title}
    relevant = []
    for row, record in enumerate(table.to_pylist()):
        try:
            if pair_relevance(record, columns, graded=False):
                relevant.append({name: record[column] for name, column in names.items() if column})
        except RowError as error:
            raise DataError(f"pairs, row {row}: {error}") from None
    return relevant


def _columns_of(table: pa.Table, where: str) -> PairColumns:
    """Return the columns of the pairs by their roles."""
    columns = pair_shape(table.slice(0, LOOKED_AT).to_pylist(), where).settings.get("columns")
    if not columns:
        raise DataError(f"{where} are records of tevatron or DPR; expected columns of queries and passages")
    return PairColumns.model_validate(columns)
