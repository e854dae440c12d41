"""Write a small part of a BEIR folder as a BEIR folder: the queries of some kinds, and whole articles.

Query ids with a common prefix are of a kind; passages whose ids agree up to the last ``#`` form an article. The part
keeps all articles with judgments of these queries, and random articles until there are enough passages. Neighbouring
passages of an article therefore stay together.

    python -m experiments.beir_part ../shared/data/openqa-wiki work/data/openqa-answers --prefixes nq,sq --passages 8000
"""

from __future__ import annotations

import argparse
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from experiments.arguments import command
from experiments.beir_files import read_qrels, read_rows, write_qrels, write_rows
from raydr.console import say
from raydr.errors import DataError
from raydr.seeding import stable_hash64


def article_of(passage_id: str) -> str:
    """
    >>> article_of("AA_wiki_00_10#3")
    'AA_wiki_00_10'
    """
    return passage_id.rsplit("#", 1)[0]


def choose_articles(sizes: Counter[str], needed: set[str], num_passages: int, seed: int) -> set[str]:
    """Return the needed articles, and others in an order given by seed and names, until there are enough passages.

    >>> sorted(choose_articles(Counter({"a": 2, "b": 3, "c": 4}), {"b"}, 3, seed=0))
    ['b']
    """
    chosen, total = set(needed), sum(sizes[name] for name in needed)
    for article in sorted(set(sizes) - needed, key=lambda name: (stable_hash64("article", seed, name), name)):
        if total >= num_passages:
            break
        chosen.add(article)
        total += sizes[article]
    return chosen


def write_part(source: Path, target: Path, prefixes: Sequence[str], num_passages: int, seed: int) -> dict[str, int]:
    """Write the part; return its numbers of queries, by split, and of passages.

    Raises:
        DataError: no query id begins with a prefix, or the target exists.
    """
    if target.exists():
        raise DataError(f"{target} exists already: remove it, or choose another folder")
    kinds = tuple(prefixes)
    qrels = {split: [row for row in rows if row[0].startswith(kinds)] for split, rows in read_qrels(source).items()}
    sizes = Counter(article_of(row["_id"]) for row in read_rows(source, "corpus"))
    needed = {article_of(passage_id) for rows in qrels.values() for _, passage_id, _ in rows}
    if not needed:
        raise DataError(f"no judged query of {source} has an id that begins with one of {', '.join(prefixes)}")
    articles = choose_articles(sizes, needed, num_passages, seed)
    unfinished = target.with_name(f"{target.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)
    for split, rows in qrels.items():
        write_qrels(unfinished, split, rows)
    kept = {query_id for rows in qrels.values() for query_id, _, _ in rows}
    passages = (row for row in read_rows(source, "corpus") if article_of(row["_id"]) in articles)
    num_kept = write_rows(unfinished, "corpus", passages)
    for name in ("queries", "answers"):
        if name == "queries" or (source / f"{name}.jsonl").exists():
            write_rows(unfinished, name, (row for row in read_rows(source, name) if row["_id"] in kept))
    unfinished.rename(target)
    return {**{split: len({row[0] for row in rows}) for split, rows in qrels.items()}, "passages": num_kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--prefixes", required=True, help="comma-separated prefixes of query ids")
    parser.add_argument("--passages", type=int, required=True, help="minimal number of passages to keep")
    parser.add_argument("--seed", type=int, default=13)
    arguments = parser.parse_args()
    prefixes = arguments.prefixes.split(",")
    counts = write_part(arguments.source, arguments.target, prefixes, arguments.passages, arguments.seed)
    say(f"{arguments.target}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items()))


if __name__ == "__main__":
    command(main)
