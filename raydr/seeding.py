"""Random numbers keyed by their purpose, independent of the worker that draws them.

The numbers for a query are a function of (seed, epoch, query_id, purpose): equal for any number of workers, file order
or process (Python's own ``hash`` is salted per process).
"""

from __future__ import annotations

import hashlib

import numpy as np


def _digest(parts: tuple[str | int, ...], num_bytes: int) -> int:
    hasher = hashlib.blake2b(digest_size=num_bytes)
    for part in parts:
        # Type and length are hashed first, so that ("ab", "c"), ("a", "bc") and (1,), ("1",) all differ.
        content = str(part).encode("utf-8")
        hasher.update(f"{'s' if isinstance(part, str) else 'i'}{len(content)}:".encode("ascii"))
        hasher.update(content)
    return int.from_bytes(hasher.digest(), "little")


def stable_hash64(*parts: str | int) -> int:
    """Return a 64-bit BLAKE2b hash of the parts, equal on every machine, process and Python version.

    >>> stable_hash64("ab", "c") == stable_hash64("a", "bc")
    False
    >>> stable_hash64(7, "q1") == stable_hash64(7, "q1")
    True
    """
    return _digest(parts, 8)


def query_rng(seed: int, epoch: int, query_id: str, purpose: str) -> np.random.Generator:
    """Return the generator for a query in an epoch.

    Args:
        seed: the run's seed.
        epoch: epoch of the draws.
        query_id: id of the query.
        purpose: name of the draws, for example ``"negatives"``; two purposes have independent streams.

    Returns:
        Counter-based Philox generator keyed with a 128-bit hash of the arguments: keying takes microseconds, and
        different keys have independent streams.

    >>> a, b = (query_rng(1, 0, "q7", "negatives").random() for _ in range(2))
    >>> a == b
    True
    """
    return np.random.Generator(np.random.Philox(key=_digest((seed, epoch, query_id, purpose), 16)))
