"""What each format writes, without Ray; the round trip is in tests/artefacts/test_export.py."""

from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from made_artefacts import make_corpus, make_dataset

from raydr.component import build
from raydr.data.readers.base import Reader
from raydr.data.recognition import recognise
from raydr.data.rows import BadRows
from raydr.data.tables import to_table, write_arrow
from raydr.data.writers.base import LEFT_OUT, Exported, Writer, to_single_line
from raydr.errors import ConfigError, DataError
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import write_part
from raydr.store.identity import Identity

TEXTS = {"a": "alpha", "b": 'beta "quoted"', "c": "gamma", "d": "delta", "e": "epsilon", "f": "phi"}


def negative(query_id: str, passage_id: str, rank: int, **more: Any) -> dict[str, Any]:
    return {"query_id": query_id, "passage_id": passage_id, "miner": "source:hard", "rank": rank, **more}


@pytest.fixture
def exported(tmp_path: Path) -> Exported:
    """q1 has positives a, b and judged non-relevant c; q2 has none; the judged negatives hold each action."""
    corpus = make_corpus(
        tmp_path / "corpus",
        [{"passage_id": passage_id, "title": passage_id.upper(), "text": TEXTS[passage_id]} for passage_id in TEXTS],
        part_rows=4,
    )
    queries = [
        {"query_id": "q1", "text": "first", "answers": ["x", "y"]},
        {"query_id": "q2", "text": "second", "answers": None},
    ]
    qrels = [
        {"query_id": "q1", "passage_id": passage_id, "relevance": relevance}
        for passage_id, relevance in (("b", 1), ("a", 2), ("c", 0))
    ]
    own = [negative("q1", "e", 2), negative("q1", "f", 1), negative("q2", "a", 1, miner="source:random")]
    dataset = make_dataset(
        tmp_path / "dataset",
        corpus,
        {"queries": {"train": queries}, "qrels": {"train": qrels}, "negatives": {"train": own}},
    )
    mined = [
        negative("q1", "c", 9, miner="ann", score=0.5, action="down_weight"),
        negative("q1", "d", 3, miner="ann", score=0.75),
        negative("q1", "e", 1, miner="ann", action="drop"),
        negative("q1", "a", 2, miner="ann"),
        negative("q2", "f", 1, miner="ann", action="relabel"),
    ]
    return Exported(corpus, dataset, make_negatives(tmp_path / "negatives", mined))


def make_negatives(path: Path, rows: list[dict[str, Any]]) -> Artifact:
    with begin(str(path), Identity(kind="negatives")) as making:
        assert isinstance(making, Building)
        table, name = to_table("negatives", rows), "negatives/train/part-00000.arrow"
        making.record(name, write_part(making.folder, name, len(table), lambda out: write_arrow(table, out)))
        return making.finish()


def write_all(writer: Writer, exported: Exported) -> tuple[dict[str, str], Counter[str]]:
    texts, counts = {}, Counter[str]()
    for file in writer.files(exported):
        out = io.StringIO()
        writer.write(file, exported, out, counts)
        texts[file.name] = out.getvalue()
    return texts, counts


def test_actions_decide_what_is_exported(exported: Exported) -> None:
    first, second = exported.questions("train")
    # Mined ones before the data set's own, each by rank; a is a positive, e was dropped.
    assert [(negative.passage_id, negative.miner) for negative in first.negatives] == [
        ("d", "ann"),
        ("c", "ann"),
        ("f", "source:hard"),
    ]
    assert first.judgments == {"b": 1, "a": 2, "c": 0}
    assert second.positives == ["f"]
    assert [negative.passage_id for negative in second.negatives] == ["a"]


def test_without_mined_negatives_the_own_ones_are_exported(exported: Exported) -> None:
    first, second = Exported(exported.corpus, exported.dataset, None).questions("train")
    assert [negative.passage_id for negative in first.negatives] == ["f", "e"]
    assert second.positives == []


def test_copies_of_positives_are_no_negatives_and_random_ones_come_last(tmp_path: Path) -> None:
    """As in training: what is the same text is the same passage."""
    texts = {"a": "Paris is the capital.", "copy": "paris is  the capital.", "n": "near", "d": "dropped",
             "twin": "Dropped", "r": "random"}  # fmt: skip
    corpus = make_corpus(
        tmp_path / "corpus",
        [{"passage_id": passage_id, "title": "", "text": texts[passage_id]} for passage_id in texts],
    )
    own = [
        negative("q", "r", 1, miner="source:random"),
        negative("q", "copy", 1),
        negative("q", "n", 2),
        negative("q", "d", 3, action="drop"),
        negative("q", "twin", 4),
    ]
    tables = {"queries": {"train": [{"query_id": "q", "text": "capital", "answers": None}]},
              "qrels": {"train": [{"query_id": "q", "passage_id": "a", "relevance": 1}]},
              "negatives": {"train": own}}  # fmt: skip
    [question] = Exported(corpus, make_dataset(tmp_path / "dataset", corpus, tables), None).questions("train")
    assert [negative.passage_id for negative in question.negatives] == ["n", "r"]


