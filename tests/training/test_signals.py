"""Signals are joined to the examples and the corpus, and reach the loss."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from made import integer_vectors, make_embeddings

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.embeddings import Embeddings
from raydr.data.examples import Examples, load_examples
from raydr.errors import DataError
from raydr.losses.base import Candidates, Loss, LossOutput, gather_positive
from raydr.losses.nce import NCE
from raydr.training.sections import GuideConfig
from raydr.training.signals import DrawnBatch, Guide, PlaceSignal, RankerScores
from training.harness import make_trainer, model_config, some_ranker_scores


@pytest.fixture
def loaded(tiny_data: tuple[str, str]) -> tuple[Examples, Corpus, pa.Table]:
    corpus, dataset = Corpus.open(tiny_data[0]), Dataset.open(tiny_data[1])
    tables = dataset.queries("train"), dataset.qrels("train"), dataset.negatives("train")
    return load_examples(*tables, corpus), corpus, some_ranker_scores(tables)


def test_every_positive_and_candidate_has_its_own_score(loaded: tuple[Examples, Corpus, pa.Table]) -> None:
    examples, corpus, scores = loaded
    order = np.random.default_rng(0).permutation(len(scores))
    strangers = pa.table(
        {"query_id": ["x1", "q03"], "passage_id": ["p001", "p119"], "score": pa.array([1.0, 2.0], pa.float32())},
        schema=scores.schema,
    )
    joined = RankerScores.join(pa.concat_tables([scores.take(order), strangers]), examples, corpus)
    known = {(row["query_id"], row["passage_id"]): row["score"] for row in scores.to_pylist()}
    for rows in (examples.positives, examples.negatives):
        for at, query_id in enumerate(examples.query_ids):
            asked = np.asarray(rows[at])[::-1]
            own_scores = joined.scores_of(np.full(len(asked), at), asked)
            assert own_scores.tolist() == [known[query_id, passage_id] for passage_id in corpus.ids(asked)]


def test_what_has_no_score_is_named(loaded: tuple[Examples, Corpus, pa.Table]) -> None:
    examples, corpus, scores = loaded
    first = corpus.ids(np.asarray(examples.negatives[4]))[0]
    pair = pc.and_(pc.equal(scores["query_id"], "q04"), pc.equal(scores["passage_id"], first))
    message = f"1 of {len(examples.negatives.values)} candidates have no score .* passage {first!r} of query 'q04'"
    with pytest.raises(DataError, match=message):
        RankerScores.join(scores.filter(pc.invert(pair)), examples, corpus)
    with pytest.raises(DataError, match="40 of 40 positives have no score"):
        RankerScores.join(scores.slice(0, 0), examples, corpus)


def test_vectors_are_found_by_example_and_by_row(tmp_path: Path) -> None:
    query_ND, passage_ND = integer_vectors(7, 4, 0), integer_vectors(11, 4, 1)
    queries = Embeddings(make_embeddings(tmp_path / "queries", query_ND, 3, side="query"))
    passages = Embeddings(make_embeddings(tmp_path / "passages", passage_ND, 4))
    guide = Guide.join(queries, passages, ["q5", "q0", "q6"], GuideConfig())
    rows, none = np.array([[10, 3], [3, 0]]), np.zeros((2, 2))
    drawn = DrawnBatch(np.array([2, 0]), rows, none.astype(bool), none.astype(np.float32))
    vectors = guide.of(drawn)
    assert np.array_equal(vectors.query_QD, query_ND[[6, 5]])
    assert np.array_equal(vectors.passage_CD, passage_ND[[10, 3, 3, 0]])
    with pytest.raises(DataError, match="lack query 'q9'"):
        Guide.join(queries, passages, ["q0", "q9"], GuideConfig())


class PassageLengths:
    """A signal of a user: the length of each passage that was drawn for a query."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus

    def of(self, drawn: DrawnBatch) -> PlaceSignal:
        texts = self.corpus.texts(drawn.passage_rows.ravel()).texts
        lengths = np.array([len(text) for text in texts], dtype=np.float32).reshape(drawn.passage_rows.shape)
        return PlaceSignal("length_QC", torch.from_numpy(lengths))


class LengthLoss(Loss):
    """A loss of a user: NCE of the length of the positive passage."""

    name: Literal["length"] = "length"

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        length_QC = candidates.signals["length_QC"]
        nce = NCE().compute(candidates, epoch)
        length_Q = gather_positive(length_QC, candidates.positive_Q)
        return LossOutput(nce.per_query_Q * length_Q, {"length": length_Q.mean()})


def test_a_new_signal_is_a_class_and_a_loss_that_reads_it(tiny_data: tuple[str, str], tiny_checkpoint: str) -> None:
    trainer = make_trainer(tiny_data, model_config(tiny_checkpoint), {"batch_size": 8, "num_epochs": 1})
    trainer.config = trainer.config.model_copy(update={"loss": LengthLoss(), "keep": "last"})
    trainer.batches.signals = [PassageLengths(trainer.batches.corpus)]
    examples, corpus = trainer.batches.examples, trainer.batches.corpus
    mean = np.mean([len(text) for text in corpus.texts(examples.positives.values).texts])
    assert trainer.run().history[0].metrics["length"] == pytest.approx(mean, rel=1e-6)
