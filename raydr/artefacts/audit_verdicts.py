"""Findings of an audit from verdicts: flagged pairs and their probabilities, flagged candidates and their queries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raydr.artefacts.judged import DETECTION, VERDICTS, read_verdicts
from raydr.data import Corpus, Dataset
from raydr.data.tables import BY_NAME, read_arrow, read_parquet
from raydr.noise.audit_result import NegativeFindings, PairFindings
from raydr.noise.detection_report import report_detection
from raydr.noise.judges.base import judge_class
from raydr.pages.audit import DetectedPairs, parse_fit
from raydr.store import Artifact

if TYPE_CHECKING:
    import pandas as pd

#: Number of shown verdicts of each judge.
NUM_SHOWN = 10
#: Columns read from verdicts, of which the first two are the key.
_COLUMNS = ["query_id", "passage_id", "score", "action", "truth"]
PAIR = ["query_id", "passage_id"]


@dataclass(frozen=True)
class Audited:
    """Input of an audit; small and picklable.

    Args:
        split: judged split.
        data, corpus: judged data.
        negatives: judged candidates; None if only pairs were judged.
        verdicts: verdicts by judge.
    """

    split: str
    data: Dataset
    corpus: Corpus
    negatives: Artifact | None
    verdicts: Mapping[str, Artifact]

    @cached_property
    def score_names(self) -> dict[str, str]:
        """Name of each judge's score."""
        return {name: judge_class(artifact.info["settings"]).score_name for name, artifact in self.verdicts.items()}

    def judges(self, subject: str) -> list[str]:
        return [name for name, artifact in self.verdicts.items() if artifact.info["subject"] == subject]


def read_pairs(audited: Audited, judge: str) -> pd.DataFrame:
    """Read the verdicts of a judge of pairs: query_id, passage_id, score, action, truth, judge, flagged, and ``p``,
    P(mismatched) (NaN if the judge gives none).
    """
    tables, probability_N = read_verdicts(audited.verdicts[judge], audited.split)
    frame = _frame([table.select(_COLUMNS) for table in tables.values()])
    return frame.assign(judge=judge, p=np.nan if probability_N is None else probability_N)


def _frame(tables: Sequence[pa.Table]) -> pd.DataFrame:
    frame: pd.DataFrame = pa.concat_tables([BY_NAME["verdicts"].empty_table().select(_COLUMNS), *tables]).to_pandas()
    return frame.assign(flagged=frame["action"] != "keep")


def settle(audited: Audited, pairs: Mapping[str, pd.DataFrame]) -> tuple[str, pd.DataFrame]:
    """Return the deciding judges and a verdict for each pair.

    The first judge of pairs decides; the later judges of its chain override it.
    """
    import pandas as pd

    chain = list(pairs)[:1]
    for judge in pairs:
        if audited.verdicts[judge].info.get("after") == chain[-1]:
            chain.append(judge)
    verdicts = pd.concat([pairs[judge] for judge in chain]).drop_duplicates(PAIR, keep="last")
    return ", then ".join(chain), verdicts


def pair_findings(audited: Audited, pairs: Mapping[str, pd.DataFrame]) -> list[PairFindings]:
    """Return the combined findings, then those of each judge if there are several."""
    name, settled = settle(audited, pairs)
    by_judge = [_of_judge(audited.verdicts[judge], judge, frame) for judge, frame in pairs.items()]
    if name in pairs:
        return by_judge
    detection = None
    if settled["truth"].notna().all() and settled["p"].notna().all() and len(settled):
        truth = settled["truth"].astype(bool)
        detection = asdict(report_detection(truth, settled["flagged"], settled["p"], settled["p"]))
    return [_findings(name, settled, None, by_judge[0].reason, {}, detection), *by_judge]


def _of_judge(verdicts: Artifact, judge: str, frame: pd.DataFrame) -> PairFindings:
    detector, comes_after = verdicts.info.get("detector", {}), "after" in verdicts.info
    # A later judge of a chain keeps the earlier verdict where it has none.
    reason = "" if comes_after else detector.get("reason", "")
    share, settings = detector.get("share_mismatched"), verdicts.info["settings"]
    return _findings(judge, frame, share, reason, settings, verdicts.info.get("detection"))


def _findings(
    judge: str,
    frame: pd.DataFrame,
    share: float | None,
    reason: str,
    settings: dict[str, object],
    detection: dict[str, object] | None,
) -> PairFindings:
    known = bool(len(frame)) and bool(frame["p"].notna().all())
    return PairFindings(
        judge=judge,
        num_judged=len(frame),
        num_flagged=int(frame["flagged"].sum()),
        num_expected=float(frame["p"].sum()) if known else None,
        num_expected_flagged=float(frame["p"][frame["flagged"]].sum()) if known else None,
        share_estimated=share,
        reason=reason,
        settings=settings,
        detection=detection,
    )


