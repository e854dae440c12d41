"""What happens between a reader's rows and the finished tables, without Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

from raydr.artefacts.dataset import finish_corpus
from raydr.data.corpus import Corpus
from raydr.data.examples import load_examples
from raydr.data.lookup import Unfinished
from raydr.data.readers.base import Reader, Row, Source
from raydr.data.rows import BadRows
from raydr.data.splits import SplitPlan, finish_split
from raydr.data.staging import STAGING, Finished, SourceRecord, StagedSource, stage_source
from raydr.data.tables import read_arrow
from raydr.distributed.pool import Pool, ThisProcess
from raydr.store.artifact import Artifact
from raydr.store.building import PLAN, begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity

ROWS: dict[str, list[Row]] = {}


class ListReader(Reader):
    """Rows from a list in memory. Its name has no default, so that no config can choose it."""

    name: str

    def sources(self) -> list[Source]:
        return [Source(path, "list") for path in ROWS]

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        yield from ROWS[source.path]


class RepeatingReader(ListReader):
    passages_repeat: ClassVar[bool] = True


def passage(line: int, passage_id: str, text: str, title: str = "") -> Row:
    return Row("passages", "", {"passage_id": passage_id, "title": title, "text": text}, line)


def query(line: int, query_id: str, text: str = "text", split: str = "train") -> Row:
    return Row("queries", split, {"query_id": query_id, "text": text}, line)


def judged(line: int, query_id: str, passage_id: str, relevance: int = 1) -> Row:
    return Row("qrels", "train", {"query_id": query_id, "passage_id": passage_id, "relevance": relevance}, line)


def negative(line: int, query_id: str, passage_id: str, rank: int = 1) -> Row:
    values = {"query_id": query_id, "passage_id": passage_id, "miner": "source:hard", "rank": rank}
    return Row("negatives", "train", values, line)


class Prepared:
    """The steps of ``prepare`` in this process."""

    def __init__(self, root: Path, reader: Reader, part_rows: int = 3) -> None:
        self.corpus, self.dataset = Folder(str(root / "corpus")), Folder(str(root / "dataset"))
        self.reader, self.part_rows = reader, part_rows
        self.corpus.write_json(PLAN, Identity(kind="corpus").model_dump(mode="json"))
        self.read = 0
        self.records: list[SourceRecord | None] = []
        for at, source in enumerate(reader.sources()):
            passages = StagedSource(reader, source, at, f"s{at}", self.corpus, "corpus", part_rows)
            self.read += sum(stage_source(passages))
            others = replace(passages, folder=self.dataset, target="dataset")
            list(stage_source(others))
            self.records.append(others.record())

    def finish(self, range_rows: int = 4, pool: Pool | None = None) -> Finished:
        with begin(self.corpus, Identity(kind="corpus")) as making:
            assert not isinstance(making, Artifact)
            parts = {name: part for name, part in making.done.items() if name.startswith("passages/")}
            corpus = Unfinished.of(self.corpus, parts, group_rows=2, range_rows=range_rows)
            check = finish_corpus(pool or ThisProcess(), corpus, parts, self.reader.passages_repeat, {"s0": "/in/a"})
            making.done.clear()
            making.done.update(check.parts)
            making.finish({"num_bad": check.num_bad})
        return check

    def split(self, max_queries: int | None = None, skip_own_id: bool = False) -> Finished:
        staged: dict[Any, list[str]] = {}
        for name in self.dataset.files("staging"):
            if name.endswith(".arrow"):
                staged.setdefault(name.split("/")[1], []).append(name)
        plan = SplitPlan(
            split="train", staged=staged, queries_repeat=self.reader.passages_repeat, max_queries=max_queries, seed=0,
            part_rows=self.part_rows, held_out=(), leave_out_leaked=False, skip_own_id=skip_own_id,
            paths={"s0": "/in/a"},
        )  # fmt: skip
        return finish_split(plan, self.dataset, Corpus.open(self.corpus))


@pytest.fixture(autouse=True)
def _no_rows() -> Iterator[None]:
    ROWS.clear()
    yield
    ROWS.clear()


def test_parts_have_the_asked_number_of_rows_and_their_place(tmp_path: Path) -> None:
    ROWS["/in/a"] = [passage(at, f"p{at}", f"text {at}") for at in range(1, 8)]
    prepared = Prepared(tmp_path, ListReader(name="list"))
    prepared.finish()
    corpus = Corpus.open(prepared.corpus)
    assert prepared.read == 7
    assert [len(table) for table in corpus.parts()] == [3, 3, 1]
    assert corpus.part(1).to_pylist()[0] == {
        "passage_id": "p4", "title": "", "text": "text 4", "source": "s0", "line": 4,
    }  # fmt: skip
    assert corpus.rows_of(["p7", "p1"]).tolist() == [6, 0]
    assert corpus.find(["p0", "p5"]).tolist() == [-1, 4]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (passage(3, "p", "  \n"), "empty text of passage 'p'"),
        (query(3, "q", ""), "empty text of query 'q'"),
        (passage(3, "", "text"), "empty passage_id"),
        (passage(3, "p", "half \ud800"), "'text' holds half of a surrogate pair, which is not valid Unicode"),
        (
            Row("queries", "train", {"query_id": "q", "text": "t", "answers": ["a", "\ud83d"]}, 3),
            "'answers' holds half of a surrogate pair, which is not valid Unicode",
        ),
        (query(3, "q", split="a/b"), "'a/b' is no name for a split: expected letters, digits and . _ -"),
    ],
)
def test_rows_that_cannot_be_used_are_kept_with_their_reason(tmp_path: Path, row: Row, reason: str) -> None:
    ROWS["/in/a"] = [row]
    prepared = Prepared(tmp_path, ListReader(name="list"))
    record = prepared.records[0]
    assert record is not None
    assert [str(bad_row) for bad_row in record.examples] == [f"/in/a:3: {reason}"]
    assert reason.replace('"', "'") in prepared.dataset.open(f"{STAGING}/bad-0000-00000.jsonl").read().decode()


def test_a_duplicate_id_is_a_bad_row_that_names_both_places(tmp_path: Path) -> None:
    ROWS["/in/a"] = [passage(1, "x", "a"), passage(2, "y", "b"), passage(3, "x", "A "), passage(4, "x", "c")]
    ROWS["/in/b"] = [passage(9, "y", "b")]
    check = Prepared(tmp_path, ListReader(name="list"), part_rows=2).finish()
    assert check.counts["passages"] == 2
    assert check.num_bad == 3
    assert [str(row) for row in check.examples] == [
        "/in/a:3: duplicate passage id 'x', first at /in/a:1",
        "/in/a:4: duplicate passage id 'x', first at /in/a:1 with another text",
        "s1:9: duplicate passage id 'y', first at /in/a:2",
    ]
    corpus = Corpus.open(str(tmp_path / "corpus"))
    assert corpus.ids(np.arange(2)) == ["x", "y"]
    assert corpus.rows_of(["x", "y"]).tolist() == [0, 1]


def test_rows_are_found_again_after_duplicates_were_dropped(tmp_path: Path) -> None:
    ids = [f"p{at % 7}" for at in range(20)] + [f"z{at}" for at in range(5)]
    ROWS["/in/a"] = [passage(at, passage_id, f"text {passage_id}") for at, passage_id in enumerate(ids, start=1)]
    check = Prepared(tmp_path, ListReader(name="list")).finish()
    corpus = Corpus.open(str(tmp_path / "corpus"))
    unique = list(dict.fromkeys(ids))
    assert len(corpus) == check.counts["passages"] == len(unique)
    assert corpus.rows_of(unique).tolist() == list(range(len(unique)))
    hashes = corpus.content_hashes(np.arange(len(unique)))
    assert len(set(hashes.tolist())) == len(unique)
    corpus.artifact.verify()


@pytest.mark.invariant
def test_a_corpus_is_the_same_however_many_ranges_its_hashes_are_compared_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = [f"p{number}" for number in rng.integers(40, size=90)]
    ROWS["/in/a"] = [passage(at, passage_id, f"text {at % 2}") for at, passage_id in enumerate(ids, start=1)]
    contents = []
    for range_rows in (6, 20, 1000):
        check = Prepared(tmp_path / str(range_rows), ListReader(name="list")).finish(range_rows)
        corpus = Corpus.open(str(tmp_path / str(range_rows) / "corpus"))
        names = corpus.artifact.parts("lookup/hashes")
        assert len(names) == {6: 16, 20: 8, 1000: 1}[range_rows]
        hashes = pa.concat_tables([read_arrow(corpus.artifact.local(name)) for name in names])
        others = {name: part.checksum for name, part in corpus.artifact.manifest.parts.items() if name not in names}
        contents.append((hashes.to_pydict(), others, check.counts, check.examples))
    assert contents[0] == contents[1] == contents[2]
    assert contents[0][0]["id_hash"] == sorted(contents[0][0]["id_hash"])


@pytest.mark.invariant
def test_a_task_that_was_lost_in_the_middle_of_the_end_is_done_again(tmp_path: Path) -> None:
    """Its parts were shortened before it was lost: they are not shortened again."""

    class Losing(ThisProcess):
        def map(self, function: Any, calls: Any, *arguments: Any, **options: Any) -> list[Any]:
            super().map(function, calls, *arguments, **options)
            return super().map(function, calls, *arguments, **options)

    ids = [f"p{at % 7}" for at in range(20)] + ["z"] * 4
    ROWS["/in/a"] = [passage(at, passage_id, "text") for at, passage_id in enumerate(ids, start=1)]
    made = {}
    for pool in (ThisProcess(), Losing()):
        place = tmp_path / type(pool).__name__
        Prepared(place, ListReader(name="list")).finish(pool=pool)
        made[type(pool)] = Artifact.open(str(place / "corpus"), "corpus").manifest.parts
    assert made[Losing] == made[ThisProcess]


def test_colliding_hashes_are_no_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raydr.data.lookup.hash_strings", lambda ids: np.zeros(len(ids), dtype=np.uint64))
    ROWS["/in/a"] = [passage(1, "x", "a"), passage(2, "y", "b"), passage(3, "z", "c"), passage(4, "y", "b")]
    check = Prepared(tmp_path, ListReader(name="list")).finish()
    assert check.counts["passages"] == 3
    assert [row.line for row in check.examples] == [4]


def test_repeated_passages_are_merged_where_they_are_expected(tmp_path: Path) -> None:
    ROWS["/in/a"] = [passage(1, "x", "a"), passage(2, "x", "a"), passage(3, "x", "other")]
    ROWS["/in/b"] = [passage(1, "x", "a"), passage(2, "y", "b"), passage(3, "x", "third")]
    prepared = Prepared(tmp_path, RepeatingReader(name="repeating"))
    check = prepared.finish()
    record = prepared.records[0]
    assert record is not None
    assert [str(row) for row in record.examples] == ["/in/a:3: passage 'x' has another text than at /in/a:1"]
    assert check.counts["merged"] == 1
    assert check.counts["passages"] == 2


def test_judgments_and_negatives_must_name_what_is_there(tmp_path: Path) -> None:
    ROWS["/in/a"] = [
        passage(1, "p", "a"), passage(2, "n", "b"), query(3, "q"), query(4, "q", "changed"),
        judged(5, "q", "p"), judged(6, "q", "p"), judged(7, "q", "p", 2), judged(8, "?", "p"), judged(9, "q", "?"),
        negative(10, "q", "n"), negative(11, "q", "n", 2), negative(12, "q", "?"), negative(13, "?", "n"),
    ]  # fmt: skip
    prepared = Prepared(tmp_path, ListReader(name="list"))
    prepared.finish()
    check = prepared.split()
    assert check.counts == {
        "absent": 1,
        "leaked": 0,
        "own_passages": 0,
        "queries": 1, "judgments": 1, "positives": 1, "negatives": 1, "merged": 2, "left_out": 0,
        "queries_without_positive": 0,
    }  # fmt: skip
    assert check.num_bad == 6
    bad = prepared.dataset.open(f"{STAGING}/bad-split-train.jsonl").read().decode()
    assert [str(row) for row in check.examples] == [
        "/in/a:4: duplicate query id 'q', first at /in/a:3 with another text or other answers",
        "/in/a:7: judgment 2 of query 'q' and passage 'p' differs from 1 at /in/a:5",
        "/in/a:8: unknown query id '?': no such query in split train",
        "/in/a:9: unknown passage id '?': no such passage in the corpus",
        "/in/a:12: unknown passage id '?': no such passage in the corpus",
    ]
    assert bad.count("\n") == 6


def test_what_is_judged_not_relevant_is_a_negative_too(tmp_path: Path) -> None:
    ROWS["/in/a"] = [
        *(passage(at, f"p{at}", f"text {at}") for at in range(1, 6)), query(6, "q"), query(7, "r"),
        judged(8, "q", "p1"), judged(9, "q", "p2", 0), judged(10, "q", "p3", -1), judged(11, "r", "p4", 0),
        negative(12, "q", "p5"), negative(13, "q", "p3", 2),
    ]  # fmt: skip
    prepared = Prepared(tmp_path, ListReader(name="list"))
    prepared.finish()
    check = prepared.split()
    parts = sorted(name for name in check.parts if name.startswith("negatives/"))
    rows = [row for name in parts for row in read_arrow(prepared.dataset.localize(name)).to_pylist()]
    expected = [("q", "p5", 1), ("q", "p3", 2), ("q", "p2", 1), ("r", "p4", 1)]
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in rows] == expected
    assert {row["miner"] for row in rows} == {"source:hard"}
    assert (check.counts["negatives"], check.counts["judgments"], check.num_bad) == (4, 4, 0)


@pytest.mark.invariant
def test_a_positive_of_the_same_query_under_another_id_is_no_negative(tmp_path: Path) -> None:
    """Files with an id for each row repeat a query, with another positive each time."""
    ROWS["/in/a"] = [
        *(passage(at, f"p{at}", f"text {at}") for at in range(1, 5)),
        query(5, "q", "who  is"), query(6, "r", "Who is"), query(7, "s", "other"),
        judged(8, "q", "p1"), judged(9, "r", "p2"), judged(10, "s", "p3"), negative(11, "q", "p2"),
    ]  # fmt: skip
    prepared = Prepared(tmp_path, ListReader(name="list"))
    prepared.finish()
    parts = prepared.split().parts
    tables = {
        table: pa.concat_tables(read_arrow(prepared.dataset.localize(name)) for name in parts if name.startswith(table))
        for table in ("queries", "qrels", "negatives", "dropped")
    }
    pairs = [(row["query_id"], row["passage_id"]) for row in tables["dropped"].to_pylist()]
    assert pairs == [("q", "p2"), ("r", "p1")]
    negatives = pa.concat_tables([tables["negatives"], tables["dropped"]])
    examples = load_examples(tables["queries"], tables["qrels"], negatives, Corpus.open(prepared.corpus))
    assert not len(examples.negatives.values)
    assert [len(examples.forbidden[at]) for at in range(3)] == [2, 2, 1]


def test_a_subset_keeps_the_judgments_of_its_queries_alone(tmp_path: Path) -> None:
    ROWS["/in/a"] = [passage(1, "p", "a"), passage(2, "n", "b")]
    for at in range(20):
        ROWS["/in/a"] += [query(at, f"q{at}"), judged(at, f"q{at}", "p", at % 2), negative(at, f"q{at}", "n")]
    prepared = Prepared(tmp_path, ListReader(name="list"))
    prepared.finish()
    check = prepared.split(max_queries=5)
    assert check.num_bad == 0
    assert check.counts["queries"] == check.counts["judgments"] == 5
    assert check.counts["negatives"] == 5 + check.counts["judgments"] - check.counts["positives"]
    assert check.counts["left_out"] == 30
    assert check.counts["queries_without_positive"] == 5 - check.counts["positives"]
    tables = [read_arrow(prepared.dataset.path(name)) for name in sorted(check.parts)]
    assert len({frozenset(t.column("query_id").to_pylist()) for t in tables if len(t) == 5}) == 1


def test_a_query_that_is_a_passage_is_neither_judged_with_itself_nor_a_negative_of_itself(tmp_path: Path) -> None:
    ROWS["/in/a"] = [
        *(passage(at, f"p{at}", f"text {at}") for at in (1, 2, 3)),
        query(4, "p1"), judged(5, "p1", "p2"), judged(6, "p1", "p1"), negative(7, "p1", "p1"), negative(8, "p1", "p3"),
    ]  # fmt: skip
    prepared = Prepared(tmp_path, ListReader(name="list"))
    prepared.finish()
    made = prepared.split(skip_own_id=True)
    assert made.num_bad == 1
    assert "judged with itself" in str(made.examples[0])
    tables = {
        table: [row["passage_id"] for name in made.parts if name.startswith(table) for row in rows_of(prepared, name)]
        for table in ("qrels", "negatives", "dropped")
    }
    assert tables == {"qrels": ["p2"], "negatives": ["p3"], "dropped": ["p1"]}


def rows_of(prepared: Prepared, name: str) -> list[dict[str, Any]]:
    return read_arrow(prepared.dataset.localize(name)).to_pylist()
