"""How far several judges agree on the passages that all of them have judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from raydr.data.tables import pairs_of
from raydr.errors import DataError
from raydr.noise.judges.base import BoolArray, CountArray, FloatArray


@dataclass(frozen=True)
class AlignedVerdicts:
    """Verdicts of J judges on M (query, passage) pairs.

    Args:
        judges: J names.
        query_ids, passage_ids: of the pairs.
        judged_JM: whether a judge gave a verdict at all.
        flagged_JM: whether it was anything but ``keep``; False without a verdict.
        scores_JM: float64, how suspicious; NaN without a verdict.
        actions_JM: str, empty without a verdict.
        truth_M: object, True or False where it is known whether the pair is noise, else None.
    """

    judges: tuple[str, ...]
    query_ids: list[str]
    passage_ids: list[str]
    judged_JM: BoolArray
    flagged_JM: BoolArray
    scores_JM: FloatArray
    actions_JM: npt.NDArray[np.object_]
    truth_M: npt.NDArray[np.object_]


def align(judges: Sequence[str], tables: Sequence[pa.Table]) -> AlignedVerdicts:
    """Put the verdicts of several judges side by side.

    Args:
        judges: their names.
        tables: one table ``verdicts`` a judge, in any order of rows; not all need to have all pairs. Of a pair that is
            there twice, since two miners have found it, the higher score counts.
    """
    position: dict[tuple[str, str], int] = {}
    # Of repeated indices the last assignment holds.
    tables = [table.sort_by("score") for table in tables]
    columns = [
        np.array([position.setdefault(pair, len(position)) for pair in pairs_of(table)], dtype=np.int64)
        for table in tables
    ]
    shape = (len(judges), len(position))
    scores_JM, judged_JM = np.full(shape, np.nan), np.zeros(shape, dtype=np.bool_)
    actions_JM, truth_M = np.full(shape, "", dtype=object), np.full(len(position), None, dtype=object)
    for at, (rows, table) in enumerate(zip(columns, tables, strict=True)):
        judged_JM[at, rows] = True
        scores_JM[at, rows] = table["score"].to_numpy()
        actions_JM[at, rows] = table["action"].to_pylist()
        truth_M[rows] = table["truth"].to_pylist()
    return AlignedVerdicts(
        judges=tuple(judges),
        query_ids=[query_id for query_id, _ in position],
        passage_ids=[passage_id for _, passage_id in position],
        judged_JM=judged_JM,
        flagged_JM=judged_JM & (actions_JM != "keep"),
        scores_JM=scores_JM,
        actions_JM=actions_JM,
        truth_M=truth_M,
    )


@dataclass(frozen=True)
class Agreement:
    """Counts over the passages that two judges both judged, for all pairs of J judges; they can be added up.

    Args:
        judges: J names.
        both_JJ: passages that both have judged.
        flagged_JJ: of those, the ones that the judge of the row flags.
        both_flagged_JJ: of those, the ones that both flag.
    """

    judges: tuple[str, ...]
    both_JJ: CountArray
    flagged_JJ: CountArray
    both_flagged_JJ: CountArray

    @classmethod
    def of(cls, verdicts: AlignedVerdicts, among_M: BoolArray | None = None) -> Agreement:
        """The counts among some of the passages, or all.

        >>> verdicts = [
        ...     pa.table({"query_id": ["q"] * 4, "passage_id": list("abcd"), "score": [0.0] * 4, "action": actions,
        ...               "truth": pa.nulls(4, pa.bool_())})
        ...     for actions in (["drop", "drop", "keep", "keep"], ["drop", "keep", "keep", "keep"])
        ... ]
        >>> found = Agreement.of(align(["margin", "sieve"], verdicts))
        >>> found.kappa_JJ[0, 1].item(), found.overlap_JJ.tolist()
        (0.5, [[1.0, 0.5], [1.0, 1.0]])
        """
        judged_JM, flagged_JM = verdicts.judged_JM.astype(np.int64), verdicts.flagged_JM.astype(np.int64)
        if among_M is not None:
            judged_JM, flagged_JM = judged_JM[:, among_M], flagged_JM[:, among_M]
        return cls(verdicts.judges, judged_JM @ judged_JM.T, flagged_JM @ judged_JM.T, flagged_JM @ flagged_JM.T)

    def __add__(self, other: Agreement) -> Agreement:
        if self.judges != other.judges:
            raise DataError(f"agreement of {self.judges} cannot be added to that of {other.judges}")
        both_JJ, flagged_JJ = self.both_JJ + other.both_JJ, self.flagged_JJ + other.flagged_JJ
        return Agreement(self.judges, both_JJ, flagged_JJ, self.both_flagged_JJ + other.both_flagged_JJ)

    @property
    def kappa_JJ(self) -> FloatArray:
        """Cohen's κ = (p_o − p_e) / (1 − p_e) on flagged or not; NaN where chance explains everything or nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            first, second = self.flagged_JJ / self.both_JJ, self.flagged_JJ.T / self.both_JJ
            # Both flag, or neither does.
            observed = 1.0 - first - second + 2.0 * self.both_flagged_JJ / self.both_JJ
            expected = first * second + (1.0 - first) * (1.0 - second)
            return np.asarray(np.where(expected < 1.0, (observed - expected) / (1.0 - expected), np.nan))

    @property
    def overlap_JJ(self) -> FloatArray:
        """Share of what the judge of the row flags that the judge of the column flags too; NaN if it flags nothing."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.both_flagged_JJ / self.flagged_JJ)
