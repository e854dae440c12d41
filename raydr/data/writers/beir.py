"""BEIR folders: corpus.jsonl, queries.jsonl, one qrels file a split, and negatives beside them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Literal, TextIO

from raydr.data.writers.base import LEFT_OUT, Exported, OutputFile, Writer, plain_id
from raydr.errors import DataError


class BeirWriter(Writer):
    """A BEIR data set, answers in ``metadata.answers``.

    BEIR has no place for hard negatives: ``negatives/SPLIT.tsv`` (query-id, corpus-id, score, miner; best first) is an
    addition that BEIR's own loader does not look at. Queries without a judgment belong to no split there.
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
