"""Several vectors a text, kept one after the other without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from raydr.data.opened import offsets_of


@dataclass(frozen=True)
class VectorSets:
    """Several vectors each of N texts, T in all.

    Args:
        vectors_TD: those of the first text, of the second, and so on.
        offsets: int64 (N + 1), text i has ``vectors_TD[offsets[i]:offsets[i + 1]]``.
    """

    vectors_TD: NDArray[np.float16]
    offsets: NDArray[np.int64]

    @classmethod
    def of_padded(cls, padded_NMD: NDArray[np.float32]) -> VectorSets:
        """Padded encodings without their padding.

        >>> VectorSets.of_padded(np.array([[[1, 0], [0, 0]], [[0, 2], [3, 0]]], dtype=np.float32)).offsets.tolist()
        [0, 1, 3]
        """
        there_NM = (padded_NMD != 0).any(axis=-1)
        return cls(padded_NMD[there_NM].astype(np.float16), offsets_of(there_NM.sum(axis=1)))

    @classmethod
    def join(cls, sets: Sequence[VectorSets]) -> VectorSets:
        """The texts of several, one after the other."""
        lengths = np.concatenate([one.lengths for one in sets])
        return cls(np.concatenate([one.vectors_TD for one in sets]), offsets_of(lengths))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def dim(self) -> int:
        return int(self.vectors_TD.shape[1])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Vectors of each text."""
        return np.diff(self.offsets)

    def slice(self, start: int, stop: int) -> VectorSets:
        """Consecutive texts."""
        offsets = self.offsets[start : stop + 1]
        return VectorSets(self.vectors_TD[offsets[0] : offsets[-1]], offsets - offsets[0])

    def take(self, rows: NDArray[np.int64]) -> VectorSets:
        """Some texts, in the order asked for."""
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return VectorSets(self.vectors_TD[np.repeat(self.offsets[:-1][rows], lengths) + place], offsets)

    def padded(self) -> NDArray[np.float16]:
        """All texts padded with zeros to the most vectors of any, (N, M, D).

        >>> VectorSets(np.ones((3, 1), dtype=np.float16), np.array([0, 1, 3])).padded()[:, :, 0].tolist()
        [[1.0, 0.0], [1.0, 1.0]]
        """
        lengths = self.lengths
        padded_NMD = np.zeros((len(self), int(lengths.max(initial=0)), self.dim), dtype=np.float16)
        text = np.repeat(np.arange(len(self)), lengths)
        padded_NMD[text, np.arange(len(self.vectors_TD)) - np.repeat(self.offsets[:-1] - self.offsets[0], lengths)] = (
            self.vectors_TD
        )
        return padded_NMD


#: Vectors of N texts: (N, dim) of one a text, or several of each.
Encodings = NDArray[np.float16] | VectorSets
