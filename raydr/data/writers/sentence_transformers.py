"""JSONL with texts and the column names of sentence-transformers' trainers, which PyLate's take too."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TextIO

from pydantic import Field

from raydr.data.writers.base import LEFT_OUT, Exported, OutputFile, Question, Writer, with_title


class SentenceTransformersWriter(Writer):
    """One file a split, ``SPLIT.jsonl``: ``load_dataset("json", data_files={"train": "train.jsonl"})``.

    ``pairs``: anchor, positive: a row for each positive. ``triplets``: anchor, positive, negative: a row for each
    negative, beside the query's positives in turn. ``lists``: anchor, positive, negative_1 to negative_n: a row for
    each positive. ``labelled``: anchor, passage, label (1 or 0): a row for each judgment and negative. Titles are put
    in front of texts; ids, grades, answers, and passages that no row names, have no place in it.
    """

    name: Literal["sentence-transformers"] = "sentence-transformers"
    shape: Literal["auto", "pairs", "triplets", "lists", "labelled"] = "auto"
    """What a row is: ``auto`` is triplets in a split that has negatives, else pairs."""

    num_negatives: int = Field(default=1, ge=1)
    """Columns of negatives in a row of ``lists``; queries with fewer are left out."""

    def files(self, exported: Exported) -> list[OutputFile]:
        shapes = {split: "triplets" if exported.has_negatives(split) else "pairs" for split in exported.splits}
        if self.shape != "auto":
            shapes = dict.fromkeys(shapes, self.shape)
        return [OutputFile(f"{split}.jsonl", shape, split) for split, shape in shapes.items()]

    def write(self, file: OutputFile, exported: Exported, out: TextIO, counts: Counter[str]) -> None:
        rows_of = {"pairs": _pairs, "triplets": _triplets, "lists": self._lists, "labelled": _labelled}[file.role]
        for question in exported.questions(file.split):
            ids = [*question.judgments, *(negative.passage_id for negative in question.negatives)]
            passages = exported.corpus.texts(exported.corpus.rows_of(ids))
            texts = map(with_title, passages.titles, passages.texts)
            rows = list(rows_of(question, dict(zip(ids, texts, strict=True))))
            for row in rows:
                out.write(json.dumps({"anchor": question.text, **row}, ensure_ascii=False) + "\n")
            counts["rows"] += len(rows)
            counts[LEFT_OUT + "queries without enough positives or negatives"] += not rows

    def _lists(self, question: Question, texts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        negatives = [texts[negative.passage_id] for negative in question.negatives[: self.num_negatives]]
        if len(negatives) == self.num_negatives:
            named = {f"negative_{number}": text for number, text in enumerate(negatives, start=1)}
            yield from ({"positive": texts[passage_id]} | named for passage_id in question.positives)


def _pairs(question: Question, texts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    yield from ({"positive": texts[passage_id]} for passage_id in question.positives)


def _triplets(question: Question, texts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    positives = [texts[passage_id] for passage_id in question.positives]
    for at, negative in enumerate(question.negatives if positives else ()):
        yield {"positive": positives[at % len(positives)], "negative": texts[negative.passage_id]}


def _labelled(question: Question, texts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    labels = {passage_id: int(relevance > 0) for passage_id, relevance in question.judgments.items()}
    negatives = dict.fromkeys((negative.passage_id for negative in question.negatives), 0)
    yield from ({"passage": texts[passage_id], "label": label} for passage_id, label in (negatives | labels).items())
