"""Second positives: new cuts that are true and no copies, and the folder that a run plants them from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_artefacts import make_corpus, make_dataset
from made_stage import make

from experiments.second_positives import (
    CONTEXT_WORDS,
    Judged,
    Passage,
    neighbour_ids,
    recut,
    write_with_second_positives,
)
from raydr.artefacts.dataset import prepare_corpus, prepare_dataset
from raydr.artefacts.noisy_dataset import inject_noise
from raydr.artefacts.sources import find_sources
from raydr.data.config import DataConfig, NoiseInjectionConfig
from raydr.data.corpus import Corpus, hash_content
from raydr.data.dataset import Dataset
from raydr.data.tables import to_table
from raydr.errors import DataError
from raydr.evaluation.answer_match import AnswerMatcher

NUM_WORDS = 100


def article(title: str, num_passages: int, prefix: str) -> dict[str, Passage]:
    """Passages of 100 different words each: PREFIX0, PREFIX1, ..., in order."""
    return {
        f"{prefix}#{at}": Passage(
            f"{prefix}#{at}", title, " ".join(f"{prefix}{at * NUM_WORDS + word}" for word in range(NUM_WORDS))
        )
        for at in range(num_passages)
    }


PASSAGES = article("First", 4, "a") | article("Second", 3, "b")


def lookup(passage_ids: Sequence[str]) -> Mapping[str, Passage]:
    return {passage_id: PASSAGES[passage_id] for passage_id in passage_ids if passage_id in PASSAGES}


def tables(rows: list[tuple[str, str, list[str] | None]]) -> tuple[pa.Table, pa.Table]:
    queries = [{"query_id": query, "text": "which", "answers": answers} for query, _, answers in rows]
    return to_table("queries", queries), to_table(
        "qrels", [{"query_id": query, "passage_id": passage} for query, passage, _ in rows]
    )


def judged_of(rows: list[tuple[str, str, list[str] | None]], prefixes: Sequence[str] = ()) -> Judged:
    return Judged.read(*tables(rows), prefixes=prefixes)


def hashes(passages: Sequence[Passage]) -> set[int]:
    titles, texts = [passage.title for passage in passages], [passage.text for passage in passages]
    return set(hash_content(pa.array(titles, pa.string()), pa.array(texts, pa.string())).tolist())


def test_a_new_cut_is_shifted_holds_the_answer_and_is_no_copy() -> None:
    judged = judged_of([(f"q{at}", "a#1", [f"a{100 + at}"]) for at in range(0, 100, 7)])
    new, rows = recut(judged, lookup, (30, 50), seed=1)
    assert new
    assert [passage.passage_id for passage in new] == sorted({row.passage_id for row in rows})
    texts = {passage.passage_id: passage.text.split() for passage in new}
    for row in rows:
        words = texts[row.passage_id]
        assert row.shift is not None
        assert 30 <= abs(row.shift) <= 50
        # The article's own words in their own order.
        start = 100 + row.shift
        assert words == [f"a{start + at}" for at in range(NUM_WORDS)]
        assert judged.matchers[row.query_id].matches(" ".join(words))
        assert row.made_from == ("a#1", "a#2" if row.shift > 0 else "a#0")
        assert row.passage_id == f"a#1{row.shift:+d}"
    assert {passage.title for passage in new} == {"First"}
    assert not hashes(new) & hashes(list(PASSAGES.values()))
    # Every query finds a cut that keeps its answer: the first words by shifting back, the last ones by shifting on.
    assert {row.query_id for row in rows} == set(judged.matchers)


def test_the_words_next_to_a_cut_do_not_count_as_the_answer() -> None:
    matcher = AnswerMatcher("q", ["a145"], "string")
    for seed in range(20):
        _, rows = recut(judged_of([("q", "a#1", ["a145"])]), lookup, (40, 40), seed)
        (row,) = rows
        # Shifted on by 40 the answer would be the sixth word of what is kept.
        assert row.shift == -40
        assert matcher.matches(" ".join(PASSAGES["a#1"].text.split()[: 60 - CONTEXT_WORDS]))


def test_queries_of_all_passages_that_gave_words_are_judged() -> None:
    # The end of a#1 and the beginning of a#2: both answers are inside whatever is drawn.
    judged = judged_of([("q1", "a#1", ["a170"]), ("q2", "a#2", ["a205"]), ("q3", "a#2", ["a290"]), ("q4", "a#1", None)])
    for seed in range(10):
        new, rows = recut(judged, lookup, (30, 30), seed)
        pairs = {(row.query_id, row.passage_id) for row in rows}
        texts = {passage.passage_id: passage.text for passage in new}
        if "a#1+30" in texts:
            assert {("q1", "a#1+30"), ("q2", "a#1+30")} <= pairs
        assert all(judged.matchers[query_id].matches(texts[passage_id]) for query_id, passage_id in pairs)
        assert "q4" not in {query_id for query_id, _ in pairs}


@pytest.mark.parametrize(
    ("passage_id", "answer"),
    [
        ("b#0", "b5"),  # no passage before, and on the other side the answer is cut off
        ("a#1", "a260"),  # the answer is not in the positive itself
    ],
)
def test_no_cut_without_the_answer(passage_id: str, answer: str) -> None:
    assert recut(judged_of([("q", passage_id, [answer])]), lookup, (30, 50), seed=0) == ([], [])


def test_passages_of_another_title_are_not_next_to_each_other() -> None:
    other = {"c#0": Passage("c#0", "One", PASSAGES["a#0"].text), "c#1": Passage("c#1", "Two", PASSAGES["a#1"].text)}
    judged = judged_of([("q", "c#0", ["a80"])])
    assert recut(
        judged,
        lambda ids: {passage_id: other[passage_id] for passage_id in ids if passage_id in other},
        (30, 50),
        seed=0,
    ) == ([], [])


def test_half_of_a_short_passage_stays() -> None:
    short = {
        "s1": Passage("s1", "T", " ".join(f"w{at}" for at in range(50))),
        "s2": Passage("s2", "T", " ".join(f"w{at}" for at in range(50, 100))),
    }
    judged = judged_of([("q", "s1", ["w45"])])
    find = lambda ids: {passage_id: short[passage_id] for passage_id in ids if passage_id in short}  # noqa: E731
    assert recut(judged, find, (26, 50), seed=0) == ([], [])
    new, _ = recut(judged, find, (20, 50), seed=0)
    assert len(new[0].text.split()) == 50


def test_ids_that_do_not_count_on_have_no_neighbours() -> None:
    assert neighbour_ids("page", 1) == []


@pytest.mark.invariant
def test_order_of_rows_and_of_parts_changes_nothing_and_the_seed_does() -> None:
    rows = [(f"q{at:02d}", f"a#{at % 4}", [f"a{(at % 4) * 100 + 50 + at}"]) for at in range(30)]
    made = recut(judged_of(rows), lookup, (30, 50), seed=4)
    assert made == recut(judged_of(rows[::-1]), lookup, (30, 50), seed=4)
    assert made != recut(judged_of(rows), lookup, (30, 50), seed=5)
    # What is cut for one query does not depend on the other queries.
    alone = recut(judged_of(rows[7:8]), lookup, (30, 50), seed=4)[1]
    assert set(alone) <= set(made[1])


def test_queries_whose_answers_do_not_count_get_none() -> None:
    judged = judged_of([("nq1", "a#1", ["a150"]), ("boolq1", "a#1", ["a150"]), ("nq2", "a#1", None)], prefixes=["nq"])
    assert set(judged.matchers) == {"nq1"}
    assert {row.query_id for row in recut(judged, lookup, (30, 50), seed=0)[1]} == {"nq1"}


NUM_QUERIES = 12


@pytest.fixture(scope="module")
def made_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Corpus]:
    """An article of three passages a query; the gold is the second, the answer in its middle."""
    folder = tmp_path_factory.mktemp("articles")
    passages = []
    for query in range(NUM_QUERIES):
        words = [f"w{query}x{at}" for at in range(300)]
        passages += [
            {"passage_id": f"d{query}#{at}", "title": f"article {query}", "text": " ".join(words[at * 100 :][:100])}
            for at in range(3)
        ]
    corpus = make_corpus(folder / "corpus", passages, part_rows=10)
    queries = [
        {"query_id": f"q{at}", "text": f"which w{at}x270", "answers": [f"w{at}x150"]} for at in range(NUM_QUERIES)
    ]
    qrels = [{"query_id": f"q{at}", "passage_id": f"d{at}#1"} for at in range(NUM_QUERIES)]
    # The third passage of the first article is a negative of its query: once it is a positive, it is none.
    negatives = [
        {"query_id": "q0", "passage_id": passage_id, "miner": "source", "rank": 1} for passage_id in ("d0#2", "d1#0")
    ]
    tables: dict[str, dict[str, list[dict[str, Any]]]] = {
        "queries": {"train": queries, "dev": queries[:1]},
        "qrels": {"train": qrels, "dev": qrels[:1]},
        "negatives": {"train": negatives},
    }
    return make_dataset(folder / "dataset", corpus, tables), corpus


def rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def qrels(folder: Path, split: str) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in (folder / "qrels" / f"{split}.tsv").read_text().splitlines()[1:]]


def write(data: tuple[Dataset, Corpus], target: Path, seed: int = 3, only: bool = False) -> dict[str, int]:
    judged = Judged.read(data[0].queries("train"), data[0].qrels("train"))
    return write_with_second_positives(data, judged, "train", (30, 50), seed, target, only)


def test_the_folder_is_the_data_with_new_passages_and_judgments(
    made_data: tuple[Dataset, Corpus], tmp_path: Path
) -> None:
    assert write(made_data, tmp_path / "out") == {
        "queries": NUM_QUERIES,
        "queries with answers": NUM_QUERIES,
        "new passages": NUM_QUERIES,
        "second positives": NUM_QUERIES,
        "queries with a second positive": NUM_QUERIES,
    }
    passages = rows(tmp_path / "out" / "corpus.jsonl")
    old = [row["passage_id"] for part in made_data[1].parts() for row in part.to_pylist()]
    assert [row["_id"] for row in passages][: len(old)] == old
    second = rows(tmp_path / "out" / "second_positives.jsonl")
    assert {row["passage_id"] for row in second} == {row["_id"] for row in passages[len(old) :]}
    assert all(row["made_from"][0] == f"d{row['query_id'][1:]}#1" for row in second)
    assert all(30 <= abs(row["shift"]) <= 50 for row in second)
    added = {(row["query_id"], row["passage_id"], "1") for row in second}
    assert set(qrels(tmp_path / "out", "train")) == added | {(f"q{at}", f"d{at}#1", "1") for at in range(NUM_QUERIES)}
    assert qrels(tmp_path / "out", "dev") == [("q0", "d0#1", "1")]
    negatives = (tmp_path / "out" / "negatives" / "train.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[1] for line in negatives] == ["d0#2", "d1#0"]


def test_a_run_on_the_folder_plants_all_positives_but_one(made_data: tuple[Dataset, Corpus], tmp_path: Path) -> None:
    write(made_data, tmp_path / "out")
    data = DataConfig.model_validate({"reader": {"name": "beir", "path": str(tmp_path / "out")}})
    how: dict[str, Any] = {"reader": data.reader, "sources": find_sources(data.reader), "data": data}
    corpus = make(tmp_path / "corpus", "corpus", prepare_corpus, **how)
    dataset = make(tmp_path / "dataset", "dataset", prepare_dataset, corpus, **how, seed=3)
    noise = NoiseInjectionConfig(kind="false_negatives", share=0.25)
    noisy = make(tmp_path / "noisy", "dataset", inject_noise, dataset, corpus, settings=noise, split="train", seed=3)
    negatives = Dataset(noisy).negatives("train").to_pylist()
    planted = [row for row in negatives if row["miner"] == "planted"]
    assert {row["passage_id"] for row in negatives if row not in planted} == {"d0#2", "d1#0"}
    assert noisy.info["eligible_queries"] == NUM_QUERIES
    assert len({row["query_id"] for row in planted}) == NUM_QUERIES // 4
    assert {row["noise"] for row in planted} == {"false_negative"}
    # Each of two positives is a judgment or planted.
    assert len(planted) == NUM_QUERIES // 4
    assert len(planted) + len(Dataset(noisy).qrels("train")) == 2 * NUM_QUERIES


def test_queries_without_a_second_positive_are_left_out_on_request(
    made_data: tuple[Dataset, Corpus], tmp_path: Path
) -> None:
    judged = Judged.read(made_data[0].queries("train"), made_data[0].qrels("train"))
    judged = replace(judged, matchers={query_id: judged.matchers[query_id] for query_id in ("q1", "q2")})
    for only, num_queries in {True: 2, False: NUM_QUERIES}.items():
        target = tmp_path / str(only)
        write_with_second_positives(made_data, judged, "train", (30, 50), 3, target, only)
        assert len({row[0] for row in qrels(target, "train")}) == num_queries
        assert qrels(target, "dev") == [("q0", "d0#1", "1")]


def test_new_passages_depend_on_the_seed(made_data: tuple[Dataset, Corpus], tmp_path: Path) -> None:
    for name, seed in {"a": 3, "b": 3, "c": 4}.items():
        write(made_data, tmp_path / name, seed)
    texts = {name: (tmp_path / name / "corpus.jsonl").read_text() for name in "abc"}
    assert texts["a"] == texts["b"] != texts["c"]


def test_what_does_not_fit_is_refused(made_data: tuple[Dataset, Corpus], tmp_path: Path) -> None:
    dataset = made_data[0]
    unanswered = Judged.read(dataset.queries("train"), dataset.qrels("train"), prefixes=["none"])
    with pytest.raises(DataError, match="no second positive could be made"):
        write_with_second_positives(made_data, unanswered, "train", (30, 50), 0, tmp_path / "none")
    write(made_data, tmp_path / "out")
    with pytest.raises(DataError, match="exists already"):
        write(made_data, tmp_path / "out")
    # Second positives are not made of second positives: the new passages have the ids that would be given.
    extended = [{"passage_id": row.pop("_id"), **row} for row in rows(tmp_path / "out" / "corpus.jsonl")]
    extended_corpus = make_corpus(tmp_path / "corpus", extended)
    with pytest.raises(DataError, match="was prepared with corpus"):
        write((dataset, extended_corpus), tmp_path / "new")
    tables = {
        name: {"train": table.to_pylist()}
        for name, table in (("queries", dataset.queries("train")), ("qrels", dataset.qrels("train")))
    }
    again = make_dataset(tmp_path / "dataset", extended_corpus, tables)
    with pytest.raises(DataError, match="ids that the corpus .* has already"):
        write((again, extended_corpus), tmp_path / "new")
