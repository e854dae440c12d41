"""Second positives, cut anew from the article of the judged passage: a config's data with them, as a BEIR folder.

A run that reads the folder plants them with ``inject_noise: {kind: false_negatives}``. The folder::

    corpus.jsonl             the passages as they were prepared, then the new ones
    queries.jsonl
    qrels/SPLIT.tsv          in the training split also the second positives, with relevance 1
    second_positives.jsonl   query_id, passage_id, made_from, shift: how each was made

    python -m experiments.second_positives configs/openqa-wiki.yaml work/data/openqa-recut \\
        --set workdir=work/openqa-answers --set data.reader.path=work/data/openqa-answers
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from experiments.arguments import command
from raydr.artefacts.dataset import declare_prepared
from raydr.config.run import RunConfig
from raydr.console import show_summary
from raydr.data.corpus import Corpus, hash_content
from raydr.data.dataset import Dataset
from raydr.data.tables import passages_by_query, relevant
from raydr.data.writers.base import Exported, Question
from raydr.data.writers.formats import BeirWriter
from raydr.errors import DataError
from raydr.evaluation.answer_match import AnswerMatcher, MatchRule, counts_for_answers
from raydr.pipeline.session import open_session
from raydr.seeding import query_rng

#: The answer stands at least so many words away from where the judged passage was cut, so that its sentence is there.
CONTEXT_WORDS = 10

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """One passage of the corpus, or a new one."""

    passage_id: str
    title: str
    text: str


@dataclass(frozen=True, order=True)
class SecondPositive:
    """One further positive of a query, and how it was made.

    Args:
        query_id: the query.
        passage_id: the further positive.
        made_from: the passages that its words come from; the judged one first.
        shift: words between the start of the judged passage and its own; negative if it starts earlier.
    """

    query_id: str
    passage_id: str
    made_from: tuple[str, ...]
    shift: int


@dataclass(frozen=True)
class Judged:
    """What is known of the training queries before.

    Args:
        positives: positives (relevance > 0) of each query, sorted.
        matchers: of the queries whose answers can be looked for in a passage.
    """

    positives: Mapping[str, Sequence[str]]
    matchers: Mapping[str, AnswerMatcher]

    @classmethod
    def read(
        cls, queries: pa.Table, qrels: pa.Table, rule: MatchRule = "string", prefixes: Sequence[str] = ()
    ) -> Judged:
        """The judgments of a split by query.

        Args:
            queries: queries of the split.
            qrels: its judgments.
            rule: how answers are compared.
            prefixes: only queries whose id starts with one of these have answers to look for (yes and no are none).

        Raises:
            DataError: an answer is not a valid regular expression.
        """
        positives = {query_id: sorted(ids) for query_id, ids in passages_by_query(relevant(qrels)).items()}
        matchers = {
            row["query_id"]: AnswerMatcher(row["query_id"], row["answers"], rule)
            for row in queries.select(["query_id", "answers"]).to_pylist()
            if row["query_id"] in positives and counts_for_answers(row["query_id"], row["answers"], prefixes)
        }
        return cls(positives, matchers)


#: Looks passages up by id; those that the corpus has not are left out.
Lookup = Callable[[Sequence[str]], Mapping[str, Passage]]


def neighbour_ids(passage_id: str, step: int) -> list[str]:
    """Ids that the passage before (step −1) or after (+1) may have: the number at the end counts on.

    >>> neighbour_ids("AA_wiki_00#9", 1), neighbour_ids("p010", -1), neighbour_ids("0", -1), neighbour_ids("a", 1)
    (['AA_wiki_00#10'], ['p9', 'p009'], [], [])
    """
    matched = _NUMBERED.fullmatch(passage_id)
    if matched is None or int(matched[2]) + step < 0:
        return []
    number = str(int(matched[2]) + step)
    return list(dict.fromkeys(matched[1] + written for written in (number, number.zfill(len(matched[2])))))


def recut(
    judged: Judged, lookup: Lookup, shift: tuple[int, int], seed: int
) -> tuple[list[Passage], list[SecondPositive]]:
    """New passages from the text of a judged passage and of the one next to it in the same article.

    Of passage words w_1 … w_n and a shift s the new passage is w_{s+1} … w_n and the first s words of the next passage,
    or the last s words of the one before and w_1 … w_{n−s}. Direction and s are drawn for the query among those that
    keep at least half of the judged passage, with the answer in what is kept and :data:`CONTEXT_WORDS` away from the
    cut. Passages are next to each other if they have the same title and ids that count on.

    A new passage is a second positive of every query whose judged passage gave words to it and whose answer is in
    these words, not only of the query that it was cut for.

    Args:
        judged: the training queries; those without a matcher get none.
        lookup: gives passages by id.
        shift: least and most words to shift by.
        seed: with the query id decides how it is cut.

    Returns:
        The new passages, sorted by id, and the second positives, sorted by query and passage id.
    """
    golds = lookup(sorted({passage_id for query_id in judged.matchers for passage_id in judged.positives[query_id]}))
    sides = {step: lookup(sorted({near for gold in golds for near in neighbour_ids(gold, step)})) for step in (-1, 1)}
    cuts: dict[str, _Cut] = {}
    for query_id in sorted(judged.matchers):
        for passage_id in judged.positives[query_id]:
            gold = golds[passage_id]
            near = {step: _neighbour(gold, step, sides[step]) for step in (-1, 1)}
            cut = _cut(query_id, gold, near, judged.matchers[query_id], shift, seed)
            if cut is not None:
                cuts[cut.new.passage_id] = cut
    queries_of: defaultdict[str, list[str]] = defaultdict(list)
    for query_id in judged.matchers:
        for passage_id in judged.positives[query_id]:
            queries_of[passage_id].append(query_id)
    rows = {
        SecondPositive(query_id, cut.new.passage_id, cut.made_from, cut.shift)
        for cut in cuts.values()
        for source, text in cut.kept.items()
        for query_id in queries_of[source]
        if judged.matchers[query_id].matches(text)
    }
    return [cuts[passage_id].new for passage_id in sorted(cuts)], sorted(rows)


class _Cut:
    """A new passage, and what is kept of each passage it was cut from, without the words next to a cut."""

    def __init__(self, gold: Passage, near: Passage, step: int, size: int) -> None:
        words, others = gold.text.split(), near.text.split()
        if step > 0:
            kept, added = words[size:], others[:size]
            inner = words[size + CONTEXT_WORDS :], others[: max(size - CONTEXT_WORDS, 0)]
            text = " ".join(kept + added)
        else:
            kept, added = words[: len(words) - size], others[len(others) - size :]
            inner = words[: max(len(words) - size - CONTEXT_WORDS, 0)], added[CONTEXT_WORDS:]
            text = " ".join(added + kept)
        self.shift = step * size
        self.new = Passage(f"{gold.passage_id}{self.shift:+d}", gold.title, text)
        self.made_from = (gold.passage_id, near.passage_id)
        self.kept = {source: " ".join(part) for source, part in zip(self.made_from, inner, strict=True)}


def _neighbour(gold: Passage, step: int, passages: Mapping[str, Passage]) -> Passage | None:
    for passage_id in neighbour_ids(gold.passage_id, step):
        near = passages.get(passage_id)
        if near is not None and near.title and near.title == gold.title:
            return near
    return None


def _cut(
    query_id: str,
    gold: Passage,
    near: Mapping[int, Passage | None],
    matcher: AnswerMatcher,
    shift: tuple[int, int],
    seed: int,
) -> _Cut | None:
    """The first cut, in the order drawn for the query, that keeps the answer."""
    most = min(shift[1], len(gold.text.split()) // 2)
    options = [
        (passage, step, size)
        for step, passage in sorted(near.items())
        if passage is not None
        for size in range(shift[0], min(most, len(passage.text.split())) + 1)
    ]
    order = query_rng(seed, 0, query_id, f"recut {gold.passage_id}").permutation(len(options))
    for at in order.tolist():
        cut = _Cut(gold, *options[at])
        if matcher.matches(cut.kept[gold.passage_id]):
            return cut
    return None


def write_with_second_positives(
    dataset: Dataset, corpus: Corpus, judged: Judged, split: str, shift: tuple[int, int], seed: int, target: Path
) -> dict[str, int]:
    """Make all second positives of the training queries and write the data with them; returns how many there are.

    Args:
        dataset, corpus: the prepared data.
        judged: the training queries.
        split: the training split.
        shift: least and most words to shift by.
        seed: with the query id decides how a passage is cut.
        target: the new folder.

    Raises:
        DataError: the target is there already, the data set was made with another corpus, no second positive could be
            made, or a new passage would get an id that is taken.
    """
    if target.exists():
        raise DataError(f"{target} is there already: remove it, or give another folder")
    dataset.require_corpus(corpus.artifact)
    new, rows = recut(judged, partial(_lookup, corpus), shift, seed)
    new = _without_copies(corpus, new)
    kept = {passage.passage_id for passage in new}
    rows = [row for row in rows if row.passage_id in kept]
    if not rows:
        raise DataError(
            "no second positive could be made for a training query: queries need answer strings, passages a title and "
            "ids that count on within an article"
        )
    exported, writer = _WithSecondPositives(dataset, corpus, new, rows, split), BeirWriter()
    unfinished = target.with_name(f"{target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    for file in writer.files(exported):
        path = unfinished / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as out:
            writer.write(file, exported, out, Counter())
    with (unfinished / "second_positives.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
    unfinished.rename(target)
    return {
        "queries": len(judged.positives),
        "queries with answers": len(judged.matchers),
        "new passages": len(new),
        "second positives": len(rows),
        "queries with a second positive": len({row.query_id for row in rows}),
    }


class _WithSecondPositives(Exported):
    """The prepared data with further passages, and further judgments of one split."""

    def __init__(
        self, dataset: Dataset, corpus: Corpus, new: Sequence[Passage], rows: Sequence[SecondPositive], split: str
    ) -> None:
        super().__init__(corpus, dataset, None)
        self._new = new
        self._split = split
        self._further: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for row in rows:
            self._further[row.query_id][row.passage_id] = 1

    def passages(self) -> Iterator[tuple[str, str, str]]:
        yield from super().passages()
        yield from ((passage.passage_id, passage.title, passage.text) for passage in self._new)

    def questions(self, split: str) -> Iterator[Question]:
        for question in super().questions(split):
            further = self._further.get(question.query_id, {}) if split == self._split else {}
            negatives = [negative for negative in question.negatives if negative.passage_id not in further]
            yield replace(question, judgments=question.judgments | further, negatives=negatives)


def _lookup(corpus: Corpus, passage_ids: Sequence[str]) -> dict[str, Passage]:
    rows = corpus.find(list(passage_ids))
    there = np.flatnonzero(rows >= 0).tolist()
    texts = corpus.texts(rows[there])
    return {
        passage_ids[at]: Passage(passage_ids[at], title, text)
        for at, title, text in zip(there, texts.titles, texts.texts, strict=True)
    }


def _without_copies(corpus: Corpus, new: list[Passage]) -> list[Passage]:
    """Leave out new passages whose content the corpus has already, and refuse ids that it has already."""
    there = corpus.find([passage.passage_id for passage in new]) >= 0
    if there.any():
        raise DataError(
            f"{there.sum()} new passages would get ids that the corpus at {corpus.artifact.folder} has already, the "
            f"first is {new[there.argmax()].passage_id!r}: does it hold second positives already? Start from the data "
            "without them"
        )
    columns = [passage.title for passage in new], [passage.text for passage in new]
    hashes = hash_content(*(pa.array(column, pa.string()) for column in columns))
    copies = np.isin(hashes, corpus.content_hashes(np.arange(len(corpus))))
    return [passage for passage, copy in zip(new, copies.tolist(), strict=True) if not copy]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="its data is prepared; data, seed and evaluate.answer_* are used")
    parser.add_argument("target", type=Path)
    parser.add_argument("--recut-words", type=int, nargs=2, default=(30, 50), metavar=("LEAST", "MOST"))
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    config = RunConfig.load(arguments.config, arguments.overrides)
    with open_session(config) as session:
        made = session.make(session.recipe.corpus(), declare_prepared(session.recipe.context))
    corpus, dataset, split = Corpus(made[0]), Dataset(made[1]), config.data.train_split
    rule, prefixes = config.evaluate.answer_match, config.evaluate.answer_query_prefixes
    judged = Judged.read(dataset.queries(split), dataset.qrels(split), rule, prefixes)
    shift = tuple(arguments.recut_words)
    counts = write_with_second_positives(dataset, corpus, judged, split, shift, config.seed, arguments.target)
    facts = {name: f"{count:,}" for name, count in counts.items()}
    show_summary("second positives", facts | {"at": str(arguments.target)})


if __name__ == "__main__":
    command(main)
