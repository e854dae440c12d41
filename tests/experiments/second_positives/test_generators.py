"""Second positives: new cuts, answer passages and renamed code, true and not copies."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from experiments.second_positives.answers import find_answers
from experiments.second_positives.judged import Judged, Passage, read_judged
from experiments.second_positives.recut import CONTEXT_WORDS, neighbour_ids, recut
from experiments.second_positives.renamed import rename_positives, rename_variables
from raydr.data.corpus import hash_content
from raydr.data.schema import to_table
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
    return {one: PASSAGES[one] for one in passage_ids if one in PASSAGES}


def tables(rows: list[tuple[str, str, list[str] | None]]) -> tuple[pa.Table, pa.Table]:
    queries = [{"query_id": query, "text": "which", "answers": answers} for query, _, answers in rows]
    return to_table("queries", queries), to_table(
        "qrels", [{"query_id": query, "passage_id": passage} for query, passage, _ in rows]
    )


def judged_of(rows: list[tuple[str, str, list[str] | None]], prefixes: Sequence[str] = ()) -> Judged:
    return read_judged(*tables(rows), "string", prefixes)


def hashes(passages: Sequence[Passage]) -> set[int]:
    titles, texts = [one.title for one in passages], [one.text for one in passages]
    return set(hash_content(pa.array(titles, pa.string()), pa.array(texts, pa.string())).tolist())


def test_a_new_cut_is_shifted_holds_the_answer_and_is_no_copy() -> None:
    judged = judged_of([(f"q{at}", "a#1", [f"a{100 + at}"]) for at in range(0, 100, 7)])
    new, rows = recut(judged, lookup, (30, 50), seed=1)
    assert new
    assert [one.passage_id for one in new] == sorted({row.passage_id for row in rows})
    texts = {one.passage_id: one.text.split() for one in new}
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
    assert {one.title for one in new} == {"First"}
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
        found = {(row.query_id, row.passage_id) for row in rows}
        texts = {one.passage_id: one.text for one in new}
        if "a#1+30" in texts:
            assert {("q1", "a#1+30"), ("q2", "a#1+30")} <= found
        assert all(judged.matchers[query_id].matches(texts[passage_id]) for query_id, passage_id in found)
        assert "q4" not in {query_id for query_id, _ in found}


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
    assert recut(judged, lambda ids: {one: other[one] for one in ids if one in other}, (30, 50), seed=0) == ([], [])


def test_half_of_a_short_passage_stays() -> None:
    short = {
        "s1": Passage("s1", "T", " ".join(f"w{at}" for at in range(50))),
        "s2": Passage("s2", "T", " ".join(f"w{at}" for at in range(50, 100))),
    }
    judged = judged_of([("q", "s1", ["w45"])])
    find = lambda ids: {one: short[one] for one in ids if one in short}  # noqa: E731
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
    parts = [passage_table(list(PASSAGES.values())[at : at + 3]) for at in (0, 3, 6)]
    answers = find_answers(judged_of([("q", "a#1", ["a205"])]), {"q": "which"}, PASSAGES, parts, 0.0)
    assert answers == find_answers(judged_of([("q", "a#1", ["a205"])]), {"q": "which"}, PASSAGES, parts[::-1], 0.0)
    assert len(answers) == 1


def passage_table(passages: Sequence[Passage]) -> pa.Table:
    rows: list[dict[str, Any]] = [
        {"passage_id": one.passage_id, "title": one.title, "text": one.text} for one in passages
    ]
    return to_table("passages", rows)


def test_answer_passages_are_of_the_article_unjudged_and_no_copies() -> None:
    passages = {
        "g": Passage("g", "Paris", "the tower was built in 1889 and opened to the public then"),
        "copy": Passage("copy", "Paris", "The tower  was built in 1889 and opened to the public then"),
        "yes": Passage("yes", "Paris", "opened in 1889 to the public"),
        "chance": Passage("chance", "Paris", "the 1889 elections"),
        "cut": Passage("cut", "Paris", "tower was built in 1889 and opened to the public"),
        "no": Passage("no", "Paris", "opened in 1890"),
        "judged": Passage("judged", "Paris", "1889 hotels"),
        "elsewhere": Passage("elsewhere", "Rome", "in 1889"),
    }
    queries, qrels = tables([("q", "g", ["1889"])])
    qrels = pa.concat_tables([qrels, to_table("qrels", [{"query_id": "q", "passage_id": "judged", "relevance": 0}])])
    judged = read_judged(queries, qrels, "string", [])
    parts = [passage_table(list(passages.values()))]
    rows = find_answers(judged, {"q": "when was it opened to the public"}, passages, parts, min_overlap=0.5)
    assert [(row.passage_id, row.made, row.made_from, row.shift) for row in rows] == [("yes", "answer", ("g",), None)]


def test_queries_whose_answers_do_not_count_get_none() -> None:
    judged = judged_of([("nq1", "a#1", ["a150"]), ("boolq1", "a#1", ["a150"]), ("nq2", "a#1", None)], prefixes=["nq"])
    assert set(judged.matchers) == {"nq1"}
    assert {row.query_id for row in recut(judged, lookup, (30, 50), seed=0)[1]} == {"nq1"}


CODE = """
import os
def walk(root, depth=2):
    # all files
    found = []
    for folder, _, files in os.walk(root):
        found.extend(os.path.join(folder, name) for name in files)
    self.found = sort(found, key=len, depth=depth)
    return found
