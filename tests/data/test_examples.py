from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.examples import load_examples


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
