"""Formats that other retrieval trainers read: BEIR, DPR, sentence-transformers and MS MARCO's triples."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TextIO

from pydantic import Field

from raydr.data.rows import join_passage
from raydr.data.tables import RANDOM_MINER
from raydr.data.writers.base import (
    LEFT_OUT,
    Exported,
    Negative,
    OutputFile,
    Question,
    Writer,
    plain_id,
    to_single_line,
)
from raydr.errors import DataError


class BeirWriter(Writer):
    """A BEIR data set, answers in ``metadata.answers``.

    BEIR has no place for hard negatives: ``negatives/SPLIT.tsv`` (query-id, corpus-id, score, miner; best first) is an
    addition that the reader ``beir`` reads, and BEIR's own loader does not. Queries without a judgment belong to no
    split there.
    """

    name: Literal["beir"] = "beir"

    def files(self, exported: Exported) -> list[OutputFile]:
        files = [OutputFile("corpus.jsonl", "corpus"), OutputFile("queries.jsonl", "queries")]
        for split in exported.splits:
            files.append(OutputFile(f"qrels/{split}.tsv", "qrels", split))
            if exported.has_negatives(split):
                files.append(OutputFile(f"negatives/{split}.tsv", "negatives", split))
        return files

    def write(self, file: OutputFile, exported: Exported, out: TextIO, counts: Counter[str]) -> None:
        if file.role == "corpus":
            for passage_id, title, text in exported.passages():
                out.write(json.dumps({"_id": passage_id, "title": title, "text": text}, ensure_ascii=False) + "\n")
                counts["passages"] += 1
        elif file.role == "queries":
            _write_queries(exported, out, counts)
        elif file.role == "qrels":
            out.write("query-id\tcorpus-id\tscore\n")
            for question in exported.questions(file.split):
                for passage_id, relevance in question.judgments.items():
                    out.write(f"{plain_id(question.query_id)}\t{plain_id(passage_id)}\t{relevance}\n")
                    counts["positives" if relevance > 0 else "judged not relevant"] += 1
                counts[LEFT_OUT + "queries without a judgment"] += not question.judgments
        else:
            out.write("query-id\tcorpus-id\tscore\tminer\n")
            for question in exported.questions(file.split):
                if not question.judgments:
                    counts[LEFT_OUT + "negatives of queries without a judgment"] += len(question.negatives)
                    continue
                for negative in question.negatives:
                    score = "" if negative.score is None else repr(negative.score)
                    out.write(
                        f"{plain_id(question.query_id)}\t{plain_id(negative.passage_id)}\t{score}\t{negative.miner}\n"
                    )
                    counts["negatives"] += 1


def _write_queries(exported: Exported, out: TextIO, counts: Counter[str]) -> None:
    seen: dict[str, tuple[str, str]] = {}
    for split in exported.splits:
        for row in exported.dataset.queries(split).to_pylist():
            metadata = {} if row["answers"] is None else {"answers": row["answers"]}
            line = json.dumps({"_id": row["query_id"], "text": row["text"], "metadata": metadata}, ensure_ascii=False)
            first, first_split = seen.setdefault(row["query_id"], (line, split))
            if first != line:
                raise DataError(
                    f"query {row['query_id']!r} has another text or other answers in split {split} than in "
                    f"{first_split}; BEIR has one text a query: export to dpr instead"
                )
            if first_split == split:
                out.write(line + "\n")
                counts["queries"] += 1


class DprWriter(Writer):
    """Data for facebookresearch/DPR and the trainers that read its format.

    ``psgs.tsv`` holds the corpus, ``SPLIT.json`` the queries with the texts of their positives and negatives, hardest
    first. Judgments of relevance 0 have no place in it, nor have grades: every positive counts the same.
    """

    name: Literal["dpr"] = "dpr"
    fold_whitespace: bool = False
    """Whether to write passages with line breaks in a line of the TSV, a space for each; else they are an error."""

    def files(self, exported: Exported) -> list[OutputFile]:
        splits = [OutputFile(f"{split}.json", "biencoder", split) for split in exported.splits]
        return [OutputFile("psgs.tsv", "passages"), *splits]

    def write(self, file: OutputFile, exported: Exported, out: TextIO, counts: Counter[str]) -> None:
        if file.role == "passages":
            self._write_passages(exported, out, counts)
            return
        separator = "[\n"
        for question in exported.questions(file.split):
            out.write(separator + json.dumps(_record(question, exported), ensure_ascii=False))
            separator = ",\n"
            counts["queries"] += 1
            counts["positives"] += len(question.positives)
            counts["negatives"] += len(question.negatives)
            counts[LEFT_OUT + "judged not relevant"] += len(question.judgments) - len(question.positives)
        out.write("[]\n" if separator == "[\n" else "\n]\n")

    def _write_passages(self, exported: Exported, out: TextIO, counts: Counter[str]) -> None:
        rows = csv.writer(out, delimiter="\t", lineterminator="\n")
        rows.writerow(["id", "text", "title"])
        for passage_id, title, text in exported.passages():
            what = f"passage {passage_id!r}"
            fields = [to_single_line(field, what, self.fold_whitespace, tabs_too=False) for field in (text, title)]
            rows.writerow([passage_id, *fields])
            counts["passages"] += 1


def _record(question: Question, exported: Exported) -> dict[str, Any]:
    hard = [negative for negative in question.negatives if negative.miner != RANDOM_MINER]
    random = [negative for negative in question.negatives if negative.miner == RANDOM_MINER]
    positives = [Negative(passage_id, "", None) for passage_id in question.positives]
    answers = {} if question.answers is None else {"answers": question.answers}
    return {
        "q_id": question.query_id,
        "question": question.text,
        **answers,
        "positive_ctxs": _contexts(positives, exported),
        "hard_negative_ctxs": _contexts(hard, exported),
        "negative_ctxs": _contexts(random, exported),
    }


def _contexts(passages: list[Negative], exported: Exported) -> list[dict[str, Any]]:
    texts = exported.corpus.texts(exported.corpus.rows_of([passage.passage_id for passage in passages]))
    shown = []
    for passage, title, text in zip(passages, texts.titles, texts.texts, strict=True):
        score = {} if passage.score is None else {"score": passage.score}
        shown.append({"title": title, "text": text, "passage_id": passage.passage_id, **score})
    return shown


class SentenceTransformersWriter(Writer):
    """A file per split, ``SPLIT.jsonl``: ``load_dataset("json", data_files={"train": "train.jsonl"})``.

    ``pairs``: anchor, positive: a row for each positive. ``triplets``: anchor, positive, negative: a row for each
    negative, beside the query's positives in turn. ``lists``: anchor, positive, negative_1 to negative_n: a row for
    each positive. ``labelled``: anchor, passage, label (1 or 0): a row for each judgment and negative. Titles are put
    in front of texts; ids, grades, answers, and passages that no row names, have no place in it.
    """

    name: Literal["sentence-transformers"] = "sentence-transformers"
    shape: Literal["auto", "pairs", "triplets", "lists", "labelled"] = "auto"
    """Shape of a row; ``auto`` is triplets in a split that has negatives, else pairs."""

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
            texts_of = dict(zip(ids, map(join_passage, passages.titles, passages.texts), strict=True))
            rows = list(rows_of(question, texts_of))
            for row in rows:
                out.write(json.dumps({"anchor": question.text, **row}, ensure_ascii=False) + "\n")
            counts["rows"] += len(rows)
            counts[LEFT_OUT + "queries without enough positives or negatives"] += not rows
            written = {row.get("positive", row.get("passage")) for row in rows}
            counts[LEFT_OUT + "positives"] += sum(texts_of[positive] not in written for positive in question.positives)

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


class TriplesWriter(Writer):
    """MS MARCO's files: ``collection.tsv``, and ``queries``, ``qrels`` and ``triples`` named ``.SPLIT.tsv``.

    Each negative stands in one triple of ids, beside the query's positives in turn. A collection has no titles: they
    are put in front of the text. Answers have no place in it, nor have negatives of queries without a positive.
    """

    name: Literal["triples"] = "triples"
    fold_whitespace: bool = False
    """Whether to write spaces in place of line breaks and tabs; else a text with them is an error."""

    def files(self, exported: Exported) -> list[OutputFile]:
        files = [OutputFile("collection.tsv", "collection")]
        for split in exported.splits:
            roles = ["queries", "qrels", *(["triples"] if exported.has_negatives(split) else [])]
            files.extend(OutputFile(f"{role}.{split}.tsv", role, split) for role in roles)
        return files

    def write(self, file: OutputFile, exported: Exported, out: TextIO, counts: Counter[str]) -> None:
        if file.role == "collection":
            for passage_id, title, text in exported.passages():
                whole = self._line(join_passage(title, text), f"passage {passage_id!r}")
                out.write(f"{plain_id(passage_id)}\t{whole}\n")
                counts["passages"] += 1
            return
        for question in exported.questions(file.split):
            query_id, positives = question.query_id, question.positives
            if file.role == "queries":
                out.write(f"{plain_id(query_id)}\t{self._line(question.text, f'query {query_id!r}')}\n")
                counts["queries"] += 1
                counts[LEFT_OUT + "answers"] += len(question.answers or [])
            elif file.role == "qrels":
                for passage_id, relevance in question.judgments.items():
                    out.write(f"{query_id}\t0\t{passage_id}\t{relevance}\n")
                    counts["positives" if relevance > 0 else "judged not relevant"] += 1
            elif not positives:
                counts[LEFT_OUT + "negatives of queries without a positive"] += len(question.negatives)
            else:
                for at, negative in enumerate(question.negatives):
                    out.write(f"{query_id}\t{positives[at % len(positives)]}\t{negative.passage_id}\n")
                    counts["negatives"] += 1

    def _line(self, text: str, what: str) -> str:
        return to_single_line(text, what, self.fold_whitespace, tabs_too=True)
