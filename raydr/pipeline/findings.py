"""What judges have found in pairs and in candidates, as tables for people and for other programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from raydr.artefacts.declaration import Node
from raydr.artefacts.places import UNTRAINED
from raydr.artefacts.verdict_tables import read_verdicts
from raydr.config.run import RunConfig
from raydr.console import counted
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, positives_of, query_texts, read_split
from raydr.data.pair_shape import pair_shape
from raydr.data.pairs import Layout, PairColumns, PairIds, pair_ids, without_flagged
from raydr.data.pairs_in_memory import ArrowFormat, PairTable, pair_table
from raydr.errors import DataError
from raydr.noise.judges.base import judge_class
from raydr.pipeline.session import Session
from raydr.store.artifact import Artifact

if TYPE_CHECKING:
    import pandas as pd

_IDS = ["query_id", "passage_id"]
#: Columns of the tables of findings.
PAIR_COLUMNS = ["query", "passage", "p_wrong", "flagged", "why"]
CANDIDATE_COLUMNS = ["query", "passage", "positive", "score", "flagged", "why"]


@dataclass(frozen=True)
class Noise:
    """Mismatched pairs, as :func:`raydr.find_noise` has found them.

    Args:
        table: a row for each judged pair, the likeliest mismatch first: ``query``, ``passage``, ``p_wrong`` (the
            probability that the passage does not belong to the query), ``flagged``, and ``why``.
        at_most: an upper bound of the share of mismatched pairs; None if the judge could not tell. Right pairs that are
            hard count too.
        reason: why it could not; empty if it could.
        pair_ids: query and passage id of each row of the table.
        config: of the run that found them; ``config.to_yaml()`` is the same run for the command line.
        verdicts: the artefact behind the table.
    """

    table: pd.DataFrame
    at_most: float | None
    reason: str
    pair_ids: Sequence[PairIds] = field(repr=False)
    config: RunConfig = field(repr=False)
    verdicts: Artifact = field(repr=False)

    @property
    def flagged(self) -> pd.DataFrame:
        """The flagged rows of the table."""
        return self.table[self.table["flagged"]]

    @property
    def share(self) -> float | None:
        """The estimated share of mismatched pairs, the mean of ``p_wrong``; None if the judge could not tell."""
        return float(self.table["p_wrong"].mean()) if self.at_most is not None else None

    @property
    def precision(self) -> float | None:
        """The expected share of right flags, the mean of ``p_wrong`` over them; None without flags."""
        return float(self.flagged["p_wrong"].mean()) if len(self.flagged) and not self.reason else None

    @property
    def recall(self) -> float | None:
        """The expected share of the mismatched pairs that is flagged; None if none is expected."""
        total = float(self.table["p_wrong"].sum())
        return float(self.flagged["p_wrong"].sum()) / total if total > 0 else None

    def summary(self) -> str:
        """The share of mismatched pairs, how sure that is, and what to do next."""
        pairs = counted(len(self.table), "pair")
        if self.share is None or self.at_most is None:
            return (
                f"Whether any of {pairs} are mismatched cannot be told: {self.reason}.\n"
                "Next: give more pairs, or a stronger model: raydr.find_noise(pairs, model=...)."
            )
        if not len(self.flagged):
            return (
                f"About {self.share:.0%} of {pairs} may be mismatched, and none of them surely enough to be flagged.\n"
                'Next: raydr.train(pairs, loss="nce"); there is no noise to train through.'
            )
        return (
            f"About {self.share:.0%} of {pairs} are mismatched, at most {self.at_most:.0%}; {len(self.flagged):,} are "
            "flagged.\n"
            f"Expected: {self.precision or 0:.0%} of the flags are right, and {self.recall or 0:.0%} of the mismatched "
            "pairs are flagged.\n"
            'Next: raydr.train(pairs, loss="npc") trains through them; noise.drop_from(pairs) leaves them out.'
        )

    def drop_from(self, pairs: PairTable) -> Any:
        """Pairs without the flagged ones: a DataFrame, a ``datasets.Dataset``, or a list, whichever was given.

        Where a row lists several positives, only the flagged ones leave it.

        Args:
            pairs: rows with texts as they were given to :func:`raydr.find_noise`.

        Raises:
            DataError: a row or a column cannot be used.
        """
        records, layout, columns = _read(pairs)
        flagged = {ids for ids, is_flagged in zip(self.pair_ids, self.table["flagged"], strict=True) if is_flagged}
        kept: list[tuple[int, dict[str, Any]]] = []
        for at, record in enumerate(records):
            left = without_flagged(record, flagged, layout, columns)
            if left is not None:
                kept.append((at, left))
        cut = any(left != records[at] for at, left in kept)
        if isinstance(pairs, ArrowFormat):
            return type(pairs).from_list([left for _, left in kept]) if cut else pairs.select([at for at, _ in kept])
        if hasattr(pairs, "iloc"):
            import pandas as pd

            rows = pairs.iloc[[at for at, _ in kept]]
            return pd.DataFrame([left for _, left in kept], index=rows.index) if cut else rows
        return [pairs[at] if left == records[at] else left for at, left in kept]

    def trust_of(self, pairs: PairTable, weights: Literal["flags", "posterior"] = "flags") -> list[float]:
        """ŷ of each row, as the loss ``npc`` reads it; 1 for a row that was not judged.

        Args:
            pairs: as in :meth:`drop_from`, a positive a row.
            weights: ``flags``: 0 for flagged pairs and 1 for others; ``posterior``: the probability of being right.

        Raises:
            DataError: a row or a column cannot be used, or a row has several positives.
        """
        wrong = self.table["flagged"] if weights == "flags" or self.reason else self.table["p_wrong"]
        trust = {ids: 1.0 - float(value) for ids, value in zip(self.pair_ids, wrong, strict=True)}
        records, layout, columns = _read(pairs)
        values = []
        for at, record in enumerate(records):
            ids = pair_ids(record, layout, columns)
            if len(ids) > 1:
                raise DataError(f"pairs, row {at} has {len(ids)} positives; expected one in each row")
            values.append(trust.get(ids[0], 1.0) if ids else 1.0)
        return values


@dataclass(frozen=True)
class FalseNegatives:
    """Candidate negatives that answer their query, as :func:`raydr.find_false_negatives` has found them.

    Args:
        table: a row for each judged candidate, the most suspicious first: ``query``, ``passage`` (the candidate),
            ``positive``, ``score`` (the judge's), ``flagged``, and ``why``.
        judge: that was asked.
        config: of the run that found them.
        verdicts: the artefact behind the table.
    """

    table: pd.DataFrame
    judge: str
    config: RunConfig = field(repr=False)
    verdicts: Artifact = field(repr=False)

    @property
    def flagged(self) -> pd.DataFrame:
        """The flagged rows of the table."""
        return self.table[self.table["flagged"]]

    @property
    def share(self) -> float:
        """The flagged share of the candidates."""
        return float(self.table["flagged"].mean()) if len(self.table) else 0.0

    def summary(self) -> str:
        """The flagged share, what a flag means, and what to do next."""
        queries, flags = self.flagged["query"].nunique(), judge_class({"name": self.judge}).flags
        return (
            f"The judge {self.judge} flags {len(self.flagged):,} of {counted(len(self.table), 'candidate')} "
            f"({self.share:.1%}), of {counted(queries, 'query', 'queries')}.\n"
            f"A flag marks {flags}.\n"
            "Next: raydr.mine_hard_negatives(pairs) mines negatives without them."
        )


def _read(pairs: PairTable) -> tuple[list[dict[str, Any]], Layout, PairColumns]:
    """Pairs as records, and how they are read."""
    records = pair_table(pairs, "pairs").to_pylist()
    settings = pair_shape(records, "pairs").settings
    return records, settings.get("layout", "columns"), PairColumns.model_validate(settings.get("columns", {}))


def find_mismatched(session: Session, split: str) -> Noise:
    """Judge all pairs of a split by the judge ``npc`` of the config.

    Args:
        session: of a run.
        split: of its data set.
    """
    verdicts = session.recipe.verdicts(session.config.judge.judge("npc"), split, model=UNTRAINED)
    made, dataset, corpus = _make(session, verdicts)
    frame = _verdict_frame(made, split).sort_values(["p", "score", *_IDS], ascending=[False, False, True, True])
    reason = str(made.info.get("detector", {}).get("reason", ""))
    share = made.info.get("detector", {}).get("share_mismatched")
    table = frame.assign(
        query=query_texts(dataset, split, frame["query_id"].tolist()),
        passage=_passages(corpus, frame["passage_id"].tolist()),
        p_wrong=frame["p"],
        why=[f"among random passages it is the query's with probability {_chance(score)}" for score in frame["score"]],
    )
    ids = list(zip(frame["query_id"], frame["passage_id"], strict=True))
    table = table[PAIR_COLUMNS].reset_index(drop=True)
    return Noise(table, None if reason else share, reason, ids, session.config, made)


def find_false_candidates(session: Session, split: str, judge: str, miner: str) -> FalseNegatives:
    """Judge the candidate negatives of a split.

    Args:
        session: of a run.
        split: of its data set.
        judge: of negatives.
        miner: of the candidates.
    """
    verdicts = session.recipe.verdicts(session.config.judge.judge(judge), split, miner)
    made, dataset, corpus = _make(session, verdicts)
    frame = _verdict_frame(made, split).sort_values(["score", *_IDS], ascending=[False, True, True])
    query_ids = frame["query_id"].tolist()
    first = {query_id: passages[0] for query_id, passages in positives_of(dataset, split, query_ids).items()}
    name = judge_class({"name": judge}).score_name
    table = frame.assign(
        query=query_texts(dataset, split, query_ids),
        passage=_passages(corpus, frame["passage_id"].tolist()),
        positive=_passages(corpus, [first[query_id] for query_id in query_ids]),
        why=[f"{name} {score:.3g}" for score in frame["score"]],
    )
    return FalseNegatives(table[CANDIDATE_COLUMNS].reset_index(drop=True), judge, session.config, made)


def mined_triplets(mined: Artifact, dataset: Dataset, corpus: Corpus, split: str, num_negatives: int) -> pd.DataFrame:
    """The hardest candidates of each query that judges have left, beside its first positive.

    Args:
        mined: candidates, judged or as they were mined.
        dataset, corpus: that they belong to.
        split: of the queries.
        num_negatives: of each query, at most.

    Returns:
        ``query``, ``positive``, ``negative``, ``rank``.
    """
    candidates = read_split(mined, "negatives", split).select([*_IDS, "rank", "action"]).to_pandas()
    kept = candidates[candidates["action"] == "keep"].sort_values(["query_id", "rank"])
    kept = kept.groupby("query_id", sort=False).head(num_negatives)
    query_ids = kept["query_id"].tolist()
    first = {query_id: passages[0] for query_id, passages in positives_of(dataset, split, query_ids).items()}
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
    """query_id, passage_id, score, flagged, and p: the probability of a wrong label, NaN where there is none."""
    import pyarrow as pa

    tables, probability_N = read_verdicts(verdicts, split)
    frame: pd.DataFrame = pa.concat_tables(tables.values()).select([*_IDS, "score", "action"]).to_pandas()
    p = math.nan if probability_N is None else probability_N
    return frame.assign(flagged=frame["action"] != "keep", p=p)


def _passages(corpus: Corpus, passage_ids: list[str]) -> list[str]:
    texts = corpus.texts(corpus.rows_of(passage_ids))
    return [f"{title}\n{text}" if title else text for title, text in zip(texts.titles, texts.texts, strict=True)]


def _chance(perplexity: float) -> str:
    """What a perplexity says: the probability that the softmax over positive and random passages gives the positive."""
    return f"{math.exp(-perplexity):.1%}"
