"""Tables of flagged pairs and candidates, for people and programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa

from raydr.artefacts.declaration import Node
from raydr.artefacts.judged import read_verdicts
from raydr.artefacts.places import UNTRAINED
from raydr.config.run import RunConfig
from raydr.console import counted
from raydr.data import Corpus, Dataset
from raydr.data.dataset import positives_of, query_texts, read_split
from raydr.data.pair_shape import pair_shape
from raydr.data.pairs import Layout, PairColumns, PairIds, pair_ids, without_flagged
from raydr.data.pairs_in_memory import ArrowFormat, ArrowStream, PairTable, pair_table
from raydr.data.rows import join_passage
from raydr.errors import ConfigError, DataError
from raydr.noise.audit_result import NEAR_MISSES
from raydr.noise.judges.base import judge_class
from raydr.noise.margins import compared_with_random
from raydr.noise.verdict_report import reason_for_doubt
from raydr.pipeline.session import Session
from raydr.store import Artifact

if TYPE_CHECKING:
    import pandas as pd

_IDS = ["query_id", "passage_id"]
#: Columns of the tables of findings.
PAIR_COLUMNS = ["query", "passage", "p_wrong", "flagged", "why"]
CANDIDATE_COLUMNS = ["query", "passage", "positive", "score", "flagged", "why"]


@dataclass(frozen=True)
class Noise:
    """Mismatched pairs, as returned by :func:`raydr.find_noise`.

    Args:
        table: a row for each judged pair, the likeliest mismatch first: ``query``, ``passage``, ``p_wrong``
            (P(mismatched)), ``flagged``, and ``why``.
        reason: why the judge is inconclusive; empty if it is conclusive.
        pair_ids: query and passage id of each judged pair, by the index of the table, which callers may sort.
        config: config of the run; ``config.to_yaml()`` repeats it on the command line.
        verdicts: artefact behind the table.
    """

    table: pd.DataFrame
    reason: str
    pair_ids: Sequence[PairIds] = field(repr=False)
    config: RunConfig = field(repr=False)
    verdicts: Artifact = field(repr=False)

    @property
    def flagged(self) -> pd.DataFrame:
        """Flagged rows of the table."""
        return self.table[self.table["flagged"]]

    @property
    def share(self) -> float | None:
        """Estimated share of clearly mismatched pairs, the mean of ``p_wrong``; None if the judge is inconclusive.

        Wrong passages that resemble their query do not count.
        """
        return None if self.reason else float(self.table["p_wrong"].mean())

    @property
    def precision(self) -> float | None:
        """Expected share of right flags, the mean of ``p_wrong`` over them; None without flags."""
        return float(self.flagged["p_wrong"].mean()) if len(self.flagged) and not self.reason else None

    @property
    def recall(self) -> float | None:
        """Expected share of clearly mismatched pairs that is flagged; None if no mismatch is expected."""
        total = float(self.table["p_wrong"].sum())
        return float(self.flagged["p_wrong"].sum()) / total if total > 0 else None

    def summary(self) -> str:
        """Return the share of mismatched pairs, its uncertainty, and the next step."""
        pairs = counted(len(self.table), "pair")
        if self.share is None:
            return (
                f"The judge cannot tell which of {pairs} are mismatched: {self.reason}.\n"
                "Next: pass more pairs, or a stronger model: raydr.find_noise(pairs, model=...)."
            )
        if not len(self.flagged):
            return (
                f"About {self.share:.0%} of {pairs} are clearly mismatched, but none is sure enough to be flagged.\n"
                f"{NEAR_MISSES}\n"
                'Next: raydr.train(pairs, loss="nce"), since there are no flagged pairs to train through.'
            )
        doubt = self.config.cross_fit.resolved(self.config.model).doubt(
            self.verdicts.info["detector"]["share_mismatched"]
        )
        return (
            f"About {self.share:.0%} of {pairs} are clearly mismatched; {len(self.flagged):,} are flagged."
            f"{' ' * bool(doubt)}{doubt}\n"
            f"Expected: {self.precision or 0:.0%} of the flags are right, and {self.recall or 0:.0%} of the clearly "
            "mismatched pairs are flagged.\n"
            'Next: raydr.train(pairs, loss="npc") trains through them; noise.drop_from(pairs) removes them.'
        )

    def drop_from(self, pairs: PairTable) -> Any:
        """Return the pairs that are not flagged, in the type of the input: DataFrame, list, ``datasets.Dataset``, ...

        From a row with several positives, only the flagged positives are removed.

        Args:
            pairs: rows with texts as passed to :func:`raydr.find_noise`; for a file, the rows that it holds.

        Raises:
            DataError: a row or column is invalid, or no row has a judged pair.
        """
        records, layout, columns = self._read_judged(pairs)
        flagged = {self.pair_ids[at] for at in self.flagged.index.tolist()}
        kept: list[tuple[int, dict[str, Any]]] = []
        for at, record in enumerate(records):
            left = without_flagged(record, flagged, layout, columns)
            if left is not None:
                kept.append((at, left))
        places = [at for at, _ in kept]
        changed = {
            name: [left[name] for _, left in kept]
            for name in records[0]
            if any(left[name] != records[at][name] for at, left in kept)
        }
        if isinstance(pairs, ArrowFormat):
            rows = pairs.select(places)
            return type(pairs).from_list([left for _, left in kept], features=rows.features) if changed else rows
        if hasattr(pairs, "iloc"):
            return pairs.iloc[places].assign(**changed)
        if isinstance(pairs, pa.Table | pa.RecordBatch):
            rows = pairs.take(pa.array(places, pa.int64()))
            for name, values in changed.items():
                at = rows.schema.names.index(name)
                rows = rows.set_column(at, name, pa.array(values, rows.schema.types[at]))
            return rows
        if isinstance(pairs, ArrowStream):
            # The interface of Polars: Arrow cannot take rows of its texts.
            frame = cast(Any, pairs)
            return type(frame)({**frame[places].to_dict(), **changed})
        return [pairs[at] if left == records[at] else left for at, left in kept]

    def _read_judged(self, pairs: PairTable) -> tuple[list[dict[str, Any]], Layout, PairColumns]:
        """Return records, layout and columns; refuse rows without a judged pair, for example with other id columns."""
        records, layout, columns = _read(pairs)
        judged = set(self.pair_ids)
        if judged and not any(ids in judged for record in records for ids in pair_ids(record, layout, columns)):
            raise DataError(
                "none of these pairs was judged: pass the rows with which find_noise was called, with the same columns"
            )
        return records, layout, columns

    def trust_of(self, pairs: PairTable, weights: Literal["flags", "posterior"] = "flags") -> list[float]:
        """Return the trust ŷ of each row for the loss ``npc``; 1 for a row that was not judged.

        Args:
            pairs: as in :meth:`drop_from`, with a single positive in each row.
            weights: ``flags``: 0 for flagged pairs and 1 for others; ``posterior``: P(right).

        Raises:
            DataError: a row or column is invalid, a row has several positives, or no row has a judged pair.
            ConfigError: ``weights`` is neither.
        """
        if weights not in ("flags", "posterior"):
            raise ConfigError(f"weights is {weights!r}; allowed: flags, posterior")
        wrong = self.table["flagged"] if weights == "flags" or self.reason else self.table["p_wrong"]
        trust = {self.pair_ids[at]: 1.0 - float(p) for at, p in zip(wrong.index.tolist(), wrong, strict=True)}
        records, layout, columns = self._read_judged(pairs)
        values = []
        for at, record in enumerate(records):
            ids = pair_ids(record, layout, columns)
            if len(ids) > 1:
                raise DataError(f"pairs, row {at} has {len(ids)} positives; expected one in each row")
            values.append(trust.get(ids[0], 1.0) if ids else 1.0)
        return values


@dataclass(frozen=True)
class FalseNegatives:
    """Candidate negatives that answer their query, as returned by :func:`raydr.find_false_negatives`.

    Args:
        table: a row for each judged candidate, the most suspicious first: ``query``, ``passage`` (the candidate),
            ``positive``, ``score`` (the judge's), ``flagged``, and ``why``.
        judge: name of the judge.
        reason: why the flags are likely to be false; empty if there is no such reason.
        config: config of the run.
        verdicts: artefact behind the table.
    """

    table: pd.DataFrame
    judge: str
    reason: str
    config: RunConfig = field(repr=False)
    verdicts: Artifact = field(repr=False)

    @property
    def flagged(self) -> pd.DataFrame:
        """Flagged rows of the table."""
        return self.table[self.table["flagged"]]

    @property
    def share(self) -> float:
        """Flagged share of the candidates."""
        return float(self.table["flagged"].mean()) if len(self.table) else 0.0

    def summary(self) -> str:
        """Return the flagged share, the meaning of a flag, and the next step."""
        queries, flags = self.flagged["query"].nunique(), judge_class({"name": self.judge}).flags
        if self.reason:
            return (
                f"The judge {self.judge} cannot tell which of {counted(len(self.table), 'candidate')} answer their "
                f"query: {self.reason}.\n"
                "Next: pass a stronger model: raydr.find_false_negatives(pairs, model=...); or look for mismatched "
                "pairs: raydr.find_noise(pairs)."
            )
        return (
            f"The judge {self.judge} flags {len(self.flagged):,} of {counted(len(self.table), 'candidate')} "
            f"({self.share:.1%}), of {counted(queries, 'query', 'queries')}.\n"
            f"A flag marks {flags}.\n"
            f"Next: raydr.mine_hard_negatives(pairs, judge={self.judge!r}) mines negatives without such candidates."
        )


def _read(pairs: PairTable) -> tuple[list[dict[str, Any]], Layout, PairColumns]:
    """Return pairs as records, with their layout and columns.

    Raises:
        DataError: the pairs are a path or several splits, or a row or column is invalid.
    """
    if isinstance(pairs, str | Path | Mapping):
        kind = "several splits" if isinstance(pairs, Mapping) else "a path"
        raise DataError(
            f"pairs is {kind}, and rows in memory are expected: pass the rows of a split or file, such as "
            "pandas.read_csv(FILE). raydr clean FILE writes the kept rows of a file"
        )
    records = pair_table(pairs, "pairs").to_pylist()
    settings = pair_shape(records, "pairs").settings
    return records, settings.get("layout", "columns"), PairColumns.model_validate(settings.get("columns", {}))


def find_mismatched(session: Session, split: str) -> Noise:
    """Judge all pairs of a split with the config's judge ``npc``.

    Args:
        session: session of the run.
        split: split of the data set.
    """
    verdicts = session.recipe.verdicts(session.config.judge.judge("npc"), split, model=UNTRAINED)
    made, dataset, corpus = _make(session, verdicts)
    frame = _verdict_frame(made, split).sort_values(["p", "score", *_IDS], ascending=[False, False, True, True])
    reason = str(made.info.get("detector", {}).get("reason", ""))
    table = frame.assign(
        query=query_texts(dataset, split, frame["query_id"].tolist()),
        passage=_passages(corpus, frame["passage_id"].tolist()),
        p_wrong=frame["p"],
        why=[compared_with_random(score) for score in frame["score"]],
    )
    ids = list(zip(frame["query_id"], frame["passage_id"], strict=True))
    table = table[PAIR_COLUMNS].reset_index(drop=True)
    return Noise(table, reason, ids, session.config, made)


def find_false_candidates(session: Session, split: str, judge: str, miner: str) -> FalseNegatives:
    """Judge the candidate negatives of a split.

    Args:
        session: session of the run.
        split: split of the data set.
        judge: judge of negatives.
        miner: miner of the candidates.
    """
    verdicts = session.recipe.verdicts(session.config.judge.judge(judge), split, miner)
    made, dataset, corpus = _make(session, verdicts)
    frame = _verdict_frame(made, split).sort_values(["score", *_IDS], ascending=[False, True, True])
    query_ids = frame["query_id"].tolist()
    first = {query_id: passages[0] for query_id, passages in positives_of(dataset, split, query_ids).items()}
    rule = judge_class({"name": judge})
    table = frame.assign(
        query=query_texts(dataset, split, query_ids),
        passage=_passages(corpus, frame["passage_id"].tolist()),
        positive=_passages(corpus, [first[query_id] for query_id in query_ids]),
        why=[f"{rule.score_name} {score:.3g}" for score in frame["score"]],
    )
    table, reason = table[CANDIDATE_COLUMNS].reset_index(drop=True), reason_for_doubt(rule, made.info)
    return FalseNegatives(table, judge, reason, session.config, made)


def mined_triplets(mined: Artifact, dataset: Dataset, corpus: Corpus, split: str, num_negatives: int) -> pd.DataFrame:
    """Return each query's hardest candidates that judges keep, with its first positive; queries need a positive.

    Args:
        mined: candidates, judged or not.
        dataset, corpus: data set and corpus of the candidates.
        split: split of the queries.
        num_negatives: maximal number of candidates of each query.

    Returns:
        ``query``, ``positive``, ``negative``, ``rank``.
    """
    candidates = read_split(mined, "negatives", split).select([*_IDS, "rank", "action"]).to_pandas()
    mined_for = candidates["query_id"].unique().tolist()
    first = {query_id: passages[0] for query_id, passages in positives_of(dataset, split, mined_for).items()}
    usable = (candidates["action"] == "keep") & candidates["query_id"].isin(list(first))
    kept = candidates[usable].sort_values(["query_id", "rank"]).groupby("query_id", sort=False).head(num_negatives)
    query_ids = kept["query_id"].tolist()
    table = kept.assign(
        query=query_texts(dataset, split, query_ids),
        positive=_passages(corpus, [first[query_id] for query_id in query_ids]),
        negative=_passages(corpus, kept["passage_id"].tolist()),
    )
    triplets: pd.DataFrame = table[["query", "positive", "negative", "rank"]].reset_index(drop=True)
    return triplets


def _make(session: Session, verdicts: Node) -> tuple[Artifact, Dataset, Corpus]:
    recipe = session.recipe
    made, dataset, corpus = session.make(verdicts, recipe.dataset(), recipe.corpus(), moving=True)
    return made, Dataset(dataset), Corpus(corpus)


def _verdict_frame(verdicts: Artifact, split: str) -> pd.DataFrame:
    """Return query_id, passage_id, score, flagged and p, the probability of a wrong label (NaN if unknown)."""
    tables, probability_N = read_verdicts(verdicts, split)
    if not tables:
        raise DataError(f"the split {split} has nothing to judge: its queries have no candidates")
    frame: pd.DataFrame = pa.concat_tables(tables.values()).select([*_IDS, "score", "action"]).to_pandas()
    p = math.nan if probability_N is None else probability_N
    return frame.assign(flagged=frame["action"] != "keep", p=p)


def _passages(corpus: Corpus, passage_ids: list[str]) -> list[str]:
    texts = corpus.texts(corpus.rows_of(passage_ids))
    return [join_passage(title, text, "\n") for title, text in zip(texts.titles, texts.texts, strict=True)]