"""


def test_renamed_code_is_the_same_program() -> None:
    made = rename_variables(CODE, ["value", "item", "entry", "result", "data"])
    assert made is not None
    assert "# all files" not in made
    # depth is a keyword of a call, os an import, found an attribute as well as a variable.
    assert "def walk(value, depth=2):" in made
    assert "self.found = sort(item, key=len, depth=depth)" in made
    # Renaming back gives the same tree: the renaming is one to one.
    back = {"value": "root", "item": "found", "entry": "folder", "result": "files", "data": "name"}
    tree = ast.parse(made)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = back.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = back.get(node.arg, node.arg)
    assert ast.dump(tree) == ast.dump(ast.parse(CODE))


def test_renamed_code_computes_the_same() -> None:
    code = (
        "def f(a, b):\n    total = 0\n    for x in range(a):\n        total += (lambda y: y * b)(x)\n    return total"
    )
    made = rename_variables(code, ["value", "item", "entry", "result", "data"])
    assert made is not None
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    exec(code, before)
    exec(made, after)
    assert before["f"](5, 3) == after["f"](5, 3) == 30
    assert set("abx") & set(ast.dump(ast.parse(made)).replace("'", " ").split()) == set()


@pytest.mark.parametrize(
    "code",
    [
        "SELECT a FROM b WHERE c = 1",
        "print 'old'",
        "return_value = 1",  # one name is too little
        "a = 1\nb = 2\nprint('%(a)s' % locals())",
        "import a, b",
        "class A:\n    x = 1\n    y = 2",
        "first = 1\nsecond = frame.query('x > @first and y > @second')",
    ],
)
def test_code_that_cannot_be_renamed_safely_is_left(code: str) -> None:
    assert rename_variables(code, ["value", "item"]) is None


def test_new_names_never_meet_old_ones() -> None:
    made = rename_variables("value = item\nentry = value + result.data", ["value", "item", "entry", "data"])
    assert made == "data = item\nvalue2 = data + result.data"


def test_renamed_code_answers_every_query_of_the_positive() -> None:
    judged = judged_of([("q1", "p", None), ("q2", "p", None), ("q3", "sql", None)])
    golds = {"p": Passage("p", "", "a = 1\nb = a"), "sql": Passage("sql", "", "SELECT 1")}
    new, rows = rename_positives(judged, golds, seed=0)
    assert [one.passage_id for one in new] == ["p~renamed"]
    assert [(row.query_id, row.passage_id, row.made) for row in rows] == [
        ("q1", "p~renamed", "renamed"),
        ("q2", "p~renamed", "renamed"),
    ]
    assert rename_positives(judged, golds, seed=0) == (new, rows)
    assert not hashes(new) & hashes(list(golds.values()))
