"""Embeddings that another thread of this process is making: each finished part can be read at once.

The maker calls :meth:`~GrowingEmbeddings.begin`, then :meth:`~GrowingEmbeddings.add` for each part; whoever runs the
maker calls :meth:`~GrowingEmbeddings.close` when it has ended, well or not.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from raydr.data.embeddings import Embeddings, dim_of
from raydr.data.schema import read_arrow
from raydr.store.artifact import Artifact, Identity, Manifest, Part
from raydr.store.folder import Folder
from raydr.version import __version__


class GrowingEmbeddings:
    """What is known of embeddings while they are made; may be used from several threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._folder: Folder | None = None
        self._identity: Identity | None = None
        self._rows: dict[str, int] = {}
        self._done: dict[str, Part] = {}
        self._closed = False

    # -- for the maker

    def begin(self, folder: Folder, identity: Identity, rows: Mapping[str, int], done: Mapping[str, Part]) -> None:
        """Say what is being made.

        Args:
            rows: number of texts of every part there will be, by its name.
            done: the parts that an interrupted run has left.
        """
        with self._changed:
            self._folder, self._identity = folder, identity
            self._rows, self._done = dict(rows), dict(done)
            self._changed.notify_all()

    def add(self, name: str, part: Part) -> None:
        """Say that a part is finished."""
        with self._changed:
            self._done[name] = part
            self._changed.notify_all()

    def close(self) -> None:
        """No further part comes; may be called again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- for readers

    @property
    def closed(self) -> bool:
        """Whether the maker has ended."""
        with self._changed:
            return self._closed

    def wait_for_first(self) -> bool:
        """Wait for a finished part; False if the maker ended without telling of any."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._closed)
            return bool(self._done)

    def wait_until_closed(self) -> None:
        """Wait until the maker has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed)

    def wait_for_more(self, num_known: int) -> None:
        """Wait until more than ``num_known`` parts are finished, or the maker has ended."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._done) > num_known or self._closed)

    def finished(self) -> frozenset[str]:
        """Names of the parts that can be read."""
        with self._changed:
            return frozenset(self._done)

    def view(self) -> Embeddings:
        """The embeddings as they are now: all rows are counted, only finished parts can be read.

        Raises:
            ValueError: no part is finished yet.
        """
        with self._changed:
            folder, identity, rows, done = self._folder, self._identity, dict(self._rows), dict(self._done)
        if folder is None or identity is None or not done:
            raise ValueError("no part is finished yet: wait_for_first() tells when")
        parts = {name: done.get(name) or Part(rows=rows[name], bytes=-1, checksum="") for name in sorted(rows)}
        dim = dim_of(read_arrow(folder.localize(min(done))))
        manifest = Manifest(
            identity=identity, fingerprint=identity.fingerprint, raydr_version=__version__, created="", parts=parts,
            info={"dim": dim},
        )  # fmt: skip
        return Embeddings(Artifact(folder, manifest))
