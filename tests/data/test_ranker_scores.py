"""A ranker's scores find the examples that they are of."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from training.harness import some_ranker_scores

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import Examples, load_examples
from raydr.data.training_signals import join_ranker_scores
from raydr.errors import DataError


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
    joined = join_ranker_scores(examples, pa.concat_tables([scores.take(order), strangers]), corpus)
    known = {(row["query_id"], row["passage_id"]): row["score"] for row in scores.to_pylist()}
    for rows in (examples.positives, examples.negatives):
        for at, query_id in enumerate(examples.query_ids):
            asked = np.asarray(rows[at])[::-1]
            found = joined.of(np.full(len(asked), at), asked)
            assert found.tolist() == [known[query_id, passage_id] for passage_id in corpus.ids(asked)]


def test_what_has_no_score_is_named(loaded: tuple[Examples, Corpus, pa.Table]) -> None:
    examples, corpus, scores = loaded
    first = corpus.ids(np.asarray(examples.negatives[4]))[0]
    pair = pc.and_(pc.equal(scores["query_id"], "q04"), pc.equal(scores["passage_id"], first))
    message = f"1 of {len(examples.negatives.values)} candidates have no score .* passage {first!r} of query 'q04'"
    with pytest.raises(DataError, match=message):
        join_ranker_scores(examples, scores.filter(pc.invert(pair)), corpus)
    with pytest.raises(DataError, match="40 of 40 positives have no score"):
        join_ranker_scores(examples, scores.slice(0, 0), corpus)
