"""Convert the files of nokia/codesearch (StaQC, SO-DS) to a BEIR folder, which raydr reads.

    python jobs/codesearch_to_beir.py --snippets so-ds-feb20.jsonl.gz --dev so-ds-feb20-valid-pacsv1.jsonl.gz \\
        --test so-ds-feb20-test.jsonl.gz --output /mnt/raydr/data/so-ds

Each snippet is a passage, and its description is a training query. Dev and test queries list the ids of their
snippets. A query with a missing snippet ends the program.
"""

from __future__ import annotations

import gzip
import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def convert(snippets: Path, splits: dict[str, Path], output: Path) -> dict[str, int]:
    """Write corpus.jsonl, queries.jsonl and qrels; return the number of rows of each.

    Raises:
        ValueError: a query names a snippet that is not in the collection.
    """
    (output / "qrels").mkdir(parents=True, exist_ok=True)
    known: set[str] = set()
    queries: list[tuple[str, str]] = []
    judged: dict[str, list[tuple[str, str]]] = {"train": []}
    with open(output / "corpus.jsonl", "w", encoding="utf-8") as corpus:
        for snippet in read_lines(snippets):
            passage_id = str(snippet["id"])
            known.add(passage_id)
            corpus.write(json.dumps({"_id": passage_id, "title": "", "text": snippet["code"]}) + "\n")
            if snippet.get("description"):
                queries.append((f"train-{passage_id}", snippet["description"]))
                judged["train"].append((f"train-{passage_id}", passage_id))
    for split, path in splits.items():
        judged[split] = []
        for number, row in enumerate(read_lines(path)):
            query_id = f"{split}-{number}"
            queries.append((query_id, row["query"]))
            for passage_id in map(str, row["relevant_ids"]):
                if passage_id not in known:
                    raise ValueError(f"{path}:{number + 1}: there is no snippet {passage_id!r} in {snippets}")
                judged[split].append((query_id, passage_id))
    with open(output / "queries.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"_id": query_id, "text": text}) + "\n" for query_id, text in queries)
    for split, pairs in judged.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"{query_id}\t{passage_id}\t1" for query_id, passage_id in pairs)]
        (output / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {"passages": len(known), **{f"{split} judgments": len(pairs) for split, pairs in judged.items()}}


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    for name, what in (
        ("snippets", "the collection"),
        ("dev", "dev queries"),
        ("test", "test queries"),
        ("output", "folder"),
    ):
        parser.add_argument(f"--{name}", type=Path, required=True, help=what)
    arguments = parser.parse_args()
    try:
        counts = convert(arguments.snippets, {"dev": arguments.dev, "test": arguments.test}, arguments.output)
    except (OSError, KeyError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(", ".join(f"{count:,} {what}" for what, count in counts.items()), f"-> {arguments.output}")


if __name__ == "__main__":
    main()
