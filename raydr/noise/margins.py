"""Cross-fitted margins: what models that have not seen them make of pairs, and of random ones in their place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.noise.detectors.base import Detection, Detector
from raydr.noise.detectors.draws import detect_over_draws


@dataclass(frozen=True)
class Margins:
    """Of N pairs, each measured D times against other random passages.

    Args:
        query_ids, passage_ids: of the pairs.
        truth: whether each is mismatched on purpose; null where nothing is known.
        fold_N: whose model measured it.
        perplexities_ND: of the pairs.
        random_ND: of a random passage in the positive's place, against the same others.
    """

    query_ids: pa.ChunkedArray
    passage_ids: pa.ChunkedArray
    truth: pa.ChunkedArray
    fold_N: NDArray[np.int64]
    perplexities_ND: NDArray[np.float64]
    random_ND: NDArray[np.float64]

    @classmethod
    def of(cls, table: pa.Table) -> Margins:
        """From rows as a ``margins`` artefact has them."""
        return cls(
            table["query_id"],
            table["passage_id"],
            table["truth"],
            table["fold"].to_numpy(),
            _numbers(table["perplexity"]),
            _numbers(table["random_pair"]),
        )

    @property
    def perplexity_N(self) -> NDArray[np.float64]:
        """The mean over the draws, for people and for ranking."""
        return np.asarray(self.perplexities_ND.mean(axis=1))

    @property
    def random_N(self) -> NDArray[np.float64]:
        """Of one random pair each: means of several would lie closer together than pairs do."""
        return self.random_ND[:, 0]

    def detect(self, detector: Detector) -> Detection:
        """What a detector makes of all pairs."""
        return detect_over_draws(detector, self.perplexities_ND, self.random_ND, self.fold_N)


def _numbers(lists: pa.ChunkedArray) -> NDArray[np.float64]:
    """A column of lists of equal length as a matrix."""
    width = lists.type.list_size
    return np.asarray(lists.combine_chunks().flatten().to_numpy(zero_copy_only=False)).reshape(-1, width)
