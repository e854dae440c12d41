"""The last step of an audit: texts of the worst offenders, pictures and the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raydr.data.annotations import positives_of, query_texts
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.schema import read_arrow, read_parquet, write_parquet
from raydr.noise.audit_result import AuditResult, PairFindings
from raydr.noise.detectors.base import MixtureFit
from raydr.noise.judges.base import judge_class
from raydr.noise.offenders import Offender
from raydr.noise.passage_kinds import KINDS
from raydr.pages.audit import AuditPictures, ShownOffender, ShownText, audit_page, figures_of
from raydr.pages.noise_plots import DetectedPairs, parse_fit, perplexity_histogram
from raydr.pages.plots import distributions
from raydr.stages.audit_parts import AuditInputs
from raydr.store.artifact import Artifact, Part, write_and_record
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
    detections = {one.judge: _detection(inputs, one) for one in result.pairs}
    result = replace(
        result,
        pairs=[
            replace(one, mean_probability=_mean_probability(inputs, one, detections[one.judge])) for one in result.pairs
        ],
    )
    pictures = figures_of(result)
    histograms = {
        f"perplexity_{name}.png": (
            perplexity_histogram(found.pairs, f"Perplexity of the annotated pairs ({name})"),
            "perplexities of the annotated pairs, the two components of the mixture, and where flagging begins",
        )
        for name, found in detections.items()
        if found is not None
    }
    pictures = AuditPictures(histograms | pictures.pairs, pictures.negatives, {"scores.png": _scores(output, scores)})
    shown = _shown(inputs, result, offenders, detections)
    captions = {f"{PLOTS}/{name}": caption for name, (_, caption) in pictures.all.items()}
    contents = {
        SUMMARY: (json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n").encode(),
        REPORT: audit_page(result, pictures, shown, provenance).encode(),
        **{f"{PLOTS}/{name}": png for name, (png, _) in pictures.all.items()},
    }
    parts = {name: write_and_record(output, name, 0, _writer(content)) for name, content in contents.items()}
    table = _offender_table(shown)
    parts[OFFENDERS] = write_and_record(output, OFFENDERS, len(table), partial(write_parquet, table))
    return parts, {**result.numbers, "captions": captions}


@dataclass(frozen=True)
class _Detection:
    pairs: DetectedPairs
    mean_probability: float | None

    def probability(self, perplexity: float) -> float | None:
        """Of a pair being mismatched."""
        fit = self.pairs.fit
        if fit is None or not fit.bimodal:
            return None
        return float(-np.expm1(fit.log_posterior(np.array([perplexity])))[0])


def _detection(inputs: AuditInputs, found: PairFindings) -> _Detection | None:
    """What a detector of mismatched pairs has kept; None for judges that are none."""
    artifact = Artifact.open(inputs.verdicts[found.judge], "verdicts")
    names = artifact.parts(f"detection/{inputs.split}")
    if not names:
        return None
    detection = pa.concat_tables([read_parquet(artifact.local(name)) for name in names])
    verdicts = [artifact.local(name) for name in artifact.parts(f"verdicts/{inputs.split}")]
    actions = pa.concat_tables([read_parquet(path, ["action"]) for path in verdicts])
    known = detection["truth"].null_count == 0 and len(detection) > 0
    fit: MixtureFit | None = parse_fit(artifact.info["detector"]["fit"])
    probability = detection["probability"].to_numpy() if "probability" in detection.column_names else None
    pairs = DetectedPairs(
        detection["perplexity"].to_numpy(),
        actions["action"].to_numpy() == "keep",
        fit,
        detection["truth"].to_numpy().astype(np.bool_) if known else None,
    )
    return _Detection(pairs, None if probability is None else float(probability.mean()))


def _mean_probability(inputs: AuditInputs, found: PairFindings, detection: _Detection | None) -> float | None:
    if detection is not None:
        return detection.mean_probability
    if not judge_class(found.settings).score_is_probability:
        return None
    artifact = Artifact.open(inputs.verdicts[found.judge], "verdicts")
    names = artifact.parts(f"verdicts/{inputs.split}")
    scores = np.concatenate([read_parquet(artifact.local(name), ["score"])["score"].to_numpy() for name in names])
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
    shown: dict[str, list[ShownOffender]] = {}
    for judge, listed in offenders.items():
        if judge in pair_judges:
            shown[judge] = [texts.of_pair(one, detections[judge]) for one in listed]
        else:
            shown[judge] = [texts.of_negative(one) for one in listed]
    return shown


class _Texts:
    """Texts and provenance of a few queries."""

    def __init__(self, inputs: AuditInputs, query_ids: list[str]) -> None:
        data = Dataset.open(inputs.dataset)
        self.corpus = Corpus.open(inputs.corpus)
        self.queries = dict(zip(query_ids, query_texts(data, inputs.split, query_ids), strict=True))
        self.positives = positives_of(data, inputs.split, query_ids)
        wanted = pa.array(query_ids, pa.string())
        qrels = data.qrels(inputs.split)
        qrels = qrels.filter(pc.is_in(qrels["query_id"], value_set=wanted))
        self.replaced = {
            (row["query_id"], row["passage_id"]): row["original_passage_id"]
            for row in qrels.to_pylist()
            if row["original_passage_id"] is not None
        }
        self.mined: dict[str, list[dict[str, Any]]] = {query_id: [] for query_id in query_ids}
        if inputs.negatives is not None:
            mined = Artifact.open(inputs.negatives, "negatives")
            for part in mined.parts(f"negatives/{inputs.split}"):
                table = read_arrow(mined.local(part))
                for row in table.filter(pc.is_in(table["query_id"], value_set=wanted)).to_pylist():
                    self.mined[row["query_id"]].append(row)

    def of_pair(self, one: Offender, detection: _Detection | None) -> ShownOffender:
        """The query, its suspicious annotation, and a passage that may be better: the one that stood there before
        noise was injected, else the miner's first."""
        passages = [("annotated, suspicious", one.passage_id)]
        original = self.replaced.get((one.query_id, one.passage_id))
        mined = sorted(self.mined[one.query_id], key=lambda row: (row["rank"], row["passage_id"]))
        if original is not None:
            passages.append(("replaced by it on purpose", original))
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
    strings = pa.list_(pa.string())
    schema = pa.schema(
        [
            ("judge", pa.string()),
            ("query_id", pa.string()),
            ("passage_id", pa.string()),
            ("score", pa.float64()),
            ("action", pa.string()),
            ("truth", pa.bool_()),
            ("flagged_by", strings),
            ("not_flagged_by", strings),
            ("facts", strings),
            ("texts", pa.list_(text)),
        ]
    )
    return pa.Table.from_pylist(rows, schema=schema)


def _writer(content: bytes) -> Callable[[str], None]:
    def write(path: str) -> None:
        Path(path).write_bytes(content)

    return write
