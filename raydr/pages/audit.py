"""What an audit says, for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from raydr.noise.agreement import Agreement
from raydr.noise.audit_result import AuditResult, NegativeFindings, PairFindings, inconclusive
from raydr.noise.judges.base import judge_class
from raydr.noise.offenders import Offender
from raydr.pages.html import ABSENT, Page, number
from raydr.pages.noise_plots import count_bars, matrix_picture, reliability_diagram
from raydr.store.identity import flatten

#: Ranks that the share of the false negatives is given for, as in Park et al. (HCLT 2023), figure 6.
RANKS = (10, 20, 40)
#: Longest bar chart of ranks.
_MAX_BARS = 200
_MAX_TEXT = 3000

PAIRS_CAPTION = "what the judges take for mismatched pairs: estimates of their share, as good as the judge"
PAIRS_LEGEND = (
    "mean probability: of a pair being mismatched, an estimate of the share without a threshold. estimated share: the "
    "detector's own, the weight of the higher of two groups of perplexities, or how many are like random pairs. "
    "calibration error: how far probabilities are from the true shares. average precision: area under precision by "
    "recall."
)
NEGATIVES_LEGEND = (
    "mean, max: flagged candidates of a query that has some. flagged in top 10: share of the flagged ones that the "
    "miner has among its best 10. A sieve's share is no estimate of how many false negatives there are."
)
KNOWN_LEGEND = (
    "Candidates that are not known to be false negatives count as wrongly flagged, which some of them are not: the "
    "precision is a lower bound."
)


@dataclass(frozen=True)
class ShownText:
    """A passage or query, with what it is."""

    role: str
    text_id: str
    title: str
    text: str


@dataclass(frozen=True)
class ShownOffender:
    """An offender with its texts, the query first.

    Args:
        offender: the verdict.
        texts: query, annotated passage, suspicious passage, and whatever helps to judge them.
        facts: where the passage comes from, and what else is known.
    """

    offender: Offender
    texts: tuple[ShownText, ...]
    facts: tuple[str, ...] = ()


Findings = PairFindings | NegativeFindings
#: PNGs by file name, with their captions.
Pictures = dict[str, tuple[bytes, str]]


def pair_rows(result: AuditResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: what each judge of pairs estimates."""
    columns = ["judge", "pairs", "flagged", "share flagged", "mean probability", "estimated share"]
    rows = []
    for one in result.pairs:
        shares = (one.share_flagged, one.mean_probability, one.share_estimated)
        shown = ["inconclusive" if one.reason else number(one.num_flagged), *(number(share, ".1%") for share in shares)]
        rows.append([one.judge, number(one.num_judged), *shown])
    return columns, rows


