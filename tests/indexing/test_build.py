from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raydr.data.embeddings import Embeddings
from raydr.errors import ConfigError
from raydr.indexing.build import fill, id_table, plan_shards, sample_rows, train_index
from raydr.indexing.faiss_backend import make_index
from tests.made import integer_vectors, make_embeddings


def test_shards_are_whole_parts_in_order_and_cover_everything() -> None:
    starts = np.array([0, 40, 80, 120, 400, 410])
    plans = plan_shards(starts, 100)
    assert [(plan.first_part, plan.end_part) for plan in plans] == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert sum(plan.rows for plan in plans) == 410


def test_the_sample_is_spread_over_all_rows() -> None:
    rows = sample_rows(1000, 100)
    assert len(np.unique(rows)) == 100
    assert (np.diff(rows) == 10).all()
    assert sample_rows(5, 100).tolist() == [0, 1, 2, 3, 4]


def test_a_shard_has_its_vectors_and_ids_row_by_row(tmp_path: Path) -> None:
    vectors = integer_vectors(50, 6, seed=0)
    embeddings = Embeddings(make_embeddings(tmp_path / "e", vectors, part_rows=20))
    plan = plan_shards(embeddings.starts, 20)[1]
    index = fill(make_index("Flat", 6), embeddings, plan)
    np.testing.assert_array_equal(index.reconstruct_n(0, 20), vectors[20:40].astype(np.float32))
    assert id_table(embeddings, plan)["passage_id"].to_pylist() == [f"p{row}" for row in range(20, 40)]


def test_too_few_vectors_for_the_cells_is_the_configs_fault(tmp_path: Path) -> None:
    embeddings = Embeddings(make_embeddings(tmp_path / "e", integer_vectors(20, 4, seed=0), part_rows=20))
    with pytest.raises(ConfigError, match=r"IVF64,Flat.*20 vectors"):
        train_index("IVF64,Flat", embeddings, 1000)


def test_vectors_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    vectors = integer_vectors(50, 6, seed=0)
    embeddings = Embeddings(make_embeddings(tmp_path / "e", vectors, part_rows=20))
    ids, part = embeddings.ids(2).to_pylist(), embeddings.vectors(2)
    assert ids == [f"p{row}" for row in range(40, 50)]
    assert part.dtype == np.float16
    assert not part.flags.owndata
    assert not part.flags.writeable
    np.testing.assert_array_equal(part, vectors[40:])
    rows = np.array([49, 0, 20, 20, 1])
    np.testing.assert_array_equal(embeddings.take(rows), vectors[rows])
