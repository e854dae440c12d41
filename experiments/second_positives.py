"""Write a config's data as a BEIR folder with second positives: passages cut again from the judged passage's article.

A run that reads the folder plants them with ``inject_noise: {kind: false_negatives}``. The folder::

    corpus.jsonl             the prepared passages, then the new passages
    queries.jsonl
    qrels/SPLIT.tsv          in the training split with the second positives, of relevance 1
    second_positives.jsonl   origin of each: query_id, passage_id, made_from, shift

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

#: Minimal number of words between the answer and a cut, so that the new passage keeps the answer's sentence.
CONTEXT_WORDS = 10

_NUMBERED = re.compile(r"(.*?)(\d+)", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """A passage of the corpus, or a new passage."""

    passage_id: str
    title: str
    text: str


@dataclass(frozen=True, order=True)
class SecondPositive:
    """A further positive of a query, and its origin.

    Args:
        query_id: of the query.
        passage_id: of the further positive.
        made_from: the passages from which its words come; the judged passage first.
        shift: words from the start of the judged passage to its own start; negative if it starts earlier.
    """

    query_id: str
    passage_id: str
    made_from: tuple[str, ...]
    shift: int


@dataclass(frozen=True)
class Judged:
    """The training queries with their positives and answers.

    Args:
        positives: positives (relevance > 0) of each query, sorted.
        matchers: of the queries whose answers can be searched in a passage.
    """

    positives: Mapping[str, Sequence[str]]
    matchers: Mapping[str, AnswerMatcher]

    @classmethod
    def read(
        cls, queries: pa.Table, qrels: pa.Table, rule: MatchRule = "string", prefixes: Sequence[str] = ()
    ) -> Judged:
        """Read the judgments of a split by query.

        Args:
            queries: of the split.
            qrels: judgments of the split.
            rule: for the comparison of answers.
            prefixes: of the ids of queries whose answers can be searched in passages; others may answer yes or no.

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


#: Returns the passages with some ids, without those that are not in the corpus.
Lookup = Callable[[Sequence[str]], Mapping[str, Passage]]


def neighbour_ids(passage_id: str, step: int) -> list[str]:
    """Return possible ids of the passage before (step −1) or after (+1), whose final numbers are consecutive.

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
    """Cut new passages from the text of a judged passage and of its neighbour in the same article.

    The passage has words w_1 … w_n, and the shift is s. A cut forward keeps w_{s+1} … w_n and adds the first s words of
    the next passage; a cut backward adds the last s words of the previous passage to w_1 … w_{n−s}. Direction and s are
    drawn for the query among those that keep at least half of the judged passage. The kept part must contain the
    answer, :data:`CONTEXT_WORDS` away from the cut. Neighbours have the same title and consecutive ids.

    A new passage is a second positive of each query whose judged passage contributed words with the answer, and not
    only of its own query.

    Args:
        judged: the training queries; those without a matcher get no second positive.
        lookup: returns passages by id.
        shift: minimal and maximal shift in words.
        seed: determines the cuts, together with the query id.

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
    """A new passage, and the words that it keeps of each source passage, without those next to a cut."""

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
    """Return the first cut, in the order drawn for the query, that keeps the answer."""
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
    data: tuple[Dataset, Corpus], judged: Judged, split: str, shift: tuple[int, int], seed: int, target: Path,
    only: bool = False,
) -> dict[str, int]:  # fmt: skip
    """Make second positives of the training queries and write the data with them; return the counts.

    Args:
        data: the prepared data.
        judged: the training queries.
        split: the training split.
        shift: minimal and maximal shift in words.
        seed: determines the cuts, together with the query id.
        target: the new folder.
        only: leave out training queries without a second positive.

    Raises:
        DataError: the target exists, the data set belongs to another corpus, no second positive could be made, or the
            id of a new passage exists already.
    """
    dataset, corpus = data
    if target.exists():
        raise DataError(f"{target} exists already: remove it, or choose another folder")
    dataset.require_corpus(corpus.artifact)
    new, rows = recut(judged, partial(_lookup, corpus), shift, seed)
    new = _without_copies(corpus, new)
    kept = {passage.passage_id for passage in new}
    rows = [row for row in rows if row.passage_id in kept]
    if not rows:
        raise DataError(
            "no second positive could be made: training queries need answer strings, and passages need a title and "
            "consecutive ids within an article"
        )
    exported, writer = _WithSecondPositives(data, new, rows, split, only), BeirWriter()
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
    """The prepared data with further passages, and with further judgments of a split."""

    def __init__(
        self, data: tuple[Dataset, Corpus], new: Sequence[Passage], rows: Sequence[SecondPositive], split: str,
        only: bool,
    ) -> None:  # fmt: skip
        dataset, corpus = data
        super().__init__(corpus, dataset, None)
        self._new, self._split, self._only = new, split, only
        self._further: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for row in rows:
            self._further[row.query_id][row.passage_id] = 1

    def passages(self) -> Iterator[tuple[str, str, str]]:
        yield from super().passages()
        yield from ((passage.passage_id, passage.title, passage.text) for passage in self._new)

    def questions(self, split: str) -> Iterator[Question]:
        for question in super().questions(split):
            further = self._further.get(question.query_id, {}) if split == self._split else {}
            if self._only and split == self._split and not further:
                continue
            negatives = [negative for negative in question.negatives if negative.passage_id not in further]
            yield replace(question, judgments=question.judgments | further, negatives=negatives)


