"""Reading verdicts that were given, with how probably the labels are wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from raydr.data.schema import read_parquet
from raydr.noise.judges.base import FloatArray, judge_class
from raydr.stages.judge_workers import DETECTION, VERDICTS
from raydr.store.artifact import Artifact


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
