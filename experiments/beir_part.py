"""A small part of a BEIR folder, as a BEIR folder: the queries of some kinds, and whole articles.

Query ids that begin alike are of one kind, passages whose ids agree up to the last ``#`` are one article. Articles that
the kept queries are judged on stay, and random ones until there are enough passages: what is cut from an article is
still next to the rest of it.

    python -m experiments.beir_part ../shared/data/openqa-wiki work/data/openqa-answers --prefixes nq,sq --passages 8000
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from raydr.errors import DataError
from raydr.runtime.console import say
from raydr.seeding import stable_hash64

Qrels = dict[str, list[tuple[str, str, str]]]


def article_of(passage_id: str) -> str:
    """
    >>> article_of("AA_wiki_00_10#3")
    'AA_wiki_00_10'
    """
    return passage_id.rsplit("#", 1)[0]


def choose_articles(sizes: Counter[str], needed: set[str], num_passages: int, seed: int) -> set[str]:
    """The needed articles, and others in an order that seed and names decide, until there are enough passages.

    >>> sorted(choose_articles(Counter({"a": 2, "b": 3, "c": 4}), {"b"}, 3, seed=0))
    ['b']
    """
    chosen, total = set(needed), sum(sizes[one] for one in needed)
    for article in sorted(set(sizes) - needed, key=lambda one: (stable_hash64("article", seed, one), one)):
        if total >= num_passages:
            break
        chosen.add(article)
        total += sizes[article]
    return chosen


def write_part(source: Path, target: Path, prefixes: Sequence[str], num_passages: int, seed: int) -> dict[str, int]:
    """Write the part; returns its numbers of queries, by split, and of passages.

    Raises:
        DataError: no query id begins with one of the prefixes, or the target is there already.
    """
    if target.exists():
        raise DataError(f"{target} is there already: remove it, or give another folder")
    qrels = _read_qrels(source, tuple(prefixes))
    sizes = Counter(article_of(row["_id"]) for row in _rows(source, "corpus"))
    needed = {article_of(passage_id) for rows in qrels.values() for _, passage_id, _ in rows}
    if not needed:
        raise DataError(f"no judged query of {source} has an id that begins with one of {', '.join(prefixes)}")
    articles = choose_articles(sizes, needed, num_passages, seed)
    unfinished = target.with_name(f"{target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "qrels").mkdir(parents=True)
    for split, rows in qrels.items():
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(row) for row in rows)]
        (unfinished / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    kept = {query_id for rows in qrels.values() for query_id, _, _ in rows}
    num_kept = _copy(source, unfinished, "corpus", lambda row: article_of(row["_id"]) in articles)
    _copy(source, unfinished, "queries", lambda row: row["_id"] in kept)
    if (source / "answers.jsonl").exists():
        _copy(source, unfinished, "answers", lambda row: row["_id"] in kept)
    unfinished.rename(target)
    return {**{split: len({row[0] for row in rows}) for split, rows in qrels.items()}, "passages": num_kept}


def _read_qrels(source: Path, prefixes: tuple[str, ...]) -> Qrels:
    found: Qrels = {}
    for file in sorted((source / "qrels").glob("*.tsv")):
        rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()[1:]]
        found[file.stem] = [(row[0], row[1], row[2]) for row in rows if row[0].startswith(prefixes)]
    return found


def _open(source: Path, name: str) -> TextIO:
    plain = source / f"{name}.jsonl"
    return plain.open(encoding="utf-8") if plain.exists() else gzip.open(f"{plain}.gz", "rt", encoding="utf-8")


def _rows(source: Path, name: str) -> Iterator[dict[str, Any]]:
    with _open(source, name) as lines:
        for line in lines:
            yield json.loads(line)


def _copy(source: Path, target: Path, name: str, keep: Callable[[dict[str, Any]], bool]) -> int:
    """Write the rows that are kept; returns how many."""
    count = 0
    with (target / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for row in _rows(source, name):
            if keep(row):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--prefixes", required=True, help="comma-separated beginnings of query ids")
    parser.add_argument("--passages", type=int, required=True, help="keep at least so many")
    parser.add_argument("--seed", type=int, default=13)
    arguments = parser.parse_args()
    try:
        counts = write_part(
            arguments.source, arguments.target, arguments.prefixes.split(","), arguments.passages, arguments.seed
        )
    except DataError as error:
        parser.error(str(error))
    say(f"{arguments.target}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    main()