def detected_pairs(audited: Audited, judge: str, frame: pd.DataFrame) -> DetectedPairs | None:
    """Return the basis of a margin judge's verdicts; None for other judges."""
    verdicts = audited.verdicts[judge]
    tables = [read_parquet(verdicts.local(name)) for name in verdicts.parts(f"{DETECTION}/{audited.split}")]
    if not tables or "margin" not in tables[0].column_names:
        return None
    detection = pa.concat_tables(tables)
    known = detection["truth"].null_count == 0 and len(detection) > 0
    return DetectedPairs(
        detection["margin"].to_numpy(),
        ~frame["flagged"].to_numpy(),
        parse_fit(verdicts.info["detector"]["fit"]),
        detection["truth"].to_numpy().astype(np.bool_) if known else None,
    )


def worst_first(frame: pd.DataFrame, others: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a judge's verdicts, the most suspicious first, with the other judges in ``flagged_by`` and ``kept_by``."""
    keys = [key for key in ("p", "score") if key in frame]
    ordered = frame.sort_values([*keys, *PAIR], ascending=[False] * len(keys) + [True, True], ignore_index=True)
    judges_of: dict[str, list[list[str]]] = {
        name: [[] for _ in range(len(ordered))] for name in ("flagged_by", "kept_by")
    }
    for judge, other in others.items():
        agrees = ordered[PAIR].merge(other.drop_duplicates(PAIR)[[*PAIR, "flagged"]], on=PAIR, how="left")["flagged"]
        for at, value in enumerate(agrees.tolist()):
            if isinstance(value, bool):
                judges_of["flagged_by" if value else "kept_by"][at].append(judge)
    for name, judges in judges_of.items():
        ordered[name] = judges
    return ordered


def rows_in(frame: pd.DataFrame) -> Iterator[Any]:
    """Yield rows with columns as attributes."""
    yield from frame.itertuples(index=False)


def audit_negatives(audited: Audited, suspected: set[str]) -> tuple[list[NegativeFindings], dict[str, pd.DataFrame]]:
    """Count the flags of judges of candidates, with one part of the candidates in memory.

    Queries with a flagged pair are excluded: beside a mismatched positive all candidates look positive.

    Args:
        audited: input of the audit.
        suspected: ids of queries whose annotated pair is flagged.

    Returns:
        The findings, and each judge's highest scores, a single score a query, see :func:`worst_first`.
    """
    import pandas as pd

    judges = audited.judges("negatives")
    counts = {judge: Counter[str]() for judge in judges}
    best: dict[str, pd.DataFrame] = {judge: pd.DataFrame() for judge in judges}
    for frames in _by_part(audited, judges, suspected):
        for judge, frame in frames.items():
            flagged = frame[frame["flagged"]].sort_values("score", ascending=False)
            counts[judge].update(
                num_queries=frame["query_id"].nunique(),
                num_queries_flagged=flagged["query_id"].nunique(),
                num_candidates=len(frame),
                num_flagged=len(flagged),
                num_flagged_in_top_10=int((flagged["rank"] <= 10).sum()),
            )
            mine = flagged.drop_duplicates("query_id").head(NUM_SHOWN)
            mine = worst_first(mine, {name: other for name, other in frames.items() if name != judge})
            best[judge] = pd.concat([best[judge], mine], ignore_index=True)
    findings = []
    for judge in judges:
        if len(best[judge]):
            best[judge] = best[judge].sort_values("score", ascending=False).head(NUM_SHOWN)
        info = audited.verdicts[judge].info
        known = {"settings": info["settings"], "detection": info.get("detection")}
        findings.append(NegativeFindings(judge=judge, **counts[judge], **known))
    return findings, best


def _by_part(audited: Audited, judges: Sequence[str], left_out: Collection[str]) -> Iterator[dict[str, pd.DataFrame]]:
    """Yield the verdicts of all judges on each part of the candidates, with ``rank``, the candidate's best.

    Judges split a part into pieces of different sizes. The higher score counts for a candidate of two miners.
    """
    if not judges:
        return
    assert audited.negatives is not None
    start = f"{VERDICTS}/{audited.split}/part-"
    for at, part in enumerate(audited.negatives.parts(f"negatives/{audited.split}")):
        mined = read_arrow(audited.negatives.local(part)).select([*PAIR, "rank"]).to_pandas()
        ranks = mined.groupby(PAIR, as_index=False)["rank"].min()
        frames = {}
        for judge in judges:
            verdicts = audited.verdicts[judge]
            names = [name for name in verdicts.parts() if name.startswith(f"{start}{at:05d}-")]
            frame = _frame([read_parquet(verdicts.local(name), _COLUMNS) for name in names])
            frame = frame.sort_values("score").drop_duplicates(PAIR, keep="last")
            frames[judge] = frame[~frame["query_id"].isin(left_out)].merge(ranks, on=PAIR)
        yield frames
