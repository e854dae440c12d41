from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_artefacts import make_corpus, make_dataset

from raydr.data import examples as module
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import Examples, Ragged, load_examples, read_examples
from raydr.data.tables import to_table


def test_the_annotated_positive_comes_before_relabelled_ones(tiny_data: tuple[str, str]) -> None:
    """Whatever their ids: ``train.positive: first`` takes what people have annotated."""
    corpus, data = Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])
    queries, qrels, negatives = data.queries("train"), data.qrels("train"), data.negatives("train")
    judged = dict(zip(qrels["query_id"].to_pylist(), qrels["passage_id"].to_pylist(), strict=True))
    earlier = [
        passage_id < judged[query_id]
        for query_id, passage_id in zip(
            negatives["query_id"].to_pylist(), negatives["passage_id"].to_pylist(), strict=True
        )
    ]
    assert any(earlier)
    actions = pc.if_else(pa.array(earlier), "relabel", negatives["action"].combine_chunks().cast(pa.string()))
    at = negatives.column_names.index("action")
    examples = load_examples(queries, qrels, negatives.set_column(at, "action", actions), corpus)
    firsts = corpus.ids(np.array([examples.positives[at][0] for at in range(len(examples))]))
    assert list(firsts) == [judged[query_id] for query_id in examples.query_ids]
    assert max(len(examples.positives[at]) for at in range(len(examples))) > 1


def test_random_passages_come_after_hard_ones_and_each_candidate_once(tiny_data: tuple[str, str]) -> None:
    """A data set's two lists of negatives both begin with rank 1."""
    corpus, data = Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])
    lists = {"source:random": ["p101", "p102", "p103"], "source:hard": ["p111", "p102", "p113"]}
    rows = [
        {"query_id": "q00", "passage_id": passage_id, "miner": miner, "rank": rank, "score": float(rank)}
        for miner, ids in lists.items()
        for rank, passage_id in enumerate(ids, start=1)
    ]
    examples = load_examples(data.queries("train"), data.qrels("train"), to_table("negatives", rows), corpus)
    assert corpus.ids(examples.negatives[0]) == ["p111", "p102", "p113", "p101", "p103"]
    assert examples.scores[0].tolist() == [1.0, 2.0, 3.0, 1.0, 3.0]


def test_only_what_was_judged_relevant_is_a_positive(tiny_data: tuple[str, str]) -> None:
    corpus, data = Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])
    qrels = to_table(
        "qrels",
        [
            {"query_id": "q00", "passage_id": "p000", "relevance": 1},
            {"query_id": "q00", "passage_id": "p001", "relevance": 0},
            {"query_id": "q01", "passage_id": "p001", "relevance": 0},
        ],
    )
    examples = load_examples(data.queries("train"), qrels, to_table("negatives", []), corpus)
    assert examples.query_ids == ["q00"]
    assert corpus.ids(examples.positives[0]) == ["p000"]


@pytest.mark.invariant
def test_neither_positives_nor_what_was_dropped_nor_copies_of_them_are_candidates(tmp_path: Path) -> None:
    texts = {"right": "the answer", "copy": "The  Answer", "dropped": "wrong", "same": "WRONG", "other": "else"}
    corpus = make_corpus(
        tmp_path, [{"passage_id": passage_id, "title": "", "text": text} for passage_id, text in texts.items()]
    )
    queries = to_table("queries", [{"query_id": "q", "text": "what"}])
    qrels = to_table("qrels", [{"query_id": "q", "passage_id": "right"}])
    rows = [
        {"query_id": "q", "passage_id": passage_id, "miner": "bm25", "rank": rank, "action": "drop"}
        if passage_id == "dropped"
        else {"query_id": "q", "passage_id": passage_id, "miner": "bm25", "rank": rank}
        for rank, passage_id in enumerate(texts, start=1)
    ]
    examples = load_examples(queries, qrels, to_table("negatives", rows), corpus)
    assert corpus.ids(examples.negatives[0]) == ["other"]
    contents = corpus.content_hashes(corpus.rows_of(["right", "dropped"])).view(np.int64)
    assert sorted(examples.forbidden[0].tolist()) == sorted(contents.tolist())


def contents(examples: Examples) -> dict[str, object]:
    """All that examples hold, in types and values that compare."""

    def plain(value: object) -> object:
        if isinstance(value, Ragged):
            return plain(value.values), plain(value.offsets)
        if isinstance(value, np.ndarray):
            return value.dtype, value.tobytes()
        if isinstance(value, dict):
            return {name: (plain(pool.firsts), plain(pool.offsets)) for name, pool in value.items()}
        return value

    return {name: plain(value) for name, value in vars(examples).items()}


@pytest.mark.invariant
@pytest.mark.parametrize("split", ["train", "dev"])
def test_processes_of_a_node_map_the_same_examples_that_are_joined_once(
    split: str, tiny_data: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    corpus, data = Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])
    alone = read_examples(data, split, None, corpus, "own", shared=False)
    first = read_examples(data, split, None, corpus, "own", shared=True)
    monkeypatch.setattr(module, "load_examples", None)
    second = read_examples(data, split, None, corpus, "own", shared=True)
    assert contents(first) == contents(second) == contents(alone)
    # Mapped: the kernel holds the pages once for all processes.
    assert not second.negatives.values.flags.owndata
    assert not second.negatives.values.flags.writeable


def test_examples_of_other_data_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there are no candidates at all."""
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))
    corpus = make_corpus(
        tmp_path / "corpus", [{"passage_id": f"p{at}", "title": "", "text": f"{at}"} for at in range(3)]
    )
    for right in ("p0", "p1"):
        tables = {
            "queries": {"train": [{"query_id": "q", "text": "what"}]},
            "qrels": {"train": [{"query_id": "q", "passage_id": right}]},
        }
        data = make_dataset(tmp_path / right, corpus, tables)
        examples = read_examples(data, "train", None, corpus, "own", shared=True)
        assert corpus.ids(examples.positives[0]) == [right]
        assert not len(examples.negatives.values)
