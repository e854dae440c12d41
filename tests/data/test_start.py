"""How soon a training on an object store has what its first step needs."""

from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from latency import counted_rounds
from made_artefacts import make_corpus, make_dataset

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import load_examples
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

#: Requests that may be on the way at a time.
AT_A_TIME = 32
NUM_PASSAGES = 1280


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A corpus of 640 parts, and a data set whose candidates are spread over all of them."""
    bucket = Folder(f"memory://{tmp_path_factory.mktemp('start').name}")
    passages = [{"passage_id": f"p{at}", "title": "", "text": f"text {at}"} for at in range(NUM_PASSAGES)]
    corpus = make_corpus(bucket / "corpus", passages, part_rows=2)
    tables = {
        "queries": {"train": [{"query_id": f"q{at}", "text": f"query {at}"} for at in range(64)]},
        "qrels": {"train": [{"query_id": f"q{at}", "passage_id": f"p{at * 20}"} for at in range(64)]},
        "negatives": {
            "train": [
                {"query_id": f"q{at // 20}", "passage_id": f"p{at}", "miner": "bm25", "rank": at % 20}
                for at in range(NUM_PASSAGES)
                if at % 20
            ]
        },
    }
    make_dataset(bucket / "dataset", corpus, tables)
    return bucket


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDR_CACHE", str(tmp_path / "cache"))


def begin_training(bucket: Folder) -> list[str]:
    """What a rank reads until its first step: the examples, and the texts of a batch from everywhere."""
    corpus, dataset = Corpus.open(bucket / "corpus"), Dataset.open(bucket / "dataset")
    examples = load_examples(*dataset.training_tables("train"), corpus)
    rows = np.concatenate([examples.positives.values, examples.negatives.values])
    corpus.content_hashes(rows)
    return corpus.texts(rows).texts


@pytest.mark.invariant
@pytest.mark.usefixtures("cache")
def test_a_training_starts_within_the_time_of_a_parallel_fetch(bucket: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted_rounds(monkeypatch) as store:
        texts = begin_training(bucket)
    assert sorted(texts) == sorted(f"text {at}" for at in range(NUM_PASSAGES))
    assert len(store.files) > 640
    assert store.rounds <= 1.2 * math.ceil(len(store.files) / AT_A_TIME)


@pytest.mark.usefixtures("cache")
def test_the_next_rank_of_a_node_asks_for_manifests_alone(bucket: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_training(bucket)
    with counted_rounds(monkeypatch) as store:
        begin_training(bucket)
    assert (store.rounds, {path.rpartition("/")[2] for path in store.files}) == (2, {"manifest.json"})


@pytest.mark.usefixtures("cache")
def test_ids_are_found_without_a_text(bucket: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with counted_rounds(monkeypatch) as store:
        corpus = Corpus.open(bucket / "corpus")
        rows = corpus.find(["p7", "nobody", "p0"])
        assert corpus.ids(rows[rows >= 0]) == ["p7", "p0"]
    assert not any("/passages/" in path for path in store.files)


@pytest.mark.usefixtures("cache")
def test_a_process_opens_what_its_tasks_are_given_once(bucket: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every task of 40 that cut a corpus into tokens read its manifest, and the model's, again."""
    sent = [
        pickle.dumps(source)
        for source in (Artifact.open(bucket / "dataset", "dataset"), Corpus.open(bucket / "corpus"))
    ]
    with counted_rounds(monkeypatch) as store:
        tasks = [[pickle.loads(pickled) for pickled in sent] for _ in range(40)]
    assert store.rounds == 2
    assert all(opened is first for task in tasks for opened, first in zip(task, tasks[0], strict=True))
