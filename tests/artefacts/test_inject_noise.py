"""The stage inject_noise: what is copied, what changes, what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_stage import make

from raydr.artefacts.noisy_dataset import inject_noise
from raydr.data.config import NoiseInjectionConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.errors import DataError
from raydr.store.artifact import Artifact


@pytest.fixture
def data(tiny_data: tuple[str, str]) -> tuple[Artifact, Artifact]:
    """The clean data set and its corpus."""
    corpus, dataset = tiny_data
    return Artifact.open(dataset, "dataset"), Artifact.open(corpus, "corpus")


def noisy(folder: Path, data: tuple[Artifact, Artifact], **noise: object) -> Artifact:
    settings = NoiseInjectionConfig.model_validate(noise)
    return make(folder, "dataset", inject_noise, *data, settings=settings, split="train", seed=3)


def test_only_the_judgments_of_the_training_split_change(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    made = noisy(tmp_path, data, share=0.25)
    assert made.info == {
        "noise": "mismatched",
        "share": 0.25,
        "split": "train",
        "eligible_queries": 40,
        "noisy_queries": 10,
        "noisy_rows": 10,
    }
    before, after = Dataset(data[0]), Dataset(made)
    assert after.splits == before.splits
    for split in before.splits:
        assert after.queries(split).equals(before.queries(split))
        assert after.negatives(split).equals(before.negatives(split))
    assert after.qrels("dev").equals(before.qrels("dev"))
    rows = after.qrels("train").to_pylist()
    assert sum(row["noise"] == "mismatched" for row in rows) == 10
    restored = [row["original_passage_id"] or row["passage_id"] for row in rows]
    assert restored == before.qrels("train")["passage_id"].to_pylist()
    # Every new passage is in the corpus, and the artefact is whole.
    Corpus(data[1]).rows_of(after.qrels("train")["passage_id"].to_pylist())
    made.verify()
    assert after.corpus_fingerprint == before.corpus_fingerprint


def test_near_passages_share_words_with_their_query(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    made = noisy(tmp_path, data, kind="near", ranks=[1, 3], share=0.5)
    corpus, after = Corpus(data[1]), Dataset(made)
    texts = dict(zip(*(after.queries("train")[name].to_pylist() for name in ("query_id", "text")), strict=True))
    changed = [row for row in after.qrels("train").to_pylist() if row["noise"] == "mismatched"]
    assert len(changed) == made.info["noisy_queries"] == round(made.info["eligible_queries"] / 2) > 0
    for row in changed:
        [text] = corpus.texts(corpus.rows_of([row["passage_id"]])).texts
        assert set(text.lower().split()) & set(texts[row["query_id"]].lower().split())


def test_ranks_are_a_range() -> None:
    with pytest.raises(ValueError, match=r"ranks=\[9, 2\] are no range"):
        NoiseInjectionConfig(kind="near", ranks=(9, 2))


def test_share_0_is_a_copy(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    made = noisy(tmp_path, data, share=0)
    assert Dataset(made).qrels("train").equals(Dataset(data[0]).qrels("train"))


def test_queries_with_one_positive_give_no_false_negatives(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="several positives"):
        noisy(tmp_path, data, kind="false_negatives")
