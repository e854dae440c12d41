from __future__ import annotations

import pytest

from raydr.errors import ConfigError
from raydr.indexing import faiss_backend as backend
from raydr.indexing.faiss_backend import choose_factory, configure_search, make_index, uses


def test_auto_never_compresses_and_gives_a_reason() -> None:
    for num_rows in (10, 54_737, 200_001, 1_000_001, 21_015_324):
        factory, reason = choose_factory(num_rows, 768, 500_000)
        assert "PQ" not in factory
        assert f"{num_rows:,}" in reason


def test_cells_are_limited_by_what_they_are_trained_on() -> None:
    factory, reason = choose_factory(21_015_324, 768, 500_000)
    assert int(factory.removeprefix("IVF").partition(",")[0]) * 39 <= 500_000
    assert "train_rows" in reason


def test_an_unknown_factory_is_named_with_examples() -> None:
    with pytest.raises(ConfigError, match=r"'Flatt'.*8 dimensions.*IVF1024,Flat"):
        make_index("Flatt", 8)


def test_settings_reach_the_index_inside() -> None:
    faiss = backend.load_faiss()
    index = make_index("PCA4,IVF8_HNSW4,Flat", 8)
    configure_search(index, nprobe=64, ef_search=33, refine_factor=2)
    ivf = faiss.extract_index_ivf(index)
    assert ivf.nprobe == 8
    assert faiss.downcast_index(ivf.quantizer).hnsw.efSearch == 33
    assert uses(index) == {"nprobe", "ef_search"}
    assert uses(make_index("IVF8,SQ8,RFlat", 8)) == {"nprobe", "refine_factor"}


@pytest.mark.parametrize(
    ("distributions", "words"), [([], r"pip install faiss-cpu"), (["faiss-cpu", "faiss-gpu"], "uninstall")]
)
def test_none_or_two_faiss_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, distributions: list[str], words: str
) -> None:
    monkeypatch.setattr(backend, "installed", lambda: distributions)
    with pytest.raises(backend.FaissError, match=words):
        backend.load_faiss()
