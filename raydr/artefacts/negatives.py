"""Hard negatives with their provenance, from a run or from the data set.

Artefact ``negatives``::

    negatives/SPLIT/part-*.arrow    negatives(query_id, passage_id, miner, round, rank, score, ...)

There is a part for each part of the run. ``rank`` and ``score`` are those of the run; ``positive_score`` is that of the
query's best ranked positive, null if the run has no positive.

Artefact ``negatives_statistics`` has no parts. Its manifest counts candidates before and after judging, likely false
negatives, which hold an answer of their query, and planted false negatives. No judge affects the count by answers, so
that rounds with and without judges can be compared.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.dataset import declare_data
from raydr.artefacts.run import Run
from raydr.console import show_summary, warn
from raydr.data import Corpus, Dataset
from raydr.data.dataset import known_false_negatives, never_negatives_of, positives_of
from raydr.data.parts import Scope, within
from raydr.data.tables import RANDOM_MINER, of_queries, read_arrow, to_table
from raydr.distributed.parts import make_parts, total_counts, write_table
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError, DataError
from raydr.evaluation.answer_match import AnswerMatcher, counts_for_answers
from raydr.evaluation.config import EvaluateConfig
from raydr.negatives.config import NegativesConfig
from raydr.negatives.mining import MiningCounts, keep_negatives
from raydr.store import Artifact, Building, Folder, Part

#: Display names of the counts of :class:`MiningCounts`.
_WORDS = {
    "queries": "queries",
    "negatives": "negatives",
    "queries_without_negatives": "queries left without a negative",
    "queries_short": "queries with fewer than negatives.depth",
    "dropped_positive": "left out: known positives of the query",
    "dropped_identical": "left out: copies of known positives",
    "dropped_elsewhere": "left out: of another partition",
}
#: Miner of the negatives of the data set itself.
SOURCE = "source"


def mined(context: Context, miner: str, ranked: Node | None, split: str, number: int = 0) -> Node:
    """Return the node of candidate hard negatives.

    Args:
        context: config and facts.
        miner: ``source``, ``bm25``, or the name of a model or run.
        ranked: run of the miner on the split; None for the miner ``source``.
        split: split of the queries.
        number: number of the refresh round, from 1.
    """
    return mine.node(
        f"{context.place}mine-{miner}-{split}",
        **declare_data(context),
        run=ranked,
        settings=context.config.negatives or NegativesConfig(),
        scope=context.config.scope(split),
        split=split,
        miner=miner,
        round=number,
    )


@artefact("negatives", rows=lambda of: of.dataset.rows(f"queries/{of.split}"))
def mine(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    run: Artifact | None = None,
    *,
    settings: NegativesConfig,
    scope: Scope = "own",
    split: str,
    miner: str,
    round: int,
) -> dict[str, Any]:
    """Keep candidates within the scope that are neither known positives nor copies of them.

    Args:
        making: ``negatives`` artefact to make.
        pool: pool for the parts.
        dataset: judgments, and the candidates of the miner ``source``.
        corpus: corpus of the passages.
        run: ranked candidates; None for the miner ``source``.
        settings: window of ranks ``first_rank`` and ``depth``, counted after the exclusion of positives.
        scope: partitions of a query's negatives.
        split: split of the queries.
        miner: ``bm25``, the name of a model, or ``source``; stored in each row.
        round: refresh round; stored in each row.

    Raises:
        ConfigError: run and miner do not match.
        DataError: the run has queries outside the split, or passages outside the corpus.
    """
    if (run is None) != (miner == SOURCE):
        raise ConfigError(f"miner {miner!r} {'needs a run' if run is None else 'takes no run'}")
    ranked = Run(run) if run is not None else None
    sources = ranked.part_names if ranked is not None else dataset.parts(f"queries/{split}")
    proposed_by = {"miner": miner, "round": round}
    calls = {
        f"negatives/{split}/part-{at:05d}.arrow": (
            Dataset(dataset), Corpus(corpus), ranked, source, settings, scope, split, proposed_by
        )
        for at, source in enumerate(sources)
    }  # fmt: skip
    make_parts(making, pool, _mine_part, calls, f"mine: {miner}")
    totals = MiningCounts(**total_counts(making, calls))
    # Queries without a row in the run have no negatives.
    num_queries = dataset.rows(f"queries/{split}")
    totals.queries_without_negatives += num_queries - totals.queries
    totals.queries = num_queries
    _report(totals, settings, miner)
    return {"miner": miner, "round": round, "split": split, **asdict(totals)}


def _report(totals: MiningCounts, settings: NegativesConfig, miner: str) -> None:
    counts = asdict(totals)
    show_summary(
        f"negatives mined by {miner}",
        {words: f"{value:,}" for name, words in _WORDS.items() if (value := counts[name])},
    )
    if totals.queries_without_negatives:
        what, deeper = "mined negative", "search deeper (search.top_k), or "
        if miner == SOURCE:
            what, deeper = "negative that came with the data", ""
        lower = f"lower negatives.first_rank ({settings.first_rank}) or " if settings.first_rank > 1 else ""
        remedy = f"{lower}{deeper}mine others (negatives.miner)"
        warn(f"{totals.queries_without_negatives} of {totals.queries} queries have no {what}: {remedy}")


def _mine_part(
    output: Folder,
    name: str,
    data: Dataset,
    corpus: Corpus,
    run: Run | None,
    source: str,
    settings: NegativesConfig,
    scope: Scope,
    split: str,
    proposed_by: Mapping[str, Any],
) -> Mapping[str, Part]:
    rows_of: dict[str, list[int]] = defaultdict(list)
    if run is None:
        table = _source_candidates(data, split, source)
        rows_of.update({query_id: [] for query_id in _query_ids(data, source)})
    else:
        table = _run_candidates(run, source, data, split, proposed_by)
    for at, query_id in enumerate(table["query_id"].to_pylist()):
        rows_of[query_id].append(at)
    positives, never = (of(data, split, list(rows_of)) for of in (positives_of, never_negatives_of))
    passage_ids, scores = table["passage_id"].to_pylist(), table["score"].to_pylist()
    passage_rows = corpus.rows_of(passage_ids)
    hashes, partitions = corpus.content_hashes(passage_rows), corpus.partitions(passage_rows)
    own, of_split = data.query_partitions(split, rows_of), data.partitions(split)
    counts = MiningCounts()
    kept_rows: list[int] = []
    positive_scores: list[float | None] = []
    for query_id, rows in rows_of.items():
        known, barred = positives.get(query_id, []), never.get(query_id, [])
        wanted = within(scope, own.get(query_id, ""), of_split)
        elsewhere = np.zeros(len(rows), dtype=bool)
        if wanted is not None:
            elsewhere = ~np.isin(partitions[rows], list(wanted))
        kept = keep_negatives(
            [passage_ids[at] for at in rows], hashes[rows], set(barred), corpus.content_hashes(corpus.rows_of(barred)),
            elsewhere, settings.first_rank, settings.depth,
        )  # fmt: skip
        counts.count(kept, settings.depth)
        kept_rows.extend(rows[at] for at in kept.positions)
        known_scores = (scores[at] for at in rows if passage_ids[at] in known)
        positive_scores.extend([next(known_scores, None)] * len(kept.positions))
    mined = table.take(pa.array(kept_rows, type=pa.int64()))
    if run is not None:
        at = mined.schema.get_field_index("positive_score")
        mined = mined.set_column(at, mined.schema.field(at), pa.array(positive_scores, type=pa.float32()))
    return {name: write_table(output, name, mined, asdict(counts))}


def _run_candidates(run: Run, part: str, data: Dataset, split: str, proposed_by: Mapping[str, Any]) -> pa.Table:
    ranked = run.part(part)
    known = set(data.queries(split)["query_id"].to_pylist())
    unknown = [query_id for query_id in pc.unique(ranked["query_id"]).to_pylist() if query_id not in known]
    if unknown:
        raise DataError(
            f"the run at {run.artifact.folder} has {len(unknown)} queries in {part} that split {split!r} has not, the "
            f"first is {unknown[0]!r}: give the split that was searched"
        )
    return to_table("negatives", (row | proposed_by for row in ranked.to_pylist()))


def _query_ids(data: Dataset, part: str) -> list[str]:
    ids: list[str] = read_arrow(data.artifact.local(part))["query_id"].to_pylist()
    return ids


def _source_candidates(data: Dataset, split: str, part: str) -> pa.Table:
    """Return the data set's negatives of a part's queries, by query and rank; random negatives come last."""
    mine = of_queries(data.negatives(split), _query_ids(data, part))
    mine = mine.append_column("random", pc.equal(mine["miner"], RANDOM_MINER))
    order = [("query_id", "ascending"), ("random", "ascending"), ("rank", "ascending")]
    return mine.sort_by(order).drop_columns(["random"])


KIND = "negatives_statistics"
#: Actions that keep a candidate as a negative.
_USED = ("keep", "down_weight")


def statistics(context: Context, negatives: Node) -> Node:
    """Return the node of the counts of candidates that training draws from."""
    config = context.config
    return count_negatives.node(
        f"{context.place}statistics",
        **declare_data(context),
        negatives=negatives,
        split=config.data.train_split,
        settings=config.evaluate.of_answers(),
    )


@artefact(KIND, version=2, rows=lambda of: of.negatives.rows(f"negatives/{of.split}"))
def count_negatives(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    negatives: Artifact,
    *,
    split: str,
    settings: EvaluateConfig,
) -> dict[str, Any]:
    """Count the candidates of a split, those left after judging, and those that hold an answer.

    Args:
        making: artefact to make.
        pool: pool for the parts.
        dataset: queries with their answers.
        corpus: corpus of the passages.
        negatives: mined or judged ``negatives``.
        split: split of the queries.
        settings: settings of answer matching: ``answer_match``, ``answer_query_prefixes``.
    """
    totals: Counter[str] = Counter()
    inputs = (Dataset(dataset), Corpus(corpus), negatives)
    calls = [(*inputs, name, split, settings) for name in negatives.parts(f"negatives/{split}")]
    for counts in pool.map(_count_part, calls, "count"):
        totals.update(counts)
    info = {"split": split, **_shares(totals), **totals}
    show_summary(f"candidate negatives of {split}", describe(info))
    return info


def describe(info: dict[str, Any]) -> dict[str, str]:
    """Return the counts in words."""
    facts = {
        "queries": f"{info['queries']:,}",
        "candidates": f"{info['candidates']:,}",
        "left to train on": f"{info['used']:,}",
        "queries without any left": f"{info['queries_without_negatives']:,}",
    }
    if "answer_share" in info:
        facts["with an answer in them"] = f"{info['answer_share']:.1%}"
        facts["with an answer, of those left"] = f"{info['answer_share_used']:.1%}"
    if "planted_share_used" in info:
        facts["planted false negatives, of those left"] = f"{info['planted_share_used']:.1%}"
    return facts


def _shares(totals: Counter[str]) -> dict[str, float]:
    shares = {}
    if totals["answerable"]:
        shares["answer_share"] = totals["answered"] / totals["answerable"]
        shares["answer_share_used"] = totals["answered_used"] / max(1, totals["answerable_used"])
    if totals["planted"]:
        shares["planted_share"] = totals["planted"] / totals["candidates"]
        shares["planted_share_used"] = totals["planted_used"] / max(1, totals["used"])
    return shares


def _count_part(
    data: Dataset, corpus: Corpus, negatives: Artifact, name: str, split: str, settings: EvaluateConfig
) -> Counter[str]:
    table = read_arrow(negatives.local(name))
    used = pc.is_in(table["action"], value_set=pa.array(_USED)).to_pylist()
    query_ids, ids = table["query_id"].to_pylist(), table["passage_id"].to_pylist()
    false_negatives = known_false_negatives(data, split)
    planted = [pair in false_negatives for pair in zip(query_ids, ids, strict=True)]
    mine = of_queries(data.queries(split), pc.unique(table["query_id"]))
    matchers = {
        query_id: AnswerMatcher(query_id, answers, settings.answer_match)
        for query_id, answers in zip(mine["query_id"].to_pylist(), mine["answers"].to_pylist(), strict=True)
        if counts_for_answers(query_id, answers, settings.answer_query_prefixes)
    }
    counts: Counter[str] = Counter(
        queries=len(set(query_ids)),
        candidates=len(query_ids),
        used=sum(used),
        planted=sum(planted),
        planted_used=sum(count for count, left in zip(planted, used, strict=True) if left),
        queries_without_negatives=len(set(query_ids))
        - len({q for q, left in zip(query_ids, used, strict=True) if left}),
    )
    asked = [at for at, query_id in enumerate(query_ids) if query_id in matchers]
    texts = corpus.texts(corpus.rows_of([ids[at] for at in asked])).texts
    for at, text in zip(asked, texts, strict=True):
        is_answer = matchers[query_ids[at]].matches(text)
        counts.update(answerable=1, answered=int(is_answer))
        if used[at]:
            counts.update(answerable_used=1, answered_used=int(is_answer))
    return counts
