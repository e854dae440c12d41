"""A guide's vectors by training example and corpus row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made import integer_vectors, make_embeddings

from raydr.data.embeddings import Embeddings
from raydr.data.training_signals import GuideVectors
from raydr.errors import DataError


def test_vectors_are_found_by_example_and_by_row(tmp_path: Path) -> None:
    query_ND, passage_ND = integer_vectors(7, 4, 0), integer_vectors(11, 4, 1)
    queries = Embeddings(make_embeddings(tmp_path / "queries", query_ND, 3, side="query"))
    passages = Embeddings(make_embeddings(tmp_path / "passages", passage_ND, 4))
    found = GuideVectors(queries, passages).beside(["q5", "q0", "q6"])
    assert np.array_equal(found.of_queries(np.array([2, 0])), query_ND[[6, 5]])
    assert np.array_equal(found.of_passages(np.array([10, 3, 3])), passage_ND[[10, 3, 3]])
    with pytest.raises(DataError, match="have none of query 'q9'"):
        GuideVectors(queries, passages).beside(["q0", "q9"])