def test_dpr(exported: Exported) -> None:
    texts, counts = write_all(build(Writer, "dpr"), exported)
    assert texts["psgs.tsv"].splitlines()[:3] == ["id\ttext\ttitle", "a\talpha\tA", 'b\t"beta ""quoted"""\tB']
    first, second = json.loads(texts["train.json"])
    assert first["q_id"] == "q1"
    assert first["answers"] == ["x", "y"]
    assert first["positive_ctxs"][1] == {"title": "A", "text": "alpha", "passage_id": "a"}
    assert first["hard_negative_ctxs"][0] == {"title": "D", "text": "delta", "passage_id": "d", "score": 0.75}
    assert first["negative_ctxs"] == []
    assert "answers" not in second
    assert [passage["passage_id"] for passage in second["negative_ctxs"]] == ["a"]
    assert counts == {
        "passages": 6,
        "queries": 2,
        "positives": 3,
        "negatives": 4,
        "left out: judged not relevant": 1,
    }


def test_beir(exported: Exported) -> None:
    texts, counts = write_all(build(Writer, "beir"), exported)
    assert len(texts["corpus.jsonl"].splitlines()) == 6
    assert json.loads(texts["queries.jsonl"].splitlines()[0]) == {
        "_id": "q1",
        "text": "first",
        "metadata": {"answers": ["x", "y"]},
    }
    assert texts["qrels/train.tsv"].splitlines() == [
        "query-id\tcorpus-id\tscore",
        "q1\tb\t1",
        "q1\ta\t2",
        "q1\tc\t0",
        "q2\tf\t1",
    ]
    assert texts["negatives/train.tsv"].splitlines()[1] == "q1\td\t0.75\tann"
    assert counts["negatives"] == 4


def test_an_export_to_beir_is_read_again_with_its_negatives(exported: Exported, tmp_path: Path) -> None:
    own, counts = write_all(build(Writer, "beir"), Exported(exported.corpus, exported.dataset, None))
    assert "q2" not in own["negatives/train.tsv"]
    assert counts[f"{LEFT_OUT}negatives of queries without a judgment"] == 1
    texts, _ = write_all(build(Writer, "beir"), exported)
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    reader = build(Reader, recognise(str(tmp_path)).reader)
    rows = []
    for source in reader.sources():
        bad = BadRows(source.path)
        rows += [row.values for row in reader.read(source, bad) if row.table == "negatives"]
        assert not bad.count
    columns = ("query_id", "passage_id", "miner", "rank", "score")
    expected = [
        (question.query_id, negative.passage_id, negative.miner, rank, negative.score)
        for question in exported.questions("train")
        for rank, negative in enumerate(question.negatives, start=1)
    ]
    assert [tuple(row[column] for column in columns) for row in rows] == expected


