"""Finding noise in pairs from Python."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import ray
from datasets import ClassLabel, Dataset

import raydr
from api.made_pairs import SMALL, make_pairs
from raydr.artefacts.judged import read_verdicts
from raydr.artefacts.places import Places
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset as StoredDataset
from raydr.data.dataset import query_texts
from raydr.data.pairs import PairColumns, pair_ids
from raydr.data.pairs_in_memory import place_pairs
from raydr.data.recognition import recognise
from raydr.errors import ArtifactError, ConfigError, DataError
from raydr.noise.judges.base import Judge
from raydr.pipeline.judging import Judged
from raydr.pipeline.recipe import Recipe


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def noise(tiny_checkpoint: str, workdir: Path) -> raydr.Noise:
    return raydr.find_noise(make_pairs(), model=tiny_checkpoint, workdir=workdir, settings=SMALL)


def test_every_pair_has_a_probability_and_the_worst_come_first(noise: raydr.Noise) -> None:
    assert list(noise.table.columns) == ["query", "passage", "p_wrong", "flagged", "why"]
    assert set(zip(noise.table["query"], noise.table["passage"], strict=True)) == set(make_pairs())
    assert noise.table["p_wrong"].is_monotonic_decreasing
    assert noise.table["p_wrong"].between(0, 1).all()
    assert noise.share == pytest.approx(noise.table["p_wrong"].mean())
    assert noise.table["why"].str.fullmatch(r"random passages score [\d.]+ (higher|lower)").all()
    assert noise.config.cross_fit.num_epochs == 1
    assert not ray.is_initialized()


def test_the_summary_says_how_much_how_sure_and_what_next(noise: raydr.Noise) -> None:
    words = noise.summary()
    assert f"{noise.share:.0%} of 60 pairs are clearly mismatched; {len(noise.flagged)} are flagged" in words
    # On sets judged by people the estimate is below the truth: it bounds nothing.
    assert "at most" not in words
    assert "Next: raydr." in words


def test_the_command_line_finds_the_same_in_a_file(noise: raydr.Noise, tmp_path: Path) -> None:
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        csv.writer(file).writerows([("query", "positive"), *make_pairs()])
    reader = {"name": "pairs", "path": str(tmp_path), "files": {"train": "pairs.csv"}}
    raw = noise.config.model_dump(mode="json") | {"workdir": str(tmp_path / "w")}
    config = raydr.RunConfig.parse(raw | {"data": raw["data"] | {"reader": reader}})
    raydr.judge(config, ["npc"])
    places = Places.of(config.workdir)
    tables, probability_N = read_verdicts(places.open("verdicts/npc-train", "verdicts"), "train")
    assert probability_N is not None
    ids = pd.concat([table.select(["query_id", "passage_id"]).to_pandas() for table in tables.values()])
    corpus, data = Corpus(places.open("corpus", "corpus")), StoredDataset(places.open("dataset", "dataset"))
    passages = corpus.texts(corpus.rows_of(ids["passage_id"].tolist())).texts
    queries = query_texts(data, "train", ids["query_id"].tolist())
    probability = {(query, passage): p for query, passage, p in zip(queries, passages, probability_N, strict=True)}
    table = noise.table
    expected = {
        (query, passage): p
        for query, passage, p in zip(table["query"], table["passage"], table["p_wrong"], strict=True)
    }
    assert probability == pytest.approx(expected)


@pytest.mark.parametrize(
    "form",
    [
        lambda pairs: [{"query": query, "positive": passage} for query, passage in pairs],
        lambda pairs: pd.DataFrame(pairs, columns=["query", "positive"], index=range(7, 7 + len(pairs))),
        lambda pairs: Dataset.from_dict(
            {"query": [text for text, _ in pairs], "positive": [text for _, text in pairs]}
        ),
        lambda pairs: pa.table(list(zip(*pairs, strict=True)), names=["query", "positive"]),
    ],
)
def test_equal_pairs_in_another_form_are_the_same_artefact(
    form: Any, noise: raydr.Noise, tiny_checkpoint: str, workdir: Path
) -> None:
    pairs = form(make_pairs())
    again = raydr.find_noise(pairs, model=tiny_checkpoint, workdir=workdir, settings=SMALL)
    assert again.verdicts.fingerprint == noise.verdicts.fingerprint
    pd.testing.assert_frame_equal(again.table, noise.table)


def flagging(noise: raydr.Noise, rows: list[int]) -> raydr.Noise:
    """The findings, had these pairs been flagged."""
    wrong = {make_pairs()[at] for at in rows}
    flagged = [pair in wrong for pair in zip(noise.table["query"], noise.table["passage"], strict=True)]
    return replace(noise, table=noise.table.assign(flagged=flagged))


def test_flagged_pairs_leave_whatever_they_are_held_in(noise: raydr.Noise) -> None:
    pairs = make_pairs()
    without = [pair for at, pair in enumerate(pairs) if at not in (0, 5, 59)]
    flagged = flagging(noise, [0, 5, 59])
    assert flagged.drop_from(pairs) == without
    frame = pd.DataFrame(pairs, columns=["question", "passage"]).assign(more=range(60))
    assert flagged.drop_from(frame).to_records(index=False).tolist() == [
        (*pairs[at], at) for at in range(60) if at not in (0, 5, 59)
    ]
    dataset = Dataset.from_dict({"anchor": [text for text, _ in pairs], "positive": [text for _, text in pairs]})
    kept = flagged.drop_from(dataset)
    assert isinstance(kept, Dataset)
    assert list(zip(kept["anchor"], kept["positive"], strict=True)) == without
    table = dataset.with_format("arrow")[:]
    assert flagged.drop_from(table) == kept.with_format("arrow")[:]
    assert flagged.drop_from(pl.DataFrame(table)).rows() == without


def test_rows_of_a_file_are_asked_for_where_a_file_is_passed(noise: raydr.Noise) -> None:
    """What the summary of a file names as the next step leads on."""
    for pairs in ("pairs.csv", Path("pairs.csv"), {"train": make_pairs()}):
        with pytest.raises(DataError, match="rows in memory are expected.*raydr clean FILE"):
            noise.drop_from(pairs)  # type: ignore[arg-type]


def test_rows_with_other_ids_than_those_judged_are_refused(noise: raydr.Noise) -> None:
    """No flag would fit, and each pair would stay."""
    rows = [{"qid": f"q{at}", "query": query, "passage": text} for at, (query, text) in enumerate(make_pairs())]
    for use in (noise.drop_from, noise.trust_of):
        with pytest.raises(DataError, match="none of these pairs was judged: pass the rows"):
            use(rows)


def test_many_rows_are_read_as_when_they_were_judged(noise: raydr.Noise, tmp_path: Path) -> None:
    """Only after many rows does a query come again under another id."""
    rows = [{"id": f"r{at}", "query": f"query {at % 1001}", "passage": f"text {at}"} for at in range(1100)]
    columns = recognise(place_pairs(rows, str(tmp_path))).reader["columns"]
    assert columns["query_id"] == "id"
    judged = replace(noise, pair_ids=[pair_ids(row, "columns", PairColumns(**columns))[0] for row in rows[:60]])
    assert len(replace(judged, table=noise.table.assign(flagged=True)).drop_from(rows)) == 1040


def test_pairs_with_other_splits_have_a_place_of_their_own(tmp_path: Path) -> None:
    """The same rows, first for dev and then for test: a leftover dev split would choose the epoch by the test pairs."""
    pairs = make_pairs()
    dev = place_pairs({"train": pairs[:40], "dev": pairs[40:]}, str(tmp_path))
    test = place_pairs({"test": pairs[40:], "train": pairs[:40]}, str(tmp_path))
    assert (sorted(recognise(dev).splits), sorted(recognise(test).splits)) == (["dev", "train"], ["test", "train"])


def test_of_several_positives_only_the_flagged_ones_leave(noise: raydr.Noise) -> None:
    (query, passage), (_, other) = make_pairs()[:2]
    rows = [{"query": query, "positives": [passage, other]}, {"query": "else", "positives": [passage]}]
    flagged = flagging(noise, [0])
    assert flagged.drop_from(rows) == [{"query": query, "positives": [other]}, rows[1]]
    frame = pd.DataFrame(rows, index=[7, 9]).assign(
        source=pd.Categorical(["web", "log"]), grade=pd.array([None, 2], "Int8")
    )
    kept = flagged.drop_from(frame)
    assert kept["positives"].tolist() == [[other], [passage]]
    pd.testing.assert_frame_equal(kept.drop(columns="positives"), frame.drop(columns="positives"))
    dataset = (
        Dataset.from_list(rows).add_column("source", [0, 1]).cast_column("source", ClassLabel(names=["web", "log"]))
    )
    assert flagged.drop_from(dataset).features == dataset.features
    table = pa.Table.from_pylist(rows).append_column("source", pa.array(["web", "log"]).dictionary_encode())
    assert flagged.drop_from(table).equals(table.set_column(1, "positives", pa.array([[other], [passage]])))
    polars = pl.DataFrame(table).cast({"source": pl.Categorical})
    assert flagged.drop_from(polars).equals(polars.with_columns(pl.Series("positives", [[other], [passage]])))


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], "pairs has no rows"),
        ([("a", "b"), ("c", "")], "pairs, row 1, column 'positive': the text is empty"),
        ([("a", "b"), ("c", None)], "pairs, row 1, column 'positive': the text is empty or missing"),
        ([("a", "b"), ("c", 4)], "pairs, row 1, column 'positive': 4 is of type int"),
        ([("a", "b"), ("c", "\ud800")], "pairs, row 1, column 'positive': .* has half of a surrogate pair"),
        ([("a", object()), ("c", object())], "pairs, row 0, column 'positive': .* no text, number or list"),
        ([("a", "b"), ("c", np.float32("nan"))], "pairs, row 1, column 'positive': the text is empty or missing"),
        (pd.DataFrame([["a", "b"]], columns=["query", "query"]), "pairs has several columns 'query'"),
        (pa.table([["a"], ["b"]], names=["query", "query"]), "pairs has several columns 'query'"),
        ([("a", "b", ["c"]), ("c", "d", [1])], "pairs, column 'negative': the values fit no type of a table"),
        ([{"query": "a", "\ud800": "b"}], "pairs has a column '.ud800'"),
        ([("a", "b", 1), ("c", "d", 0)], r"pairs\[0\] has the number 1 in third place, where a negative is expected"),
        ([("a", "b", np.int64(1)), ("c", "d", np.int64(0))], r"the number np.int64\(1\) in third place"),
        ([("a", "b", None), ("c", "d", np.True_)], r"pairs\[1\] has the number np.True_ in third place"),
        ([["a", "b", "1"], ["c", "d", "0"]], r"pairs\[0\] has the number '1' in third place"),
        ([("a", "b"), "cd"], r"pairs\[1\] is 'cd'; expected a tuple"),
        ([("a", "b"), ("c", "d", "e")], r"pairs\[1\] has 3 values"),
        ([{"query": "a", "positive": "b"}, ("c", "d")], r"pairs\[1\] is a tuple; expected a dict"),
        (
            pd.DataFrame({"query": ["a", "b"], "positive": ["c", float("nan")]}),
            "row 1, column 'positive': the text is empty",
        ),
        ([("a", pd.NA), ("c", "d")], "pairs, row 0, column 'positive': the text is empty or missing"),
        (
            pd.DataFrame({"query": ["a", "b"], "positive": pd.array(["c", None], dtype="string")}),
            "pairs, row 1, column 'positive': the text is empty or missing",
        ),
        (
            pd.DataFrame({"query": ["a", "b"], "passage": ["c", "d"], "label": pd.array([1, None], dtype="Int64")}),
            "^pairs, row 1: 'label' must be a number, found None",
        ),
        (pd.DataFrame({"query": ["a"], "positive": [3]}), "the column 'positive' holds 3, where the positives"),
        # The rows of DataFrame.itertuples() begin with the index.
        ([(0, "a", "b"), (1, "c", "d")], "the column 'query' holds 0, where the queries"),
        (pd.DataFrame({"query": [7], "passage": ["a"], "title": ["b"]}), "the column 'query' holds 7"),
        (pd.DataFrame({"positive": ["a"], "negative": ["b"]}), "none whose name says that it holds the queries"),
        ({}, "pairs has no split; expected a split train"),
        ({"dev": [("a", "b")], "test": [("a", "b")]}, "pairs has the splits dev, test; expected a split train"),
        (pd.DataFrame({"x": ["a"], "y": ["b"], "z": ["c"]}), "pairs has the columns 'x', 'y', 'z'"),
        ({"train": [("a", "b")], "more": [("c", "d")]}, "pairs has a split 'more'"),
        ({"query": ["a"], "passage": ["b"]}, r"pairs has a split 'query'.* give pandas.DataFrame\(pairs\)"),
        (7, "pairs is a int; expected a list of"),
        # What only the reader refuses.
        (
            pd.DataFrame({"query": ["a", "b"], "passage": ["c", "d"], "label": [1, float("nan")]}),
            "^pairs, row 1: 'label' must be a number, found None. Change or leave out the row",
        ),
        ([{"query": "a", "positive": "b", "answers": [1]}] * 2, r"^pairs, row 0: answers must be .* \(2 such rows\)"),
        (
            {"train": [("a", "b")] * 3, "dev": [{"question": "a", "answer": "b"}]},
            r"^pairs\['dev'\], row 0: no 'query' \(it has question, answer\)",
        ),
        # What only the data set as a whole refuses.
        (
            [{"query": "a", "positive": "b", "label": at} for at in range(2)],
            r"pairs, row 1: judgment 1 of query .* differs from 0 at pairs, row 0\n(.|\n)*'max_bad_rows': 1",
        ),
        (
            [{"query": f"q{at}", "positive": f"p{at}", "docid": min(at, 1000)} for at in range(1002)],
            "pairs, row 1001: passage '1000' has another text than at pairs, row 1000",
        ),
        ([{"query": "a", "positive": "b", "split": ["train", ""][at]} for at in range(2)], "row 1, column .split.: "),
        ([{"query": "a", "positive": "b", "split": "foo"}], "pairs has no training split: name a split train"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_row_and_column(pairs: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as raised:
        raydr.find_noise(pairs, workdir=tmp_path)
    assert not {"reader", "parquet", "--set"} & set(re.findall(r"[\w-]+", str(raised.value)))


def test_candidates_that_are_the_positive_but_for_a_word_are_false_negatives(
    tiny_checkpoint: str, tmp_path: Path
) -> None:
    pairs = make_pairs(20)
    candidates = [(pairs[0][0], f"{pairs[0][1]} 1"), (pairs[1][0], pairs[7][1])]
    negatives = raydr.find_false_negatives(
        pairs, candidates, judge="margin", model=tiny_checkpoint, workdir=tmp_path, settings=SMALL
    )
    assert list(negatives.table.columns) == ["query", "passage", "positive", "score", "flagged", "why"]
    assert set(zip(negatives.table["query"], negatives.table["passage"], strict=True)) == set(candidates)
    assert negatives.table["score"].is_monotonic_decreasing
    in_lists = [{"query": query, "passage": [passage]} for query, passage in candidates]
    others = raydr.find_false_negatives(
        pairs, in_lists, judge="margin", model=tiny_checkpoint, workdir=tmp_path, settings=SMALL
    )
    pd.testing.assert_frame_equal(others.table, negatives.table)
    assert f"flags {negatives.flagged.shape[0]} of 2 candidates" in negatives.summary()
    assert "Next: raydr.mine_hard_negatives(pairs, judge='margin') mines" in negatives.summary()
    with pytest.raises(DataError, match="candidates, row 1: the query is not among the pairs: 'who'"):
        raydr.find_false_negatives(pairs, [candidates[0], ("who", "it")], workdir=tmp_path)


def test_own_candidates_leave_the_labels_and_titles_of_the_pairs(tiny_checkpoint: str, tmp_path: Path) -> None:
    rows = [
        {"query": query, "passage": text, "title": f"title {at}", "label": int(at % 2)}
        for at, (query, text) in enumerate(make_pairs(20))
    ]
    rows += [{**row, "passage": f"{row['passage']} too", "label": 1 - row["label"]} for row in rows]
    candidates = [(row["query"], row["passage"]) for row in rows if not row["label"]]
    negatives = raydr.find_false_negatives(
        rows, candidates, judge="margin", model=tiny_checkpoint, workdir=tmp_path, settings=SMALL
    )
    assert set(zip(negatives.table["query"], negatives.table["passage"], strict=True)) == set(candidates)
    positive = {row["query"]: f"{row['title']}\n{row['passage']}" for row in rows if row["label"]}
    assert negatives.table["positive"].tolist() == [positive[query] for query in negatives.table["query"]]
    with pytest.raises(DataError, match="pairs, row 1: 'label' must be a number"):
        raydr.find_false_negatives(pd.DataFrame(rows).assign(label=[1, None] * 20), candidates, workdir=tmp_path)


def test_flags_of_a_weak_model_are_doubted_with_the_share_that_shows_it(
    tiny_checkpoint: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """An untrained checkpoint scores all passages alike."""
    doubtful = raydr.find_false_negatives(
        make_pairs(20), judge="margin", model=tiny_checkpoint, workdir=tmp_path, settings=SMALL
    )
    assert doubtful.share > 0.2
    assert f"it flags {doubtful.share:.0%} of the candidates, more than 20%" in doubtful.reason
    assert f"cannot tell which of {len(doubtful.table)} candidates answer their query: {doubtful.reason}" in (
        doubtful.summary()
    )
    assert f"warning: flags of margin are likely to be false: {doubtful.reason}" in capfd.readouterr().err
    sure = raydr.find_false_negatives(
        make_pairs(20), judge="margin", model=tiny_checkpoint, workdir=tmp_path,
        settings=SMALL | {"judge": {"judges": [{"name": "margin", "margin": -1.0}]}},
    )  # fmt: skip
    assert not sure.reason


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"miner": "x"}, "miner is 'x'; allowed: bm25, model"),
        ({"miner": None}, "miner is None; allowed: bm25, model"),
        *(
            ({"num_negatives": number}, f"num_negatives is {number!r}; expected a whole number from 1")
            for number in (0, -1, 1.5, float("nan"), True, "5", None)
        ),
        ({"num_negatives": 31}, "num_negatives is 31, and num_candidates only 30: raise the latter"),
        ({"judge": "npc"}, "judge is 'npc'; judges of negatives are .*near_duplicate"),
        ({"judge": 5}, "judge is 5; judges of negatives are"),
        ({"settings": [1]}, r"settings is \[1\]; expected a dict of sections"),
        ({"settings": "x"}, "settings is 'x'; expected a dict of sections"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    pairs = make_pairs(20)
    with pytest.raises(ConfigError, match=message):
        raydr.mine_hard_negatives(pairs, workdir=tmp_path, **arguments)
    if "judge" in arguments or "settings" in arguments:
        with pytest.raises(ConfigError, match=message):
            raydr.find_false_negatives(pairs, workdir=tmp_path, **arguments)


def test_pairs_without_candidates_and_a_file_as_workdir_are_refused(tmp_path: Path, tiny_checkpoint: str) -> None:
    arguments: dict[str, Any] = {"model": tiny_checkpoint, "settings": SMALL}
    with pytest.raises(DataError, match="the split train has nothing to judge"):
        raydr.find_false_negatives(make_pairs(20), "source", workdir=tmp_path, **arguments)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="cannot write .*file/pairs/.*: Not a directory"):
        raydr.find_noise(make_pairs(20), workdir=tmp_path / "file", **arguments)


def test_queries_whose_labels_are_all_wrong_get_no_mined_negatives(tmp_path: Path) -> None:
    rows = [{"query": query, "passage": passage, "label": 1} for query, passage in make_pairs(20)]
    rows.append({"query": "a castle by the river", "passage": "queen of the island", "label": 0})
    mined = raydr.mine_hard_negatives(pd.DataFrame(rows), judge=None, workdir=tmp_path, settings=SMALL)
    assert set(mined["query"]) == {row["query"] for row in rows[:-1]}


def test_mined_negatives_obey_all_judges_of_a_chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The second judge reads doubtful verdicts alone: candidates that the first judge surely drops stayed."""
    applied: list[str] = []

    def judged(recipe: Recipe, judges: Sequence[Judge], split: str, miner: str) -> Judged:
        applied.extend(rule.name for rule in judges)
        return Judged(None, None)

    monkeypatch.setattr(Recipe, "judged", judged)
    settings = SMALL | {"judge": {"judges": ["margin", {"name": "classifier", "after": "margin"}]}}
    raydr.mine_hard_negatives(make_pairs(20), judge="classifier", workdir=tmp_path, settings=settings)
    assert applied == ["margin", "classifier"]


