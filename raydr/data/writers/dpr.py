"""DPR's files: a passages TSV like psgs_w100.tsv, and one biencoder JSON a split."""

from __future__ import annotations

import csv
import json
from collections import Counter
from typing import Any, Literal, TextIO

from raydr.data.schema import RANDOM_MINER
from raydr.data.writers.base import LEFT_OUT, Exported, Negative, OutputFile, Question, Writer, to_single_line


class DprWriter(Writer):
    """Data for facebookresearch/DPR and the trainers that read its format.

    ``psgs.tsv`` holds the corpus, ``SPLIT.json`` the queries with the texts of their positives and negatives, hardest
    first. Judgments of relevance 0 have no place in it, nor have grades: every positive counts the same.
    """

    name: Literal["dpr"] = "dpr"
    fold_whitespace: bool = False
    """Write passages with line breaks in one line of the TSV, a space in place of each; else they are an error."""

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
