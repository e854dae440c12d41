"""Reading verdicts that were given, with how probably the labels are wrong."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.schema import read_parquet
from raydr.noise.judges.base import FloatArray, IntArray, judge_class
from raydr.noise.judges.second import SecondJudge
from raydr.noise.reviewed import evidence
from raydr.store.artifact import Artifact

#: Folders of the parts of ``verdicts``: what judges say, what they have measured, what their decisions rest on.
VERDICTS, MEASURES, DETECTION = "verdicts", "measures", "detection"


def read_verdicts(artifact: Artifact, split: str) -> tuple[dict[str, pa.Table], FloatArray | None]:
    """The verdicts of one judge on a split.

    Args:
        artifact: ``verdicts``.
        split: that was judged.

    Returns:
        Tables by the name of the part, and for all rows the probability of the label being wrong; None if the judge
        gives none.
    """

    def read(folder: str) -> dict[str, pa.Table]:
        return {part: read_parquet(artifact.local(part)) for part in artifact.parts(f"{folder}/{split}")}

    tables, rests_on = read(VERDICTS), [*read(DETECTION).values()]
    if judge_class(artifact.manifest.identity.config["judge"]).score_is_probability:
        return tables, np.concatenate([table["score"].to_numpy() for table in tables.values()]).astype(np.float64)
    if rests_on and "probability" in rests_on[0].column_names:
        return tables, pa.concat_tables(rests_on)["probability"].to_numpy()
    return tables, None


class Doubtful(NamedTuple):
    """What an earlier judge was unsure of.

    Args:
        tables: all its verdicts, by the name of the part.
        rows: places of the doubtful ones among all.
        wrong_N: P(the label is wrong) by that judge, of all.
    """

    tables: dict[str, pa.Table]
    rows: IntArray
    wrong_N: FloatArray


def read_doubtful(judge: SecondJudge, earlier: Artifact, split: str) -> Doubtful:
    """The verdicts that a judge is to look at again.

    Args:
        judge: who looks again.
        earlier: the ``verdicts`` of the judge before.
        split: that was judged.
    """
    tables, evidence_N = read_evidence(earlier, split)
    return Doubtful(tables, judge.choose(evidence_N), 1.0 / (1.0 + np.exp(-evidence_N)))


def read_evidence(artifact: Artifact, split: str) -> tuple[dict[str, pa.Table], FloatArray]:
    """The verdicts of one judge on a split by part, and of all rows the log-odds of their labels being wrong."""
    tables, probability_N = read_verdicts(artifact, split)
    together = pa.concat_tables(tables.values())
    if not len(together):
        return tables, np.zeros(0)
    flagged_N = pc.not_equal(together["action"], "keep").to_numpy()
    return tables, evidence(together["score"].to_numpy(), flagged_N, probability_N)
