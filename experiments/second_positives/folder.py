"""A BEIR folder of prepared data whose training queries have second positives among their judgments.

::

    corpus.jsonl             the passages as they were prepared, then the new ones
    queries.jsonl
    qrels/SPLIT.tsv          in the training split also the second positives, with relevance 1
    second_positives.jsonl   query_id, passage_id, made, made_from, shift: how each was made
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from experiments.second_positives.answers import find_answers
from experiments.second_positives.judged import Judged, Passage, SecondPositive, Source, hashes_of, read_judged
from experiments.second_positives.recut import recut
from experiments.second_positives.renamed import rename_positives
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.writers.base import Exported, Question
from raydr.data.writers.beir import BeirWriter
from raydr.errors import DataError
from raydr.evaluation.answer_match import MatchRule


@dataclass(frozen=True)
class Settings:
    """Which second positives are made.

    Args:
        sources: the ways of making them.
        split: the training split.
        seed: with the query id decides how a passage is cut, with the passage id how code is renamed.
        answer_match: how answers are compared.
        answer_query_prefixes: only queries whose id starts with one of these have answers to look for; all if empty.
        answer_overlap: least share of the question's words that a passage of ``answer`` has, besides the answer itself,
            which may stand there by chance; 0 asks for the answer alone.
        recut_words: least and most words that ``recut`` shifts by.
    """

    sources: Sequence[Source]
    split: str
    seed: int
    answer_match: MatchRule = "string"
    answer_query_prefixes: Sequence[str] = ()
    answer_overlap: float = 0.4
    recut_words: tuple[int, int] = (30, 50)


@dataclass(frozen=True)
class Made:
    """New passages, sorted by id, second positives, sorted by query and passage id, and what they were made for."""

    judged: Judged
    new: list[Passage]
    rows: list[SecondPositive]

    def counts(self) -> dict[str, int]:
        """How many there are, by what they are."""
        by_source = Counter(row.made for row in self.rows)
        return {
            "queries": len(self.judged.positives),
            "queries with answers": len(self.judged.matchers),
            "new passages": len(self.new),
            "second positives": len(self.rows),
            "queries with a second positive": len({row.query_id for row in self.rows}),
            **{f"second positives by {made}": number for made, number in by_source.items()},
        }


def write_with_second_positives(dataset: Dataset, corpus: Corpus, settings: Settings, target: Path) -> dict[str, int]:
    """Make all second positives that can be made and write the data with them; returns how many of what there are.

    Raises:
        DataError: the target is there already, the data set was made with another corpus, no second positive could be
            made, or a new passage would get an id that is taken.
    """
    if target.exists():
        raise DataError(f"{target} is there already: remove it, or give another folder")
    dataset.require_corpus(corpus.artifact)
    made = make_second_positives(dataset, corpus, settings)
    if not made.rows:
        raise DataError(
            "no second positive could be made for a training query: recut and answer need answer strings and passages "
            "with titles, renamed needs Python"
        )
    exported, writer = _WithSecondPositives(dataset, corpus, made, settings.split), BeirWriter()
    unfinished = target.with_name(f"{target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    for file in writer.files(exported):
        path = unfinished / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as out:
            writer.write(file, exported, out, Counter())
    with (unfinished / "second_positives.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in made.rows)
    unfinished.rename(target)
    return made.counts()


def make_second_positives(dataset: Dataset, corpus: Corpus, settings: Settings) -> Made:
    """All second positives of the training queries that the sources give.

    Raises:
        DataError: a new passage would get an id that is taken.
    """
    queries = dataset.queries(settings.split)
    judged = read_judged(queries, dataset.qrels(settings.split), settings.answer_match, settings.answer_query_prefixes)
    lookup = partial(_lookup, corpus)
    golds = lookup(sorted({one for ids in judged.positives.values() for one in ids}))
    new: list[Passage] = []
    rows: list[SecondPositive] = []
    if "recut" in settings.sources:
        new, rows = recut(judged, lookup, settings.recut_words, settings.seed)
    if "renamed" in settings.sources:
        renamed = rename_positives(judged, golds, settings.seed)
        new, rows = [*new, *renamed[0]], [*rows, *renamed[1]]
    new = _without_copies(corpus, new)
    kept = {one.passage_id for one in new}
    rows = [row for row in rows if row.passage_id in kept]
    if "answer" in settings.sources:
        questions = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
        rows += find_answers(judged, questions, golds, corpus.parts(), settings.answer_overlap)
    return Made(judged, new, sorted(rows, key=SecondPositive.order))


class _WithSecondPositives(Exported):
    """The prepared data with further passages, and further judgments of one split."""

    def __init__(self, dataset: Dataset, corpus: Corpus, made: Made, split: str) -> None:
        super().__init__(corpus, dataset, None)
        self._new = made.new
        self._split = split
        self._further: dict[str, dict[str, int]] = {}
        for row in made.rows:
            self._further.setdefault(row.query_id, {})[row.passage_id] = 1

    def passages(self) -> Iterator[tuple[str, str, str]]:
        yield from super().passages()
        yield from ((one.passage_id, one.title, one.text) for one in self._new)

    def questions(self, split: str) -> Iterator[Question]:
        for question in super().questions(split):
            further = self._further.get(question.query_id, {}) if split == self._split else {}
            negatives = [one for one in question.negatives if one.passage_id not in further]
            yield replace(question, judgments=question.judgments | further, negatives=negatives)


def _lookup(corpus: Corpus, passage_ids: list[str]) -> dict[str, Passage]:
    found = corpus.find(passage_ids)
    there = [at for at, row in enumerate(found.tolist()) if row >= 0]
    texts = corpus.texts(found[there])
    return {
        passage_ids[at]: Passage(passage_ids[at], title, text)
        for at, title, text in zip(there, texts.titles, texts.texts, strict=True)
    }


def _without_copies(corpus: Corpus, new: list[Passage]) -> list[Passage]:
    """Leave out new passages whose content the corpus has already, and refuse ids that it has already; sorted by id."""
    new = sorted(new, key=lambda one: one.passage_id)
    there = corpus.find([one.passage_id for one in new]) >= 0
    if there.any():
        raise DataError(
            f"{there.sum()} new passages would get ids that the corpus at {corpus.artifact.folder} has already, the "
            f"first is {new[there.argmax()].passage_id!r}: does it hold second positives already? Start from the data "
            "without them"
        )
    copies = np.isin(np.array(hashes_of(new), np.uint64), corpus.content_hashes(np.arange(len(corpus))))
    return [one for one, copy in zip(new, copies.tolist(), strict=True) if not copy]
