"""What a diagnosis reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from conftest import make_sentence

from raydr.artefacts.evidence import repeated_queries, unanswered
from raydr.artefacts.evidence_samples import bm25, cut
from raydr.artefacts.judged import DROPPED_PAIR
from raydr.data.tables import to_table
from raydr.models.config import ModelConfig
from raydr.models.tokens import TextTokenizer
from raydr.negatives.config import BM25Config


@pytest.mark.parametrize("prefix", ["", "query: "])
@pytest.mark.parametrize("max_length", [4, 9, 64])
def test_a_text_is_cut_where_the_model_stops_reading(tiny_checkpoint: str, prefix: str, max_length: int) -> None:
    side = {"prefix": prefix, "max_length": max_length}
    config = ModelConfig(checkpoint=tiny_checkpoint, query=side, passage=side)
    tokenizer = TextTokenizer(tiny_checkpoint, config, "query")
    texts = [make_sentence(at, 3 * at) for at in range(1, 8)]
    short = cut(tokenizer, texts)
    assert all(whole.startswith(text) for text, whole in zip(short, texts, strict=True))
    before, after = tokenizer(None, texts), tokenizer(None, short)
    # The prefix may take all the room.
    longer = [at for at, text in enumerate(short) if text]
    for at in longer:
        rows = [table.ids[table.offsets[at] : table.offsets[at + 1]].tolist() for table in (before, after)]
        assert rows[0] == rows[1]
    assert longer or (prefix and max_length < 9)
    assert after.num_truncated == 0 or not longer
    assert (short == texts) == (before.num_truncated == 0)


def test_bm25_scores_each_passage_and_nothing_of_strange_words() -> None:
    passages = [make_sentence(at, 12) for at in range(30)]
    scores_QU = bm25(BM25Config(), passages)([passages[7], "unheard"])
    assert scores_QU.shape == (2, 30)
    assert scores_QU[0].argmax() == 7
    assert not scores_QU[1].any()
    assert np.isfinite(scores_QU).all()


def test_queries_without_positives_are_not_twins() -> None:
    texts = {"a": "sort a list", "b": "a list: sort", "c": "why", "d": "sort a list", "e": "how"}
    queries = pa.table({"query_id": list(texts), "text": list(texts.values())})
    qrels = pa.table({"query_id": ["a", "b", "e"], "passage_id": ["1", "2", "3"]})
    job = SimpleNamespace(judged=lambda split: (queries, qrels), training=SimpleNamespace(train_split="train"))
    # d has no positive that could be wrong for a and b, and c none at all.
    assert repeated_queries(cast(Any, job)).tolist() == [True, True, False, False, False]


def test_queries_whose_pairs_judges_drop_are_not_unanswered() -> None:
    queries = pa.table({"query_id": ["a", "b", "c"]})
    qrels = pa.table({"query_id": ["a"]})
    dropped = to_table(
        "dropped",
        [
            {"query_id": "b", "passage_id": "2", "miner": DROPPED_PAIR},
            # A passage that is no negative has not been a positive.
            {"query_id": "c", "passage_id": "c", "miner": "source"},
        ],
    )
    job = SimpleNamespace(judged=lambda _: (queries, qrels), data=SimpleNamespace(dropped=lambda _: dropped))
    assert unanswered(cast(Any, job), "train").tolist() == [False, False, True]
