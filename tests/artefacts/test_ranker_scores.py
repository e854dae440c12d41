"""A ranker's scores as an artefact: which pairs, whose scores, resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_stage import interrupt, make

from artefacts.judge_inputs import DEPTH, FLOAT32, NUM_QUERIES, JudgeInputs, make_inputs, make_negatives, negatives_of
from raydr.artefacts.ranker_scores import KIND, score_candidates
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import load_examples
from raydr.distributed.pool import Pool
from raydr.models.encode_config import EncodeConfig
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.store.artifact import Artifact
from raydr.training.signals import RankerScores, read_ranker_scores


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: str) -> JudgeInputs:
    return make_inputs(tmp_path_factory.mktemp("scores"), tiny_checkpoint)


def scored(inputs: JudgeInputs, output: Path, negatives: Artifact | None, pool: Pool | None = None) -> Artifact:
    settings: dict[str, Any] = {"split": "train", "settings": EncodeConfig(), "arithmetic": FLOAT32}
    return make(
        output, KIND, score_candidates, inputs.model, inputs.dataset, inputs.corpus, negatives, pool=pool, **settings
    )


@pytest.mark.invariant
def test_every_pair_that_may_be_learnt_has_the_score_that_losses_see(
    inputs: JudgeInputs, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydr.artefacts.scoring.PAIRS_ENCODED", 25)
    dropped = [row | ({"action": "drop"} if row["rank"] == 3 else {}) for at in range(30) for row in negatives_of(at)]
    judged = make_negatives(tmp_path / "judged", inputs.dataset.fingerprint, [dropped])
    made = scored(inputs, tmp_path / "out", judged, pool)
    table = read_ranker_scores(made, "train")
    assert len(table) == made.info["num_pairs"] == NUM_QUERIES * (1 + DEPTH - 1)
    data, corpus = Dataset(inputs.dataset), Corpus(inputs.corpus)
    examples = load_examples(*data.training_tables("train", judged), corpus)
    joined = RankerScores.join(table, examples, corpus)
    scorer = DualEncoderScorer(inputs.model.folder.root, "float32", "cpu", 4096)
    each = np.zeros(1, dtype=np.int64)
    for rows in (examples.positives, examples.negatives):
        for at in (0, 11, 29):
            for row, score in zip(rows[at], joined.scores_of(np.full(len(rows[at]), at), rows[at]), strict=True):
                alone = scorer.score([examples.texts[at]], corpus.texts(np.array([row])), each, each)[0]
                assert score == pytest.approx(20 * alone, abs=1e-3)


def test_an_interrupted_scoring_makes_what_is_missing(
    inputs: JudgeInputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raydr.artefacts.scoring.PAIRS_ENCODED", 25)
    # Without mined candidates those that came with the data are scored.
    made = scored(inputs, tmp_path / "out", None)
    assert made.info["num_pairs"] == 2 * NUM_QUERIES
    first, *others = made.parts()
    assert len(others) == 3
    stamp = Path(made.folder.path(first)).stat().st_mtime_ns
    interrupt(made, first)
    again = scored(inputs, tmp_path / "out", None)
    assert again.manifest.parts == made.manifest.parts
    assert Path(again.folder.path(first)).stat().st_mtime_ns == stamp
    assert pa.types.is_float32(read_ranker_scores(again, "train")["score"].type)
