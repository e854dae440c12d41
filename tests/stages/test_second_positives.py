"""Second positives as artefacts: what is made, the extended corpus, and the noisy data set on top of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from artefacts import make_corpus, make_dataset

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.schema import read_arrow
from raydr.errors import ConfigError, DataError
from raydr.stages.inject_noise import inject_noise
from raydr.stages.second_positives import extend_corpus, find_second_positives
from raydr.store.folder import Folder

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local")]

NUM_QUERIES = 12


def config_with(share: float = 0.5, sources: tuple[str, ...] = ("recut", "answer"), seed: int = 3) -> RunConfig:
    return RunConfig.parse(
        {
            "seed": seed,
            "data": {"reader": {"name": "beir", "path": "/data"}},
            "inject_noise": {"kind": "false_negatives", "share": share, "sources": list(sources)},
        }
    )


@pytest.fixture(scope="module")
def made_data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Folder, Folder]:
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
    tables = {"queries": {"train": queries, "dev": queries[:1]}, "qrels": {"train": qrels, "dev": qrels[:1]}}
    dataset = make_dataset(folder / "dataset", corpus, tables)  # type: ignore[arg-type]
    return corpus.artifact.folder, dataset.artifact.folder


def make_all(config: RunConfig, data: tuple[Folder, Folder], root: Path) -> tuple[Folder, Folder, Folder]:
    corpus, dataset = data
    made, extended, noisy = (Folder(str(root / name)) for name in ("made", "corpus", "noisy"))
    find_second_positives(config, dataset, corpus, made)
    extend_corpus(config, corpus, made, extended)
    inject_noise(config, dataset, extended, noisy, second_positives=made)
    return made, extended, noisy


def test_the_extended_corpus_is_the_old_one_and_the_new_passages(
    made_data: tuple[Folder, Folder], tmp_path: Path
) -> None:
    _, extended, noisy = make_all(config_with(), made_data, tmp_path)
    old, new = Corpus.open(made_data[0]), Corpus.open(extended)
    new.artifact.verify()
    num_added = len(new) - len(old)
    assert num_added == NUM_QUERIES == new.artifact.info["num_added"]
    rows = np.arange(len(new))
    assert new.ids(rows)[: len(old)] == old.ids(np.arange(len(old)))
    assert new.rows_of(new.ids(rows)).tolist() == rows.tolist()
    assert len(set(new.content_hashes(rows).tolist())) == len(new)
    assert new.artifact.manifest.identity.inputs["corpus"] == old.fingerprint
    added = read_arrow(new.artifact.local(new.part_names[-1])).to_pylist()
    for row in added:
        kind, _, sources = row["source"].partition(": ")
        assert kind == "recut"
        assert row["passage_id"].startswith(sources.split()[0])
        assert old.find(sources.split()).min() >= 0
    assert Dataset.open(noisy).corpus_fingerprint == new.fingerprint
    table = read_split(Dataset.open(noisy).artifact, "second_positives", "train").to_pylist()
    assert {row["made"] for row in table} == {"recut", "answer"}
    assert all(row["made_from"][0] == f"d{row['query_id'][1:]}#1" for row in table)


def test_every_second_positive_is_planted_or_judged(made_data: tuple[Folder, Folder], tmp_path: Path) -> None:
    _, extended, noisy = make_all(config_with(share=0.25), made_data, tmp_path)
    data = Dataset.open(noisy)
    planted, qrels = data.negatives("train").to_pylist(), data.qrels("train").to_pylist()
    assert {row["miner"] for row in planted} == {"planted:recut", "planted:answer"}
    assert len({row["query_id"] for row in planted}) == data.artifact.info["noisy_queries"] == NUM_QUERIES // 4
    assert len(planted) + len(qrels) == 3 * NUM_QUERIES
    Corpus.open(extended).rows_of([row["passage_id"] for row in planted + qrels])
    assert data.qrels("dev").equals(Dataset.open(made_data[1]).qrels("dev"))


def test_shares_use_the_same_passages_and_seeds_do_not(made_data: tuple[Folder, Folder], tmp_path: Path) -> None:
    corpus, dataset = made_data
    configs = {"a": config_with(share=0.1), "b": config_with(share=0.9), "c": config_with(seed=4)}
    prints = {
        name: find_second_positives(config, dataset, corpus, Folder(str(tmp_path / name))).fingerprint
        for name, config in configs.items()
    }
    assert prints["a"] == prints["b"] != prints["c"]


def test_answers_alone_need_no_new_corpus(made_data: tuple[Folder, Folder], tmp_path: Path) -> None:
    corpus, dataset = made_data
    config, made = config_with(sources=("answer",)), Folder(str(tmp_path / "made"))
    find_second_positives(config, dataset, corpus, made)
    with pytest.raises(DataError, match="added no passages"):
        extend_corpus(config, corpus, made, Folder(str(tmp_path / "corpus")))
    noisy = Dataset(inject_noise(config, dataset, corpus, Folder(str(tmp_path / "noisy")), second_positives=made))
    assert noisy.corpus_fingerprint == Corpus.open(corpus).fingerprint
    assert {row["passage_id"].partition("#")[2] for row in noisy.negatives("train").to_pylist()} == {"2"}


def test_what_does_not_fit_is_refused(made_data: tuple[Folder, Folder], tmp_path: Path) -> None:
    dataset, config = made_data[1], config_with()
    made, extended, noisy = make_all(config, made_data, tmp_path)
    with pytest.raises(ConfigError, match="no second positives were given"):
        inject_noise(config, dataset, extended, Folder(str(tmp_path / "x")))
    with pytest.raises(DataError, match="was prepared with corpus"):
        find_second_positives(config, dataset, extended, Folder(str(tmp_path / "y")))
    with pytest.raises(DataError, match="made for another corpus"):
        extend_corpus(config, extended, made, Folder(str(tmp_path / "z")))
    # An extended corpus is not extended again: its new passages have the ids that would be given.
    with pytest.raises(DataError, match="ids that the corpus .* has already"):
        find_second_positives(config, noisy, extended, Folder(str(tmp_path / "u")))
