"""Triples as MS MARCO has them: collection, queries, qrels and (query, positive, negative), all tab-separated."""

from __future__ import annotations

from collections import Counter
from typing import Literal, TextIO

from raydr.data.writers.base import LEFT_OUT, Exported, OutputFile, Writer, plain_id, to_single_line, with_title


class TriplesWriter(Writer):
    """MS MARCO's files: ``collection.tsv``, and ``queries``, ``qrels`` and ``triples`` named ``.SPLIT.tsv``.

    Each negative stands in one triple of ids, beside the query's positives in turn. A collection has no titles: they
    are put in front of the text. Answers have no place in it, nor have negatives of queries without a positive.
    """

    name: Literal["triples"] = "triples"
    fold_whitespace: bool = False
    """Write spaces in place of line breaks and tabs; else a text with one is an error."""

    def files(self, exported: Exported) -> list[OutputFile]:
        files = [OutputFile("collection.tsv", "collection")]
        for split in exported.splits:
            roles = ["queries", "qrels", *(["triples"] if exported.has_negatives(split) else [])]
            files.extend(OutputFile(f"{role}.{split}.tsv", role, split) for role in roles)
        return files

    def write(self, file: OutputFile, exported: Exported, out: TextIO, counts: Counter[str]) -> None:
        if file.role == "collection":
            for passage_id, title, text in exported.passages():
                whole = self._line(with_title(title, text), f"passage {passage_id!r}")
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