def test_mined_negatives_are_no_positives_and_train_as_they_are(tiny_checkpoint: str, tmp_path: Path) -> None:
    pairs = make_pairs(20)
    arguments: dict[str, Any] = {"model": tiny_checkpoint, "workdir": tmp_path, "settings": SMALL}
    mined = raydr.mine_hard_negatives(pairs, num_negatives=2, judge="margin", **arguments)
    every = raydr.mine_hard_negatives(pairs, num_negatives=2, judge=None, **arguments)
    assert list(mined.columns) == ["query", "positive", "negative", "rank"]
    assert mined.groupby("query").size().max() <= 2 == every.groupby("query").size().max()
    assert not set(zip(every["query"], every["negative"], strict=True)) & set(pairs)
    assert set(zip(every["query"], every["positive"], strict=True)) <= set(pairs)


def test_a_caller_may_sort_the_table(noise: raydr.Noise) -> None:
    table = noise.table.assign(flagged=noise.table.index < 10)
    wrong = set(zip(table["query"][:10], table["passage"][:10], strict=True))
    changed = replace(noise, table=table.sort_values("query"))
    assert changed.drop_from(make_pairs()) == [pair for pair in make_pairs() if pair not in wrong]
    rows = pd.DataFrame(make_pairs(), columns=["query", "positive"])
    assert changed.trust_of(rows) == [0.0 if pair in wrong else 1.0 for pair in make_pairs()]
