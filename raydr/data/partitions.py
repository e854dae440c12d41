"""Partitions: groups of passages that a query's search, and its negatives, can be confined to.

Every part of a corpus, and every part of a split's queries, holds rows of one partition only, and its name says which:
``passages/PARTITION/part-*.arrow``, ``queries/SPLIT/PARTITION/part-*.arrow``. So do the parts of vectors and the shards
of an index: a search in a partition is a search of its shards, a draw from it one of a few ranges of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from raydr.component import Config
from raydr.data.parts import offsets_of
from raydr.errors import ConfigError

#: Where is looked for a query: its own partition, those that the queries of its split have, or the whole corpus.
Scope = Literal["own", "split", "all"]


class PartitionConfig(Config):
    """What a query is confined to where passages and queries have partitions; without these nothing changes.

    ``own`` is the query's own partition, ``split`` all partitions that a query of its split has, ``all`` the corpus. A
    query without a partition is never confined.
    """

    negatives: Scope = "own"
    """Where a training query's negatives come from: runs over the training split, mining, and random passages."""

    search: Scope = "own"
    """Where queries of the other splits are searched; while training, ``train.dev.scope`` says that."""


def partition_of(part: str) -> str:
    """Return the partition of a part of a corpus or of queries; empty if it has none.

    >>> partition_of("passages/lego/part-0000-00000.arrow"), partition_of("queries/test/lego/part-00000.arrow")
    ('lego', 'lego')
    >>> partition_of("passages/part-0000-00000.arrow"), partition_of("queries/test/part-00000.arrow")
    ('', '')
    """
    table, *folders, _ = part.split("/")
    return "".join(folders if table == "passages" else folders[1:])


def split_scope(system: str) -> tuple[str, Scope | None]:
    """Split a system's name into the system and the scope of its search, if the name has a scope.

    Raises:
        ConfigError: there is no such choice.

    >>> split_scope("trained@split"), split_scope("trained")
    (('trained', 'split'), ('trained', None))
    """
    name, at, wanted = system.partition("@")
    scopes: tuple[Scope, ...] = get_args(Scope)
    scope = next((scope for scope in scopes if scope == wanted), None)
    if at and scope is None:
        raise ConfigError(f"system {system}: after @ stand the partitions that are searched, {', '.join(scopes)}")
    return name, scope


def within(scope: Scope, own: str, of_split: Collection[str]) -> frozenset[str] | None:
    """Return the partitions that confine a query; None if none does.

    Args:
        scope: how far it may go.
        own: the query's partition; empty if it has none.
        of_split: the partitions of all queries of its split.

    >>> sorted(within("split", "a", ["a", "b"])), within("split", "", ["a"]), within("all", "a", ["a", "b"])
    (['a', 'b'], None, None)
    """
    if not own or scope == "all":
        return None
    return frozenset((own,)) if scope == "own" else frozenset(of_split) - {""}


def check_partition(wanted: str, partitions: Iterable[str], where: str) -> None:
    """Refuse an unknown partition.

    Args:
        wanted: a partition; empty: none is wanted.
        partitions: those of the corpus; an empty string stands for passages without a partition.
        where: they are, for messages, for example ``the corpus at FOLDER``.

    Raises:
        ConfigError: there is no such partition.
    """
    known = sorted(set(partitions) - {""})
    if wanted and wanted not in known:
        has = f"it has {', '.join(known)}" if known else "its passages have none"
        raise ConfigError(f"{where} has no partition {wanted!r}: {has}")


@dataclass(frozen=True)
class RowPool:
    """Some rows of a corpus: consecutive ones, or several ranges of these.

    Args:
        firsts: first row of each range.
        offsets: where each range starts among the rows of the pool, and their number; shape (ranges + 1,).
    """

    firsts: NDArray[np.int64]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, firsts: Sequence[int], sizes: Sequence[int]) -> RowPool:
        return cls(np.array(firsts, dtype=np.int64), offsets_of(sizes))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def rows(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the corpus rows at some places of the pool.

        >>> RowPool.of([10, 50], [2, 3]).rows(np.array([0, 1, 2, 4])).tolist()
        [10, 11, 50, 52]
        """
        at = np.searchsorted(self.offsets, places, side="right") - 1
        return np.asarray(self.firsts[at] + places - self.offsets[at])
