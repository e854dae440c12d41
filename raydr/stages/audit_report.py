"""The last step of an audit: texts of the worst offenders, pictures and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from raydr.data.annotations import positives_of, query_texts
from raydr.data.dataset import read_split
from raydr.data.schema import read_parquet
from raydr.data.tables import of_queries
from raydr.noise.audit_result import AuditResult
from raydr.noise.detectors.base import MixtureFit
from raydr.noise.judges.base import judge_class
from raydr.noise.offenders import Offender
from raydr.noise.passage_kinds import KINDS
from raydr.pages.audit import ShownOffender, ShownText, audit_page, figures_of
from raydr.pages.noise_plots import DetectedPairs, parse_fit, perplexity_histogram
from raydr.pages.plots import distributions
from raydr.stages.audit_parts import AuditInputs
from raydr.stages.parts import as_json, write_contents, write_table
from raydr.store.artifact import Part
from raydr.store.folder import Folder

SUMMARY, REPORT, OFFENDERS = "summary.json", "report.html", "offenders.parquet"
#: Folder of the pictures.
PLOTS = "plots"


def write_report(
    inputs: AuditInputs,
    result: AuditResult,
    offenders: dict[str, list[Offender]],
    scores: list[str],
    provenance: list[tuple[str, str]],
    output: Folder,
) -> tuple[dict[str, Part], dict[str, Any]]:
    """Draw and write everything.

    Args:
        inputs: what is audited.
        result: the figures; mean probabilities of judges of pairs are added here.
        offenders: by judge.
        scores: parts with the scores of the sample.
        provenance: names and fingerprints of the inputs.
        output: the folder of the audit.

    Returns:
        The parts that were written, and the main figures with the pictures' captions.
    """
    detections = {one.judge: _detection(inputs, one.judge) for one in result.pairs}
    known = {name: _mean_probability(inputs, name, found) for name, found in detections.items()}
    result = replace(result, pairs=[replace(one, mean_probability=known[one.judge]) for one in result.pairs])
    pictures = figures_of(result)
    histograms = {
        f"perplexity_{name}.png": (
            perplexity_histogram(found.pairs, f"Perplexity of the annotated pairs ({name})"),
            found.pairs.caption,
        )
        for name, found in detections.items()
        if found is not None and found.pairs is not None
    }
    pictures |= {"pairs": histograms | pictures["pairs"], "scores": {"scores.png": _scores(output, scores)}}
    drawn = {f"{PLOTS}/{name}": picture for of_kind in pictures.values() for name, picture in of_kind.items()}
    shown = _shown(inputs, result, offenders, detections)
    captions = {name: caption for name, (_, caption) in drawn.items()}
    contents: dict[str, bytes | str] = {
        SUMMARY: as_json(result.to_json()),
        REPORT: audit_page(result, pictures, shown, provenance),
        **{name: png for name, (png, _) in drawn.items()},
    }
    parts = write_contents(output, contents) | {OFFENDERS: write_table(output, OFFENDERS, _offender_table(shown))}
    return parts, {**result.numbers, "captions": captions}


@dataclass(frozen=True)
class _Detection:
    #: Of the verdict on each pair.
    score_N: NDArray[np.float64]
    #: Of each pair being mismatched; None if the detector could not tell.
    probability_N: NDArray[np.float64] | None
    #: Their perplexities, of judges that go by these.
    pairs: DetectedPairs | None

    @property
    def mean_probability(self) -> float | None:
        return float(self.probability_N.mean()) if self.probability_N is not None and len(self.probability_N) else None

    def probability(self, score: float) -> float | None:
        """Of the pair being mismatched that has this score."""
        if self.probability_N is None:
            return None
        return float(self.probability_N[np.abs(self.score_N - score).argmin()])


def _detection(inputs: AuditInputs, judge: str) -> _Detection | None:
    """What the decision on all pairs rests on; None for judges that decide on each by itself."""
    tables = inputs.columns(judge, "detection")
    if not tables:
        return None
    detection = pa.concat_tables(tables)
    verdicts = pa.concat_tables(inputs.columns(judge, "verdicts", ["action", "score"]))
    score_N = verdicts["score"].to_numpy().astype(np.float64)
    probability = detection["probability"].to_numpy() if "probability" in detection.column_names else None
    if "perplexity" not in detection.column_names:
        return _Detection(score_N, probability, None)
    known = detection["truth"].null_count == 0 and len(detection) > 0
    fit: MixtureFit | None = parse_fit(inputs.verdicts[judge].info["detector"]["fit"])
    pairs = DetectedPairs(
        detection["perplexity"].to_numpy(),
        verdicts["action"].to_numpy() == "keep",
        fit,
        detection["truth"].to_numpy().astype(np.bool_) if known else None,
    )
    return _Detection(score_N, probability, pairs)


def _mean_probability(inputs: AuditInputs, judge: str, detection: _Detection | None) -> float | None:
    if "after" in inputs.verdicts[judge].info:
        # Of what another judge doubted: no share of the pairs.
        return None
    if detection is not None:
        return detection.mean_probability
    if not judge_class(inputs.verdicts[judge].info["settings"]).score_is_probability:
        return None
    scores = np.concatenate([table["score"].to_numpy() for table in inputs.columns(judge, "verdicts", ["score"])])
    return float(scores.mean()) if len(scores) else None


def _scores(output: Folder, names: Sequence[str]) -> tuple[bytes, str]:
    tables = [read_parquet(output.localize(name), ["kind", "score"]) for name in names]
    table = pa.concat_tables(tables)
    kinds, scores = table["kind"].to_numpy(), table["score"].to_numpy()
    series = {kind: scores[kinds == kind] for kind in KINDS if (kinds == kind).any()}
    caption = "similarities of a sample of the queries with their passages"
    return distributions(series, "Scores under the model", "similarity"), caption


def _shown(
    inputs: AuditInputs,
    result: AuditResult,
    offenders: Mapping[str, Sequence[Offender]],
    detections: Mapping[str, _Detection | None],
) -> dict[str, list[ShownOffender]]:
    """The offenders with their texts."""
    texts = _Texts(inputs, sorted({one.query_id for listed in offenders.values() for one in listed}))
    pair_judges = {one.judge for one in result.pairs}
    return {
        judge: [
            texts.of_pair(one, detections[judge]) if judge in pair_judges else texts.of_negative(one) for one in listed
        ]
        for judge, listed in offenders.items()
    }


class _Texts:
    """Texts and provenance of a few queries."""

    def __init__(self, inputs: AuditInputs, query_ids: list[str]) -> None:
        data, self.corpus = inputs.data, inputs.corpus
        self.queries = dict(zip(query_ids, query_texts(data, inputs.split, query_ids), strict=True))
        self.positives = positives_of(data, inputs.split, query_ids)
        self.replaced = {
            (row["query_id"], row["passage_id"]): row["original_passage_id"]
            for row in of_queries(data.qrels(inputs.split), query_ids).to_pylist()
            if row["original_passage_id"] is not None
        }
        self.mined: dict[str, list[dict[str, Any]]] = {query_id: [] for query_id in query_ids}
        if inputs.negatives is not None:
            table = read_split(inputs.negatives, "negatives", inputs.split)
            for row in of_queries(table, query_ids).to_pylist():
                self.mined[row["query_id"]].append(row)

    def of_pair(self, one: Offender, detection: _Detection | None) -> ShownOffender:
        """The query, its suspicious annotation, and a passage that may be better: the one that stood there before
        noise was injected, else the miner's first."""
        passages = [("annotated, suspicious", one.passage_id)]
        original = self.replaced.get((one.query_id, one.passage_id))
        mined = sorted(self.mined[one.query_id], key=lambda row: (row["rank"], row["passage_id"]))
        if original is not None:
            passages.append(("the true passage, replaced on purpose", original))
        elif mined:
            passages.append((f"first candidate of {mined[0]['miner']}", mined[0]["passage_id"]))
        probability = detection.probability(one.score) if detection is not None else None
        facts = () if probability is None else (f"mismatched with probability {probability:.3f}",)
        return ShownOffender(one, self._texts(one.query_id, passages), facts)

    def of_negative(self, one: Offender) -> ShownOffender:
        """The query, its annotated passage, and the suspicious candidate with its provenance."""
        annotated = [("annotated", passage_id) for passage_id in self.positives.get(one.query_id, [])[:1]]
        rows = [row for row in self.mined[one.query_id] if row["passage_id"] == one.passage_id]
        facts = []
        for row in rows:
            score = "" if row["score"] is None else f", score {row['score']:.4g}"
            positive = "" if row["positive_score"] is None else f" (positive {row['positive_score']:.4g})"
            facts.append(f"found by {row['miner']}, round {row['round']}, rank {row['rank']}{score}{positive}")
        passages = [*annotated, ("candidate, suspicious", one.passage_id)]
        return ShownOffender(one, self._texts(one.query_id, passages), tuple(facts))

    def _texts(self, query_id: str, passages: Sequence[tuple[str, str]]) -> tuple[ShownText, ...]:
        found = self.corpus.texts(self.corpus.rows_of([passage_id for _, passage_id in passages]))
        columns = zip(passages, found.titles, found.texts, strict=True)
        return (
            ShownText("query", query_id, "", self.queries[query_id]),
            *(ShownText(role, passage_id, title, text) for (role, passage_id), title, text in columns),
        )


def _offender_table(shown: Mapping[str, Sequence[ShownOffender]]) -> pa.Table:
    rows = [
        {
            **asdict(one.offender),
            "flagged_by": list(one.offender.flagged_by),
            "not_flagged_by": list(one.offender.not_flagged_by),
            "facts": list(one.facts),
            "texts": [asdict(text) for text in one.texts],
        }
        for listed in shown.values()
        for one in listed
    ]
    text = pa.struct([(name, pa.string()) for name in ("role", "text_id", "title", "text")])
    types = {
        **dict.fromkeys(("judge", "query_id", "passage_id"), pa.string()),
        "score": pa.float64(),
        "action": pa.string(),
        "truth": pa.bool_(),
        **dict.fromkeys(("flagged_by", "not_flagged_by", "facts"), pa.list_(pa.string())),
        "texts": pa.list_(text),
    }
    return pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))