def negative_rows(result: AuditResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: where each judge of negatives finds false ones, in the queries that are trusted."""
    columns = ["judge", "queries", "candidates", "share flagged", "share flagged in all queries", "queries with one"]
    columns += ["mean", "max", *(f"flagged in top {rank}" for rank in RANKS)]
    rows = []
    for one in result.negatives:
        found = one.trusted_queries
        shares = (found.share_flagged, one.all_queries.share_flagged, found.share_of_queries)
        row = [one.judge, number(found.num_queries), number(found.num_candidates)]
        row += [number(share, ".1%") for share in shares]
        row += [number(found.mean_number, ".1f"), number(found.max_number)]
        rows.append(row + [number(found.share_within(rank), ".1%") for rank in RANKS])
    return columns, rows


def quality_rows(findings: Sequence[Findings]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: quality of the judges whose verdicts have a known truth."""
    names = ("precision", "recall", "f1", "auroc", "average_precision", "calibration_error")
    rows = []
    for one in findings:
        if one.detection is not None:
            counts = (number(one.detection[name]) for name in ("count", "num_noisy", "num_flagged"))
            rows.append([one.judge, *counts, *(number(one.detection[name], ".3f") for name in names)])
    return ["judge", "with truth", "noisy", "flagged", *(name.replace("_", " ") for name in names)], rows


def figures_of(result: AuditResult) -> dict[str, Pictures]:
    """The pictures of ``pairs`` and of ``negatives`` that follow from the figures alone."""
    drawn: dict[str, Pictures] = {"pairs": {}, "negatives": {}}
    statistics = {one.judge: one.trusted_queries for one in result.negatives if one.trusted_queries.num_flagged}
    if statistics:
        numbers = {name: found.queries_by_number.tolist() for name, found in statistics.items()}
        drawn["negatives"]["false_negatives_per_query.png"] = (
            count_bars(numbers, 0, "False negatives of a query", "false negatives", "queries"),
            "queries by their number of flagged candidates",
        )
        ranks = {
            name: [100 * one / found.num_flagged for one in found.flagged_by_rank[1:_MAX_BARS].tolist()]
            for name, found in statistics.items()
        }
        drawn["negatives"]["false_negative_ranks.png"] = (
            count_bars(ranks, 1, "Ranks of the false negatives", "rank under the miner", "% of the flagged"),
            "where the flagged candidates sit in the miner's ranking",
        )
    kinds: list[tuple[str, Sequence[Findings], Agreement | None]] = [
        ("pairs", result.pairs, result.pair_agreement),
        ("negatives", result.negatives, result.negative_agreement),
    ]
    for kind, findings, agreement in kinds:
        if agreement is not None and len(agreement.judges) > 1:
            title = "Cohen's κ: 1 agree, 0 as by chance"
            picture = matrix_picture(agreement.kappa_JJ, agreement.judges, title, 0.0, 1.0)
            drawn[kind][f"agreement_{kind}.png"] = (picture, "agreement of the judges")
        if bins := {one.judge: one.detection["bins"] for one in findings if one.detection and one.detection["bins"]}:
            picture = reliability_diagram(bins, "Reliability of the probabilities")
            caption = "predicted probability of noise against its true share"
            drawn[kind][f"reliability_{kind}.png"] = (picture, caption)
    return drawn


def audit_page(
    result: AuditResult,
    pictures: Mapping[str, Pictures],
    offenders: Mapping[str, Sequence[ShownOffender]],
    provenance: Sequence[tuple[str, str]] = (),
) -> str:
    """The self-contained HTML report.

    Args:
        result: the figures.
        pictures: as from :func:`figures_of`, with the histograms added, and those of ``scores``.
        offenders: by judge, the worst first.
        provenance: names and fingerprints of what was audited.
    """
    page = Page(f"Audit of {result.split} with model {result.model}")
    page.paragraph(
        "Two kinds of noise: a mismatched pair is a query whose annotated passage does not answer it; a false negative "
        "is a candidate that answers the query and is not annotated. All shares are estimates by judges that err; "
        "quality is given where noise was put in on purpose."
    )
    page.heading("The data themselves")
    page.paragraph(
        f"{result.data.num_queries:,} queries with {result.data.num_judgments:,} judgments, of which "
        f"{result.data.num_positives:,} call a passage right. What no judge has to be asked about:"
    )
    for fault in result.faults or ["no dangling judgment, no copy that nobody judged, no leaked or poor query."]:
        page.paragraph(fault)
    if result.pairs:
        page.heading("Mismatched pairs").table(PAIRS_CAPTION, *pair_rows(result)).note(PAIRS_LEGEND)
        _rules(page, result.pairs)
        for one in result.pairs:
            if one.reason:
                page.note(inconclusive(one.judge, one.reason))
        _quality(page, result.pairs, "quality against the pairs that were mismatched on purpose")
        _evidence(page, "pairs", result.pairs, result.pair_agreement, pictures, offenders)
    if result.negatives:
        page.heading("False negatives")
        notes = [KNOWN_LEGEND]
        if judge := result.suspected_by:
            page.paragraph(
                f"Queries whose annotated pair {judge} suspects are left out, except where all queries are named: next "
                "to a mismatched positive nearly every candidate looks like a positive."
            )
            notes.append(
                f"{result.num_known_trusted:,} of the {result.num_known:,} known ones are in queries that {judge} does "
                "not suspect."
            )
        page.table("what the judges take for false negatives", *negative_rows(result)).note(NEGATIVES_LEGEND)
        _rules(page, result.negatives)
        known = "the false negatives that are known (planted, or replaced by a mismatched passage), over all queries"
        _quality(page, result.negatives, f"quality against {known}", notes)
        _evidence(page, "negatives", result.negatives, result.negative_agreement, pictures, offenders)
    page.heading("Scores")
    page.paragraph(f"Similarities of a sample of the queries under model {result.model}, without the scale.")
    for png, caption in pictures["scores"].values():
        page.picture(png, caption)
    return page.made_from(provenance).render()


def _rules(page: Page, findings: Sequence[Findings]) -> None:
    """What each judge flags, what its scores are, and its settings."""
    for one in findings:
        judge = judge_class(one.settings)
        settings = ", ".join(f"{name} {value}" for name, value in flatten(one.settings).items() if name != "name")
        page.note(f"{one.judge} flags {judge.flags}; its score is the {judge.score_name}. Settings: {settings}.")


def _quality(page: Page, findings: Sequence[Findings], caption: str, notes: Sequence[str] = ()) -> None:
    columns, rows = quality_rows(findings)
    if rows:
        page.table(caption, columns, rows)
        for note in notes:
            page.note(note)


def _evidence(
    page: Page,
    kind: str,
    findings: Sequence[Findings],
    agreement: Agreement | None,
    pictures: Mapping[str, Pictures],
    offenders: Mapping[str, Sequence[ShownOffender]],
) -> None:
    """Pictures, how far the judges agree, and the worst offenders of each."""
    for png, caption in pictures[kind].values():
        page.picture(png, caption)
    if agreement is not None and len(agreement.judges) > 1:
        shares = [[ABSENT if np.isnan(one) else f"{one:.2f}" for one in row] for row in agreement.overlap_JJ.tolist()]
        rows = [[name, *row] for name, row in zip(agreement.judges, shares, strict=True)]
        caption = "share of what the judge of the row flags that the judge of the column flags too"
        page.table(caption, ["judge", *agreement.judges], rows)
    for found in findings:
        page.heading(f"Most suspicious {kind} by {found.judge}")
        if not offenders.get(found.judge):
            page.note(f"{found.judge} flags none.")
        for place, shown in enumerate(offenders.get(found.judge, ()), start=1):
            facts = [*_facts(shown.offender, judge_class(found.settings).score_name), *shown.facts]
            texts = [(f"{text.role} ({text.text_id})", _shortened(text)) for text in shown.texts]
            page.beside(f"{place}. {shown.offender.query_id}", "; ".join(facts), texts)


def _facts(one: Offender, score_name: str) -> list[str]:
    facts = [f"{score_name} {one.score:.4g}, {one.action}"]
    if one.flagged_by:
        facts.append(f"flagged by {', '.join(one.flagged_by)} too")
    if one.not_flagged_by:
        facts.append(f"not by {', '.join(one.not_flagged_by)}")
    if one.truth is not None:
        facts.append("in truth noise" if one.truth else "in truth not planted")
    return facts


def _shortened(shown: ShownText) -> str:
    text = f"{shown.title}\n{shown.text}".strip()
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} [...]"