def test_positives_without_a_row_are_counted(tmp_path: Path) -> None:
    """A row of triplets needs a negative, and there may be fewer of them than positives."""
    passages = [{"passage_id": passage_id, "title": "", "text": passage_id} for passage_id in "abcn"]
    corpus = make_corpus(tmp_path / "corpus", passages)
    tables = {"queries": {"train": [{"query_id": "q", "text": "first", "answers": None}]},
              "qrels": {"train": [{"query_id": "q", "passage_id": passage_id, "relevance": 1} for passage_id in "abc"]},
              "negatives": {"train": [negative("q", "n", 1)]}}  # fmt: skip
    data = make_dataset(tmp_path / "dataset", corpus, tables)
    _, counts = write_all(build(Writer, "sentence-transformers"), Exported(corpus, data, None))
    assert (counts["rows"], counts[f"{LEFT_OUT}positives"]) == (1, 2)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"shape": "triplets"},
            [
                {"anchor": "first", "positive": 'B beta "quoted"', "negative": "D delta"},
                {"anchor": "first", "positive": "A alpha", "negative": "C gamma"},
                {"anchor": "first", "positive": 'B beta "quoted"', "negative": "F phi"},
                {"anchor": "second", "positive": "F phi", "negative": "A alpha"},
            ],
        ),
        (
            {"shape": "lists", "num_negatives": 2},
            [
                {"anchor": "first", "positive": positive, "negative_1": "D delta", "negative_2": "C gamma"}
                for positive in ('B beta "quoted"', "A alpha")
            ],
        ),
        (
            {"shape": "pairs"},
            [
                *({"anchor": "first", "positive": positive} for positive in ('B beta "quoted"', "A alpha")),
                {"anchor": "second", "positive": "F phi"},
            ],
        ),
        (
            {"shape": "labelled"},
            [
                *({"anchor": "first", "passage": passage, "label": 0} for passage in ("D delta", "C gamma", "F phi")),
                *({"anchor": "first", "passage": passage, "label": 1} for passage in ('B beta "quoted"', "A alpha")),
                {"anchor": "second", "passage": "A alpha", "label": 0},
                {"anchor": "second", "passage": "F phi", "label": 1},
            ],
        ),
    ],
    ids=["triplets", "lists", "pairs", "labelled"],
)
def test_sentence_transformers_rows_are_read_again(
    exported: Exported, tmp_path: Path, settings: dict[str, Any], expected: list[dict[str, Any]]
) -> None:
    texts, counts = write_all(build(Writer, {"name": "sentence-transformers", **settings}), exported)
    assert [json.loads(line) for line in texts["train.jsonl"].splitlines()] == expected
    assert counts["rows"] == len(expected)
    assert counts[f"{LEFT_OUT}queries without enough positives or negatives"] == (settings["shape"] == "lists")
    (tmp_path / "train.jsonl").write_text(texts["train.jsonl"])
    # A person's next command: raydr prepare train.jsonl
    recognised = recognise(str(tmp_path / "train.jsonl"))
    [source] = build(Reader, recognised.reader).sources()
    bad = BadRows(source.path)
    assert list(build(Reader, recognised.reader).read(source, bad))
    assert not bad.count


def test_triples_take_the_positives_in_turn(exported: Exported) -> None:
    texts, _ = write_all(build(Writer, "triples"), exported)
    assert texts["collection.tsv"].splitlines()[0] == "a\tA alpha"
    assert texts["triples.train.tsv"].splitlines() == ["q1\tb\td", "q1\ta\tc", "q1\tb\tf", "q2\tf\ta"]
    assert texts["qrels.train.tsv"].splitlines()[0] == "q1\t0\tb\t1"


@pytest.mark.parametrize("name", ["dpr", "triples"])
def test_line_breaks_are_refused_or_folded(name: str, tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "a\r\n\nb"}])
    dataset = make_dataset(tmp_path / "dataset", corpus, {"queries": {"train": [{"query_id": "q", "text": "x"}]}})
    exported = Exported(corpus, dataset, None)
    with pytest.raises(DataError, match=r"passage 'p' has a line break.*fold_whitespace"):
        write_all(build(Writer, name), exported)
    texts, _ = write_all(build(Writer, {"name": name, "fold_whitespace": True}), exported)
    assert any(text.splitlines()[-1].startswith("p\ta b") for text in texts.values() if text)


def test_tabs_are_allowed_where_fields_are_quoted() -> None:
    assert to_single_line("a\tb", "x", fold=False, tabs_too=False) == "a\tb"
    with pytest.raises(DataError, match="has a tab"):
        to_single_line("a\tb", "x", fold=False, tabs_too=True)


def test_ids_with_white_space_are_refused(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [{"passage_id": "p 1", "title": "", "text": "a"}])
    dataset = make_dataset(tmp_path / "dataset", corpus, {"queries": {"train": [{"query_id": "q", "text": "x"}]}})
    with pytest.raises(DataError, match="the id 'p 1' has white space"):
        write_all(build(Writer, "triples"), Exported(corpus, dataset, None))


def test_one_query_id_with_two_texts_does_not_fit_into_beir(tmp_path: Path) -> None:
    corpus = make_corpus(tmp_path / "corpus", [{"passage_id": "p", "title": "", "text": "a"}])
    queries = {split: [{"query_id": "q", "text": split}] for split in ("dev", "train")}
    exported = Exported(corpus, make_dataset(tmp_path / "dataset", corpus, {"queries": queries}), None)
    with pytest.raises(DataError, match="'q' has another text or other answers in split train than in dev"):
        write_all(build(Writer, "beir"), exported)


def test_an_unknown_format_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="beir, dpr, sentence-transformers, triples"):
        build(Writer, "parquet")
