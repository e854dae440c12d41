"""Audit: the estimated noise of a data set, its uncertainty, and the worst examples.

Artefact ``audit``::

    report.html    main result, figures, a histogram, the worst pairs
    flagged.csv    all flagged pairs, the surest first, with :data:`FLAGGED_COLUMNS`
    summary.json   the figures, see :class:`raydr.noise.audit_result.AuditResult`
    plots/*.png    plots of the page

Verdicts are separate artefacts. A single call reads them part by part; the driver gets counts.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raydr.artefacts import Context, Node, artefact
from raydr.artefacts.audit_verdicts import (
    NUM_SHOWN,
    Audited,
    audit_negatives,
    detected_pairs,
    pair_findings,
    read_pairs,
    rows_in,
    settle,
    worst_first,
)
from raydr.artefacts.dataset import declare_data
from raydr.console import prose, show_summary, show_table, warn
from raydr.data import Corpus, Dataset
from raydr.data.dataset import positives_of, query_texts, read_split
from raydr.data.inspection import SplitInspection, count_leaks
from raydr.data.tables import of_queries, places_of
from raydr.distributed.parts import as_json, write_contents
from raydr.distributed.pool import Pool
from raydr.errors import ConfigError
from raydr.evaluation.config import EvaluateConfig
from raydr.noise.audit_result import AuditResult
from raydr.noise.margins import compared_with_random
from raydr.pages.audit import (
    ShownText,
    ShownVerdict,
    audit_page,
    margin_histogram,
    negative_rows,
    pair_rows,
    quality_rows,
)
from raydr.pages.evaluation import transposed
from raydr.store import Artifact, Building, Folder, Part
from raydr.store.building import write_and_record

if TYPE_CHECKING:
    import pandas as pd

SUMMARY, REPORT, FLAGGED = "summary.json", "report.html", "flagged.csv"
#: Folder of the plots.
PLOTS = "plots"
#: Columns of flagged pairs: source file and line of the pair, texts, P(mismatched), and the basis of the verdict.
FLAGGED_COLUMNS = ("source", "line", "query_id", "query", "passage_id", "title", "passage", "p", "why")
#: Flagged pairs whose texts are held at once.
_BLOCK = 10_000


def audit(context: Context, name: str, verdicts: Mapping[str, Node], negatives: Node | None, split: str) -> Node:
    """Return the node of a report on verdicts.

    Args:
        context: config.
        name: name of the judges' model.
        verdicts: verdicts by judge.
        negatives: judged candidates, if any.
        split: judged split.
    """
    config = context.config
    return report_verdicts.node(
        f"{context.place}audit-{name}-{split}",
        **declare_data(context),
        verdicts=verdicts,
        negatives=negatives,
        model_name=name,
        judges=list(verdicts),
        num_shown=NUM_SHOWN,
        split=split,
        train_split=config.data.train_split,
        seed=config.seed,
        answers=config.evaluate.of_answers(),
    )


@artefact("audit", version=9, rows=lambda of: of.dataset.rows(f"qrels/{of.split}"), moves=True)
def report_verdicts(
    making: Building,
    pool: Pool,
    dataset: Artifact,
    corpus: Artifact,
    verdicts: Mapping[str, Artifact],
    negatives: Artifact | None = None,
    *,
    model_name: str,
    judges: Sequence[str] = (),
    num_shown: int = NUM_SHOWN,
    split: str,
    train_split: str,
    seed: int,
    answers: EvaluateConfig,
) -> dict[str, Any]:
    """Report on the verdicts of judges.

    Args:
        making: ``audit`` artefact to make.
        pool: pool for the work.
        dataset, corpus: judged data.
        verdicts: verdicts by judge, on pairs or negatives.
        negatives: judged candidates, for verdicts on negatives.
        model_name: name of the judges' model.
        judges: judges in the order of the page, which is part of the key.
        num_shown: number of pairs on the page.
        split: judged split.
        train_split: training split, whose queries should not be in other splits.
        seed: seed of the sample of queries that are searched for answers.
        answers: settings of answer matching.

    Raises:
        ConfigError: there are no verdicts.
    """
    if not verdicts:
        raise ConfigError("an audit needs verdicts of at least one judge")
    audited = Audited(split, Dataset(dataset), Corpus(corpus), negatives, dict(verdicts))
    names = {"split": split, "model": model_name, "train_split": train_split}
    provenance = list(making.identity.inputs.items())
    parts, numbers = pool.run(_write, making.folder, audited, names, seed, answers, provenance)
    making.done.update(parts)
    return {**names, "judges": list(verdicts), **numbers}


def load_result(artifact: Artifact) -> AuditResult:
    """Read the figures of an ``audit`` artefact."""
    return AuditResult.model_validate(artifact.read_json(SUMMARY))


def show(artifact: Artifact) -> None:
    """Print the main result, the tables and the files of an ``audit`` artefact."""
    result = load_result(artifact)
    for fault in result.faults:
        warn(fault)
    if len(result.pairs) > 1:
        show_table("mismatched pairs", *transposed(pair_rows(result)))
    if result.negatives:
        note = f", without queries that {result.suspected_by} flags" if result.suspected_by else ""
        show_table(f"false negatives{note}", *transposed(negative_rows(result)))
    quality = quality_rows([*result.pairs, *result.negatives])
    if quality[1]:
        show_table("against the truth", *transposed(quality))
    prose(result.headline, "bold")
    listed = {"all of these": artifact.folder / FLAGGED} if result.pairs else {}
    show_summary("audit", {"report": artifact.folder / REPORT, **listed})


def _write(
    output: Folder,
    audited: Audited,
    names: Mapping[str, str],
    seed: int,
    answers: EvaluateConfig,
    provenance: Sequence[tuple[str, str]],
) -> tuple[dict[str, Part], dict[str, float]]:
    """Count, plot and write; return the parts and the main figures."""
    data, split = audited.data, audited.split
    pairs = {judge: read_pairs(audited, judge) for judge in audited.judges("pairs")}
    shown: dict[str, list[ShownVerdict]] = {}
    parts: dict[str, Part] = {}
    suspected: set[str] = set()
    if pairs:
        judges, settled = settle(audited, pairs)
        others = {judge: frame for judge, frame in pairs.items() if judge not in judges.split(", then ")}
        flagged = worst_first(settled[settled["flagged"]], others)
        suspected = set(flagged["query_id"])
        suspicious = flagged if len(flagged) else worst_first(settled.nlargest(_BLOCK, "score"), others)
        write = partial(_write_flagged, audited, flagged)
        parts[FLAGGED] = write_and_record(output, FLAGGED, len(flagged), write)
        shown["pairs"] = _show_pairs(audited, suspicious.drop_duplicates("query_id").head(NUM_SHOWN))
    negatives, best = audit_negatives(audited, suspected)
    shown |= {judge: _show_candidates(audited, judge, frame) for judge, frame in best.items()}
    inspected = SplitInspection.of(data, audited.corpus, split, seed)
    result = AuditResult(
        **names,
        data=inspected.report(answers.answer_match, answers.answer_query_prefixes),
        num_leaked=count_leaks(data, split, names["train_split"]),
        num_left_out=sum(artifact.info.get("num_bad", 0) for artifact in (audited.corpus.artifact, data.artifact)),
        pairs=pair_findings(audited, pairs) if pairs else [],
        negatives=negatives,
    )
    pictures = {
        f"{PLOTS}/margins_{judge}.png": (
            margin_histogram(measured, f"Annotated pairs: {judge}"),
            measured.caption,
        )
        for judge, frame in pairs.items()
        if (measured := detected_pairs(audited, judge, frame)) is not None
    }
    page = audit_page(result, [*pictures.values()], shown, provenance)
    contents: dict[str, bytes | str] = {
        SUMMARY: as_json(result.model_dump(mode="json")),
        REPORT: page,
        **{name: png for name, (png, _) in pictures.items()},
    }
    return parts | write_contents(output, contents), result.numbers


def _write_flagged(audited: Audited, flagged: pd.DataFrame, path: str) -> None:
    qrels = audited.data.qrels(audited.split)
    place_of = places_of(qrels, set(zip(flagged["query_id"], flagged["passage_id"], strict=True)))
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(FLAGGED_COLUMNS)
        for start in range(0, len(flagged), _BLOCK):
            block = flagged.iloc[start : start + _BLOCK]
            queries = query_texts(audited.data, audited.split, block["query_id"].tolist())
            places = audited.corpus.rows_of(block["passage_id"].tolist())
            values = (audited.corpus.passages.column(name, places) for name in ("title", "text"))
            of_qrels = qrels.take([place_of[pair] for pair in zip(block["query_id"], block["passage_id"], strict=True)])
            lines = (of_qrels[name].to_pylist() for name in ("source", "line"))
            for row, query, title, text, *place in zip(rows_in(block), queries, *values, *lines, strict=True):
                p = "" if math.isnan(row.p) else f"{row.p:.4f}"
                why = "; ".join(_why(audited, row))
                rows.writerow([*place, row.query_id, query, row.passage_id, title, text, p, why])


def _why(audited: Audited, row: Any) -> Iterator[str]:
    """Yield the basis of a verdict."""
    name = audited.score_names[row.judge]
    basis = compared_with_random(row.score) if name == "margin" else f"{name} {row.score:.3g}"
    yield f"{row.judge}: {basis}"
    for word, judges in (("also flagged by", row.flagged_by), ("kept by", row.kept_by)):
        if judges:
            yield f"{word} {', '.join(judges)}"


def _show_pairs(audited: Audited, flagged: pd.DataFrame) -> list[ShownVerdict]:
    """Show a query, its suspicious passage, and a candidate for a better one: the original passage before noise
    injection, else the miner's best.
    """
    ids, split = flagged["query_id"].tolist(), audited.split
    rows = of_queries(audited.data.qrels(split), ids).to_pylist()
    replaced = {(row["query_id"], row["passage_id"]): row["original_passage_id"] for row in rows}
    first = {row["query_id"]: row for row in reversed(_mined(audited, ids))}
    shown = []
    for row in rows_in(flagged):
        passages = [("annotated, suspicious", row.passage_id)]
        if original := replaced.get((row.query_id, row.passage_id)):
            passages.append(("the true passage, replaced on purpose", original))
        elif mined := first.get(row.query_id):
            passages.append((f"first candidate of {mined['miner']}", mined["passage_id"]))
        facts = [] if math.isnan(row.p) else [f"P(mismatched) = {row.p:.3f}"]
        shown.append(_shown(audited, row, [*facts, *_why(audited, row)], passages))
    return shown


def _show_candidates(audited: Audited, judge: str, flagged: pd.DataFrame) -> list[ShownVerdict]:
    """Show a query, its annotated passage, and the suspicious candidate with its provenance."""
    if not len(flagged):
        return []
    ids = flagged["query_id"].tolist()
    positives, mined = positives_of(audited.data, audited.split, ids), _mined(audited, ids)
    shown = []
    for row in rows_in(flagged.assign(judge=judge)):
        facts = [*_why(audited, row)]
        for candidate in mined:
            if (candidate["query_id"], candidate["passage_id"]) == (row.query_id, row.passage_id):
                score = "" if candidate["score"] is None else f", score {candidate['score']:.4g}"
                positive = (
                    "" if candidate["positive_score"] is None else f" (positive {candidate['positive_score']:.4g})"
                )
                facts.append(
                    f"mined by {candidate['miner']}, round {candidate['round']}, rank {candidate['rank']}"
                    f"{score}{positive}"
                )
        annotated = [("annotated", passage_id) for passage_id in positives.get(row.query_id, [])[:1]]
        shown.append(_shown(audited, row, facts, [*annotated, ("candidate, suspicious", row.passage_id)]))
    return shown


def _mined(audited: Audited, query_ids: list[str]) -> list[dict[str, Any]]:
    """Return the candidates of queries, best ranks first."""
    if audited.negatives is None:
        return []
    rows = of_queries(read_split(audited.negatives, "negatives", audited.split), query_ids).to_pylist()
    return sorted(rows, key=lambda row: (row["rank"], row["passage_id"]))


def _shown(audited: Audited, row: Any, facts: Sequence[str], passages: Sequence[tuple[str, str]]) -> ShownVerdict:
    truth = [] if row.truth is None else ["injected noise" if row.truth else "no injected noise"]
    [query] = query_texts(audited.data, audited.split, [row.query_id])
    texts = audited.corpus.texts(audited.corpus.rows_of([passage_id for _, passage_id in passages]))
    columns = zip(passages, texts.titles, texts.texts, strict=True)
    return ShownVerdict(
        row.query_id,
        [*facts, *truth],
        [
            ShownText("query", row.query_id, "", query),
            *(ShownText(role, passage_id, title, text) for (role, passage_id), title, text in columns),
        ],
    )
