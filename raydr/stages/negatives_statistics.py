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

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow
from raydr.evaluation.answer_match import AnswerMatcher, counts_for_answers
from raydr.evaluation.config import EvaluateConfig
from raydr.runtime.console import say, show_summary
from raydr.stages.judge_negatives import known_false_negatives
from raydr.stages.tasks import results
from raydr.store.artifact import Artifact, Identity, begin
from raydr.store.folder import Folder

KIND = "negatives_statistics"
#: 2: planted candidates are counted whoever has found them.
VERSION = 2
#: Actions after which a candidate is still a negative.
_USED = ("keep", "down_weight")


def count_negatives(
    config: RunConfig, split: str, dataset: Folder, corpus: Folder, negatives: Folder, output: Folder
) -> Artifact:
    """Count the candidates of a split, those that are left to train on, and those with an answer in them.

    Args:
        config: ``evaluate`` says whose answers count and how they are compared.
        split: the split.
        dataset: queries with their answers.
        corpus: the passages.
        negatives: a ``negatives`` artefact, mined or judged.
        output: where the artefact goes.
    """
    import ray

    data, candidates = Dataset.open(dataset), Artifact.open(negatives, "negatives")
    settings = config.evaluate
    identity = Identity(
        kind=KIND,
        version=VERSION,
        config={"split": split, **settings.fingerprint_settings(include={"answer_match", "answer_query_prefixes"})},
        inputs={"dataset": data.fingerprint, "negatives": candidates.fingerprint},
    )
    with begin(output, identity) as state:
        if isinstance(state, Artifact):
            say(f"statistics {output}: already there with the same fingerprint, reused")
            return state
        job = ray.remote(num_cpus=1)(_count_part)
        names = candidates.parts(f"negatives/{split}")
        totals: Counter[str] = Counter()
        for counts in results(
            [job.remote(settings, split, dataset, corpus, negatives, name) for name in names], "count", "parts"
        ):
            totals.update(counts)
        info = {"split": split, **_shares(totals), **totals}
        made = state.finish(info, run_config=config.model_dump(mode="json"))
    show_summary(f"candidate negatives of {split}", describe(info))
    return made


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
    settings: EvaluateConfig, split: str, dataset: Folder, corpus: Folder, negatives: Folder, name: str
) -> Counter[str]:
    data, passages = Dataset.open(dataset), Corpus.open(corpus)
    table = read_arrow(Artifact.open(negatives, "negatives").local(name))
    used = pc.is_in(table["action"], value_set=pa.array(_USED)).to_pylist()
    query_ids, ids = table["query_id"].to_pylist(), table["passage_id"].to_pylist()
    false_negatives = known_false_negatives(data, split)
    planted = [pair in false_negatives for pair in zip(query_ids, ids, strict=True)]
    queries = data.queries(split)
    mine = queries.filter(pc.is_in(queries["query_id"], value_set=pc.unique(table["query_id"])))
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
        planted_used=sum(one for one, left in zip(planted, used, strict=True) if left),
        queries_without_negatives=len(set(query_ids))
        - len({q for q, left in zip(query_ids, used, strict=True) if left}),
    )
    asked = [at for at, query_id in enumerate(query_ids) if query_id in matchers]
    texts = passages.texts(passages.rows_of([ids[at] for at in asked])).texts
    for at, text in zip(asked, texts, strict=True):
        found = matchers[query_ids[at]].matches(text)
        counts.update(answerable=1, answered=int(found))
        if used[at]:
            counts.update(answerable_used=1, answered_used=int(found))
    return counts
