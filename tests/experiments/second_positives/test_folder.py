"""The folder with second positives: what it holds, and that a run plants them from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from artefacts import make_corpus, make_dataset
from made_stage import make

from experiments.second_positives.folder import Settings, write_with_second_positives
from raydr.data.config import DataConfig, NoiseInjectionConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import DataError
from raydr.stages.inject_noise import inject_noise
from raydr.stages.prepare import prepare_corpus, prepare_dataset
from raydr.stages.sources import find_sources

NUM_QUERIES = 12
BOTH = Settings(("recut", "answer"), "train", seed=3)


@pytest.fixture(scope="module")
def made_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Corpus]:
    """An article of three passages a query; the gold is the second, the answer in its middle and in the third."""
    folder = tmp_path_factory.mktemp("articles")
    passages = []
    for query in range(NUM_QUERIES):
        words = [f"w{query}x{at}" for at in range(300)]
        words[250] = words[150]
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
    negatives = [{"query_id": "q0", "passage_id": one, "miner": "source", "rank": 1} for one in ("d0#2", "d1#0")]
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


def test_the_folder_is_the_data_with_new_passages_and_judgments(
    made_data: tuple[Dataset, Corpus], tmp_path: Path
) -> None:
    counts = write_with_second_positives(*made_data, BOTH, tmp_path / "out")
    assert counts == {
        "queries": NUM_QUERIES,
        "queries with answers": NUM_QUERIES,
        "new passages": NUM_QUERIES,
        "second positives": 2 * NUM_QUERIES,
        "queries with a second positive": NUM_QUERIES,
        "second positives by recut": NUM_QUERIES,
        "second positives by answer": NUM_QUERIES,
    }
    passages = rows(tmp_path / "out" / "corpus.jsonl")
    old = [row["passage_id"] for part in made_data[1].parts() for row in part.to_pylist()]
    assert [row["_id"] for row in passages][: len(old)] == old
    second = rows(tmp_path / "out" / "second_positives.jsonl")
    assert {row["passage_id"] for row in second if row["made"] == "recut"} == {
        row["_id"] for row in passages[len(old) :]
    }
    assert all(row["made_from"][0] == f"d{row['query_id'][1:]}#1" for row in second)
    assert [row["shift"] is None for row in second] == [row["made"] == "answer" for row in second]
    added = {(row["query_id"], row["passage_id"], "1") for row in second}
    assert set(qrels(tmp_path / "out", "train")) == added | {(f"q{at}", f"d{at}#1", "1") for at in range(NUM_QUERIES)}
    assert qrels(tmp_path / "out", "dev") == [("q0", "d0#1", "1")]
    negatives = (tmp_path / "out" / "negatives" / "train.tsv").read_text().splitlines()[1:]
    assert [line.split("\t")[1] for line in negatives] == ["d1#0"]


def test_a_run_on_the_folder_plants_all_positives_but_one(made_data: tuple[Dataset, Corpus], tmp_path: Path) -> None:
    write_with_second_positives(*made_data, BOTH, tmp_path / "out")
    data = DataConfig.model_validate({"reader": {"name": "beir", "path": str(tmp_path / "out")}})
    how: dict[str, Any] = {"reader": data.reader, "sources": find_sources(data.reader), "data": data}
    corpus = make(tmp_path / "corpus", "corpus", prepare_corpus, **how)
    dataset = make(tmp_path / "dataset", "dataset", prepare_dataset, corpus, **how, seed=3)
    noise = NoiseInjectionConfig(kind="false_negatives", share=0.25)
    noisy = make(tmp_path / "noisy", "dataset", inject_noise, dataset, corpus, settings=noise, split="train", seed=3)
    planted = Dataset(noisy).negatives("train").to_pylist()
    assert noisy.info["eligible_queries"] == NUM_QUERIES
    assert len({row["query_id"] for row in planted}) == NUM_QUERIES // 4
    assert {(row["miner"], row["noise"]) for row in planted} == {("planted", "false_negative")}
    # Each of three positives is a judgment or planted.
    assert len(planted) == 2 * NUM_QUERIES // 4
    assert len(planted) + len(Dataset(noisy).qrels("train")) == 3 * NUM_QUERIES


def test_new_passages_depend_on_the_seed(made_data: tuple[Dataset, Corpus], tmp_path: Path) -> None:
    for name, seed in {"a": 3, "b": 3, "c": 4}.items():
        write_with_second_positives(*made_data, Settings(("recut",), "train", seed), tmp_path / name)
    texts = {name: (tmp_path / name / "corpus.jsonl").read_text() for name in "abc"}
    assert texts["a"] == texts["b"] != texts["c"]


def test_what_does_not_fit_is_refused(made_data: tuple[Dataset, Corpus], tmp_path: Path) -> None:
    dataset, corpus = made_data
    with pytest.raises(DataError, match="no second positive could be made"):
        write_with_second_positives(dataset, corpus, Settings(("renamed",), "train", seed=0), tmp_path / "none")
    write_with_second_positives(dataset, corpus, BOTH, tmp_path / "out")
    with pytest.raises(DataError, match="is there already"):
        write_with_second_positives(dataset, corpus, BOTH, tmp_path / "out")
    # Second positives are not made of second positives: the new passages have the ids that would be given.
    extended = [{"passage_id": row.pop("_id"), **row} for row in rows(tmp_path / "out" / "corpus.jsonl")]
    extended_corpus = make_corpus(tmp_path / "corpus", extended)
    with pytest.raises(DataError, match="was prepared with corpus"):
        write_with_second_positives(dataset, extended_corpus, BOTH, tmp_path / "new")
    tables = {
        name: {"train": table.to_pylist()}
        for name, table in (("queries", dataset.queries("train")), ("qrels", dataset.qrels("train")))
    }
    again = make_dataset(tmp_path / "dataset", extended_corpus, tables)
    with pytest.raises(DataError, match="ids that the corpus .* has already"):
        write_with_second_positives(again, extended_corpus, BOTH, tmp_path / "new")