def _lookup(corpus: Corpus, passage_ids: Sequence[str]) -> dict[str, Passage]:
    rows = corpus.find(list(passage_ids))
    present = np.flatnonzero(rows >= 0).tolist()
    texts = corpus.texts(rows[present])
    return {
        passage_ids[at]: Passage(passage_ids[at], title, text)
        for at, title, text in zip(present, texts.titles, texts.texts, strict=True)
    }


def _without_copies(corpus: Corpus, new: list[Passage]) -> list[Passage]:
    """Leave out new passages whose content is in the corpus already; refuse ids that it has already."""
    exists_N = corpus.find([passage.passage_id for passage in new]) >= 0
    if exists_N.any():
        raise DataError(
            f"{exists_N.sum()} new passages would get ids that the corpus at {corpus.artifact.folder} has already, "
            f"such as {new[exists_N.argmax()].passage_id!r}: does it hold second positives already? Start from the "
            "data without them"
        )
    columns = [passage.title for passage in new], [passage.text for passage in new]
    hashes = hash_content(*(pa.array(column, pa.string()) for column in columns))
    copies = np.isin(hashes, corpus.content_hashes(np.arange(len(corpus))))
    return [passage for passage, copy in zip(new, copies.tolist(), strict=True) if not copy]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", help="config of the data, which are prepared first; also sets seed and answer rules")
    parser.add_argument("target", type=Path)
    parser.add_argument("--recut-words", type=int, nargs=2, default=(30, 50), metavar=("LEAST", "MOST"))
    parser.add_argument("--only", action="store_true", help="leave out training queries without a second positive")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    config = RunConfig.load(arguments.config, arguments.overrides)
    with open_session(config) as session:
        made = session.make(session.recipe.corpus(), declare_prepared(session.recipe.context))
    dataset, split = Dataset(made[1]), config.data.train_split
    rule, prefixes = config.evaluate.answer_match, config.evaluate.answer_query_prefixes
    judged = Judged.read(dataset.queries(split), dataset.qrels(split), rule, prefixes)
    shift = tuple(arguments.recut_words)
    data = dataset, Corpus(made[0])
    counts = write_with_second_positives(data, judged, split, shift, config.seed, arguments.target, arguments.only)
    show_summary("second positives", {**{name: f"{n:,}" for name, n in counts.items()}, "at": str(arguments.target)})


if __name__ == "__main__":
    command(main)
