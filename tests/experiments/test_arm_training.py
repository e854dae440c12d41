"""One arm in this process: what it trains on, what it measures and keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import WORDS, make_sentence
from made_artefacts import make_corpus, make_dataset

from experiments.arm_training import MARGINS, ArmData, ArmOptions, PreparedArm, prepare_arm, run_arm
from raydr.data.tables import to_table, write_arrow
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import Folder, write_part
from raydr.store.identity import Identity
from raydr.training.training import Training

NUM = 16


def make_negatives(path: Path, dataset: str, taken_away: dict[int, str] | None = None) -> Artifact:
    """Three passages of other queries for each query, its second positive among them; judges take some ranks away."""
    rows = [
        {"query_id": f"q{at:02d}", "passage_id": passage_id, "miner": "bm25", "rank": rank, "score": 9.0 - rank}
        | ({"action": taken_away[rank], "weight": 0.0} if taken_away and rank in taken_away else {})
        for at in range(NUM)
        for rank, passage_id in enumerate([f"p{(at + 3) % NUM:02d}", f"s{at:02d}", f"p{(at + 5) % NUM:02d}"], start=1)
    ]
    with begin(str(path), Identity(kind="negatives", inputs={"dataset": dataset})) as making:
        assert isinstance(making, Building)
        table = to_table("negatives", rows)
        name = "negatives/train/part-00000.arrow"
        making.record(name, write_part(making.folder, name, len(table), lambda file: write_arrow(table, file)))
        return making.finish()


@pytest.fixture
def data(tmp_path: Path) -> ArmData:
    """Queries that quote their passage p..; s.. says nearly the same and is planted as a false negative."""
    passages = []
    for at in range(NUM):
        text = make_sentence(at, 10)
        passages += [
            {"passage_id": f"p{at:02d}", "title": WORDS[at], "text": text},
            {"passage_id": f"s{at:02d}", "title": WORDS[at], "text": f"{text} end"},
        ]
    corpus = make_corpus(tmp_path / "corpus", passages)
    queries = [{"query_id": f"q{at:02d}", "text": make_sentence(at, 10)} for at in range(NUM)]
    qrels = [{"query_id": f"q{at:02d}", "passage_id": f"p{at:02d}"} for at in range(NUM)]
    planted = [
        {"query_id": f"q{at:02d}", "passage_id": f"s{at:02d}", "miner": "planted", "rank": 1, "noise": "false_negative"}
        for at in range(0, NUM, 2)
    ]
    splits = ("train", "dev", "test")
    tables: dict[str, Any] = {
        "queries": dict.fromkeys(splits, queries),
        "qrels": dict.fromkeys(splits, qrels),
        "negatives": {"train": planted},
    }
    dataset = make_dataset(tmp_path / "dataset", corpus, tables)
    negatives = make_negatives(tmp_path / "negatives", dataset.fingerprint)
    return ArmData(dataset, corpus, negatives)


def training_with(checkpoint: str, **train: Any) -> Training:
    sides = {"query": {"max_length": 24}, "passage": {"max_length": 24}}
    training = {"num_epochs": 2, "batch_size": 8, "num_hard_negatives": 2, "dtype": "float32", "sampler": "top"}
    return Training.model_validate(
        {
            "model": {"checkpoint": checkpoint, "similarity": "cosine", "scale": 5, **sides},
            "train": training | {"optimizer": {"learning_rate": 1e-3}, "dev": {"random_passages": 5}} | train,
            "train_split": "train",
            "dev_split": "dev",
            "seed": 0,
        }
    )


TEST: dict[str, Any] = {"split": "test", "measures": ["RR@10"], "top_k": 100}


def begin_arm(training: Training, data: ArmData, **options: Any) -> PreparedArm:
    return prepare_arm(training, data, lambda progress: None, ArmOptions(**options))


def test_an_arm_is_trained_measured_and_kept(data: ArmData, tiny_checkpoint: str, tmp_path: Path) -> None:
    training, place = training_with(tiny_checkpoint), Folder(str(tmp_path / "arm"))
    result = run_arm(training, data, ArmOptions(keep_margins=True), TEST, place)
    assert len(result.history) == len(result.detections) == 2
    assert result.values["last"].keys() == result.values["best"].keys() == {"RR@10"}
    assert len(result.values["last"]["RR@10"]) == NUM
    with np.load(place.path(MARGINS)) as arrays:
        assert arrays["values_EN"].shape == arrays["random_EN"].shape == (3, NUM)
        # The model that is measured is another than the one it started from.
        assert np.abs(np.diff(arrays["values_EN"], axis=0)).max() > 1e-3
    again = run_arm(training, data, ArmOptions(), TEST)
    assert again.values == result.values
    assert not run_arm(training, data, ArmOptions(examined=False), TEST).detections


def test_clean_training_has_no_planted_candidate(data: ArmData, tiny_checkpoint: str) -> None:
    training = training_with(tiny_checkpoint)
    for clean in (False, True):
        arm = begin_arm(training, data, clean_only=clean)
        examples = arm.trainer.batches.examples
        planted = arm.data.corpus.rows_of([f"s{at:02d}" for at in range(NUM)])
        has_it = [int(planted[at]) in examples.negatives[at] for at in range(NUM)]
        assert has_it == [not (clean and at % 2 == 0) for at in range(NUM)]
        # Dropped, and so never an in-batch negative of its query either.
        hashes = arm.data.corpus.content_hashes(planted).view(np.int64)
        forbidden = [hashes[at] in examples.forbidden[at] for at in range(NUM)]
        assert forbidden == [clean and at % 2 == 0 for at in range(NUM)]


def test_the_control_of_a_filter_leaves_as_many_of_each_query_but_others(
    data: ArmData, tiny_checkpoint: str, tmp_path: Path
) -> None:
    judged = make_negatives(tmp_path / "judged", data.dataset.artifact.fingerprint, {1: "drop", 2: "relabel"})
    arms = [
        begin_arm(training_with(tiny_checkpoint), replace(data, negatives=judged), drop_at_random=control)
        for control in (False, True)
    ]
    # What judges took away has no weight; what the control gives back has all of it.
    assert all((arm.trainer.batches.examples.weights.values == 1).all() for arm in arms)
    # What judges relabelled is a positive, what the control takes away is not.
    num_positives = [{len(positives) for positives in arm.trainer.batches.examples.positives} for arm in arms]
    assert num_positives == [{2}, {1}]
    left, at_random = ([arm.trainer.batches.examples.negatives[at] for at in range(NUM)] for arm in arms)
    assert [len(positives) for positives in left] == [len(positives) for positives in at_random] == [1] * NUM
    candidates = begin_arm(training_with(tiny_checkpoint), data).trainer.batches.examples.negatives
    assert all(set(positives) < set(candidates[at]) for at, positives in enumerate(at_random))
    same = [rows.tolist() == other.tolist() for rows, other in zip(left, at_random, strict=True)]
    assert 0 < sum(same) < NUM / 2 + 4
