"""How many threads PyTorch computes with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(num_threads: int | None) -> Iterator[None]:
    """Compute with so many threads in the block; the process has its own number again afterwards.

    Args:
        num_threads: the number; None: as many as the process has anyway.

    >>> before = torch.get_num_threads()
    >>> with torch_threads(before + 1):
    ...     torch.get_num_threads() == before + 1
    True
    >>> torch.get_num_threads() == before
    True
    """
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
