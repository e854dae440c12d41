"""The stage inject_noise: what is copied, what changes, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from artefacts import make_corpus

from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import ConfigError, DataError
from raydr.stages.inject_noise import inject_noise
from raydr.store.folder import Folder

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local")]


def config_with(**noise: object) -> RunConfig:
    reader = {"name": "beir", "path": "/data"}
    return RunConfig.parse({"seed": 3, "data": {"reader": reader}, "inject_noise": noise or None})


def test_only_the_judgments_of_the_training_split_change(tiny_data: tuple[str, str], tmp_path: Path) -> None:
    corpus, dataset = (Folder(path) for path in tiny_data)
    made = inject_noise(config_with(share=0.25), dataset, corpus, Folder(str(tmp_path / "noisy")))
    assert made.info == {
        "noise": "mismatched",
        "share": 0.25,
        "split": "train",
        "eligible_queries": 40,
        "noisy_queries": 10,
        "noisy_rows": 10,
    }
    clean, noisy = Dataset.open(dataset), Dataset(made)
    assert noisy.splits == clean.splits
    for split in clean.splits:
        assert noisy.queries(split).equals(clean.queries(split))
        assert noisy.negatives(split).equals(clean.negatives(split))
    assert noisy.qrels("dev").equals(clean.qrels("dev"))
    rows = noisy.qrels("train").to_pylist()
    assert sum(row["noise"] == "mismatched" for row in rows) == 10
    restored = [row["original_passage_id"] or row["passage_id"] for row in rows]
    assert restored == clean.qrels("train")["passage_id"].to_pylist()
    # Every new passage is in the corpus, and the artefact is whole.
    Corpus.open(corpus).rows_of(noisy.qrels("train")["passage_id"].to_pylist())
    made.verify()
    assert noisy.corpus_fingerprint == clean.corpus_fingerprint


def test_share_0_is_a_copy_with_its_own_fingerprint(tiny_data: tuple[str, str], tmp_path: Path) -> None:
    corpus, dataset = (Folder(path) for path in tiny_data)
    made = inject_noise(config_with(share=0), dataset, corpus, Folder(str(tmp_path / "copy")))
    assert Dataset(made).qrels("train").equals(Dataset.open(dataset).qrels("train"))
    assert made.fingerprint != Dataset.open(dataset).fingerprint


def test_the_same_request_is_reused(tiny_data: tuple[str, str], tmp_path: Path) -> None:
    corpus, dataset = (Folder(path) for path in tiny_data)
    output = Folder(str(tmp_path / "noisy"))
    first = inject_noise(config_with(share=0.5), dataset, corpus, output)
    before = (tmp_path / "noisy" / "manifest.json").stat().st_mtime_ns
    assert inject_noise(config_with(share=0.5), dataset, corpus, output).fingerprint == first.fingerprint
    assert (tmp_path / "noisy" / "manifest.json").stat().st_mtime_ns == before


def test_queries_with_one_positive_give_no_false_negatives(tiny_data: tuple[str, str], tmp_path: Path) -> None:
    corpus, dataset = (Folder(path) for path in tiny_data)
    with pytest.raises(DataError, match="several positives"):
        inject_noise(config_with(kind="false_negatives"), dataset, corpus, Folder(str(tmp_path / "noisy")))


def test_another_corpus_is_refused(tiny_data: tuple[str, str], tmp_path: Path) -> None:
    other = make_corpus(tmp_path / "other", [{"passage_id": "p", "title": "", "text": "one"}])
    with pytest.raises(DataError, match="was prepared with corpus"):
        inject_noise(config_with(share=0.5), Folder(tiny_data[1]), other.artifact.folder, Folder(str(tmp_path / "x")))


def test_the_config_must_say_which_noise(tiny_data: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inject_noise"):
        inject_noise(config_with(), Folder(tiny_data[1]), Folder(tiny_data[0]), Folder(str(tmp_path / "x")))
