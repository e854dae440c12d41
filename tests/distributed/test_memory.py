from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from raydr.distributed.cluster import RayConfig, give_back_memory, ray_session

CAPACITY = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the size of a process is read from /proc")
def test_what_was_freed_between_what_is_kept_goes_back_to_the_system() -> None:
    # Pieces below the size for which the C library asks the system each time.
    pieces = [b"x" * 100_000 for _ in range(3000)]
    kept = pieces[::50]
    del pieces
    before = resident_mib()
    if not give_back_memory():
        pytest.skip("the C library cannot")
    assert resident_mib() < before - 150
    assert len(kept) == 60


def test_a_session_bounds_what_products_are_kept_unless_somebody_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, wanted in ((None, "64"), ("7", "7")):
        monkeypatch.delenv(CAPACITY, raising=False)
        if value is not None:
            monkeypatch.setenv(CAPACITY, value)
        with ray_session(RayConfig()):
            assert os.environ[CAPACITY] == wanted


def test_a_thread_may_be_importing_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is there from the first moment of that, and empty."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    give_back_memory()
