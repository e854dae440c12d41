"""What candidate negatives look like before and after judging: how many are left, and how many look like positives.

Artefact ``negatives_statistics``: no parts, the counts are in the manifest. A candidate that holds one of its query's
answers is likely to be a false negative; that is a count which no judge has a hand in, so that rounds with and without
judges can be compared. Planted false negatives are counted too, where there are any.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from raydr.artefacts.context import Context
from raydr.artefacts.corpus import declare_corpus
from raydr.artefacts.dataset import declare_dataset
from raydr.artefacts.declaration import Node, artefact
from raydr.console import show_summary
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, known_false_negatives
from raydr.data.schema import read_arrow
from raydr.data.tables import of_queries
from raydr.distributed.pool import Pool
from raydr.evaluation.answer_match import AnswerMatcher, counts_for_answers
from raydr.evaluation.config import EvaluateConfig
from raydr.store.artifact import Artifact
from raydr.store.building import Building

KIND = "negatives_statistics"
#: Actions after which a candidate is still a negative.
_USED = ("keep", "down_weight")


def statistics(context: Context, negatives: Node) -> Node:
    """Counts of the candidates that training draws from."""
    config = context.config
    return count_negatives.node(
        f"{context.place}statistics",
        dataset=declare_dataset(context),
        corpus=declare_corpus(context),
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
    """Count the candidates of a split, those that are left to train on, and those with an answer in them.

    Args:
        making: the artefact.
        pool: where parts are counted.
        dataset: queries with their answers.
        corpus: the passages.
        negatives: a ``negatives`` artefact, mined or judged.
        split: the split.
        settings: whose answers count, and how they are compared: ``answer_match``, ``answer_query_prefixes``.
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
    """The counts in words."""
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
