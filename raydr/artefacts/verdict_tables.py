"""Read verdicts with the probability of wrong labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.schema import read_parquet
from raydr.data.tables import pairs_of
from raydr.noise.evidence import Edge, evidence
from raydr.noise.judges.base import BoolArray, FloatArray, SecondJudge, judge_class
from raydr.store.artifact import Artifact

#: Folders of the parts of ``verdicts``: verdicts, measures, basis of the decisions.
VERDICTS, MEASURES, DETECTION = "verdicts", "measures", "detection"
#: Tables by part name.
Tables = dict[str, pa.Table]


def read_verdicts(artifact: Artifact, split: str, of_part: int | None = None) -> tuple[Tables, FloatArray | None]:
    """Read the verdicts of a judge on a split.

    Args:
        artifact: ``verdicts`` artefact.
        split: judged split.
        of_part: index of a judged part whose verdicts are read; None: all.

    Returns:
        Tables by part name, and P(wrong label) of all rows; None if the judge gives none.
    """

    def read(folder: str) -> Tables:
        start = f"{folder}/{split}/part-" + (f"{of_part:05d}-" if of_part is not None else "")
        names = [name for name in artifact.parts(f"{folder}/{split}") if name.startswith(start)]
        return {name: read_parquet(artifact.local(name)) for name in names}

    tables, rests_on = read(VERDICTS), [*read(DETECTION).values()]
    if judge_class(artifact.manifest.identity.config["judge"]).score_is_probability:
        scores = [table["score"].to_numpy() for table in tables.values()]
        return tables, np.concatenate([np.zeros(0), *scores]).astype(np.float64)
    if rests_on and "probability" in rests_on[0].column_names:
        return tables, pa.concat_tables(rests_on)["probability"].to_numpy()
    return tables, None


@dataclass(frozen=True)
class Earlier:
    """Verdicts of an earlier judge of a chain; picklable.

    Args:
        verdicts: verdicts of the earlier judge.
        split: judged split.
        edge: edge of all its verdicts; None if it gives probabilities.
        threshold: log-odds of a wrong label that count as 0.
    """

    verdicts: Artifact
    split: str
    edge: Edge | None = None
    threshold: float = 0.0

    def read(self, of_part: int | None = None) -> tuple[Tables, FloatArray]:
        """Return the verdicts by part, and the log-odds of wrong labels of all rows; see :func:`read_verdicts`."""
        tables, probability_N = read_verdicts(self.verdicts, self.split, of_part)
        if not any(map(len, tables.values())):
            return tables, np.zeros(0)
        together = pa.concat_tables(tables.values())
        return tables, evidence(together["score"].to_numpy(), _flagged(together), probability_N, self.edge)

    def suspected(self, judge: SecondJudge, of_part: int) -> dict[tuple[str, str], float]:
        """Return P(wrong label) of the (query, passage) ids of a part that a later judge reads.

        Args:
            judge: later judge.
            of_part: index of the part.
        """
        from scipy.special import expit

        tables, evidence_N = self.read(of_part)
        if not tables:
            return {}
        rows = judge.choose(evidence_N)
        doubtful = pa.concat_tables(tables.values()).take(pa.array(rows))
        return dict(zip(pairs_of(doubtful), expit(evidence_N[rows] - self.threshold).tolist(), strict=True))


def open_earlier(verdicts: Artifact, split: str) -> Earlier:
    """Read what later judges need of all verdicts on a split."""
    tables, probability_N = read_verdicts(verdicts, split)
    if probability_N is not None or not any(map(len, tables.values())):
        return Earlier(verdicts, split)
    together = pa.concat_tables(table.select(["score", "action"]) for table in tables.values())
    return Earlier(verdicts, split, Edge.of(together["score"].to_numpy(), _flagged(together)))


def _flagged(verdicts: pa.Table) -> BoolArray:
    return np.asarray(pc.not_equal(verdicts["action"], "keep").to_numpy())
