"""What an audit says, for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from raydr.noise.agreement import Agreement
from raydr.noise.audit_result import AuditResult, NegativeFindings, PairFindings
from raydr.noise.judges.base import judge_class
from raydr.noise.offenders import Offender
from raydr.pages.html import ABSENT, Page
from raydr.pages.noise_plots import count_bars, matrix_picture, reliability_diagram
from raydr.store.artifact import flatten

#: Ranks that the share of the false negatives is given for, as in Park et al. (HCLT 2023), figure 6.
RANKS = (10, 20, 40)
#: Longest bar chart of ranks.
_MAX_BARS = 200
_MAX_TEXT = 3000

PAIRS_CAPTION = "what the judges take for mismatched pairs: estimates of their share, as good as the judge"
PAIRS_LEGEND = (
    "mean probability: of a pair being mismatched, an estimate of the share without a threshold. mixture weight: of "
    "the higher of the two groups of perplexities. calibration error: how far probabilities are from the true shares. "
    "average precision: area under precision by recall."
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


@dataclass(frozen=True)
class AuditPictures:
    """PNGs by file name, with their captions; those of the first section show pairs, the others negatives."""

    pairs: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    negatives: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    scores: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    @property
    def all(self) -> dict[str, tuple[bytes, str]]:
        return self.pairs | self.negatives | self.scores


def pair_rows(result: AuditResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: what each judge of pairs estimates."""
    columns = ["judge", "pairs", "flagged", "share flagged", "mean probability", "mixture weight"]
    rows = [
        [
            one.judge,
            f"{one.num_judged:,}",
            f"{one.num_flagged:,}",
            _percent(one.share_flagged),
            _percent(one.mean_probability),
            _percent(one.mixture_weight),
        ]
        for one in result.pairs
    ]
    return columns, rows


def negative_rows(result: AuditResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: where each judge of negatives finds false ones, in the queries that are trusted."""
    columns = [
        "judge",
        "queries",
        "candidates",
        "share flagged",
        "same, all queries",
        "queries with one",
        "mean",
        "max",
    ]
    columns += [f"flagged in top {rank}" for rank in RANKS]
    rows = []
    for one in result.negatives:
        found = one.trusted_queries
        rows.append(
            [
                one.judge,
                f"{found.num_queries:,}",
                f"{found.num_candidates:,}",
                _percent(found.share_flagged),
                _percent(one.all_queries.share_flagged),
                _percent(found.share_of_queries),
                ABSENT if found.mean_number is None else f"{found.mean_number:.1f}",
                f"{found.max_number:,}",
                *(_percent(found.share_within(rank)) for rank in RANKS),
            ]
        )
    return columns, rows


def quality_rows(findings: Sequence[PairFindings | NegativeFindings]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: quality of the judges whose verdicts have a known truth."""
    names = ("precision", "recall", "f1", "auroc", "average_precision", "calibration_error")
    rows = []
    for one in findings:
        if one.detection is not None:
            counts = (f"{one.detection[name]:,}" for name in ("count", "num_noisy", "num_flagged"))
            figures = (ABSENT if one.detection[name] is None else f"{one.detection[name]:.3f}" for name in names)
            rows.append([one.judge, *counts, *figures])
    return ["judge", "with truth", "noisy", "flagged", *(name.replace("_", " ") for name in names)], rows


def figures_of(result: AuditResult) -> AuditPictures:
    """The pictures that follow from the figures alone; histograms of scores are added to them."""
    pictures = AuditPictures()
    statistics = {one.judge: one.trusted_queries for one in result.negatives if one.trusted_queries.num_flagged}
    if statistics:
        numbers = {name: found.queries_by_number.tolist() for name, found in statistics.items()}
        pictures.negatives["false_negatives_per_query.png"] = (
            count_bars(numbers, 0, "False negatives of a query", "false negatives", "queries"),
            "queries by their number of flagged candidates",
        )
        ranks = {
            name: [100 * one / found.num_flagged for one in found.flagged_by_rank[1:_MAX_BARS].tolist()]
            for name, found in statistics.items()
        }
        pictures.negatives["false_negative_ranks.png"] = (
            count_bars(ranks, 1, "Ranks of the false negatives", "rank under the miner", "% of the flagged"),
            "where the flagged candidates sit in the miner's ranking",
        )
    for place, agreement in ((pictures.pairs, result.pair_agreement), (pictures.negatives, result.negative_agreement)):
        if agreement is not None and len(agreement.judges) > 1:
            kind = "pairs" if agreement is result.pair_agreement else "negatives"
            place[f"agreement_{kind}.png"] = (_agreement_picture(agreement), "agreement of the judges")
    for place, findings in ((pictures.pairs, result.pairs), (pictures.negatives, result.negatives)):
        known: Sequence[PairFindings | NegativeFindings] = findings
        bins = {one.judge: one.detection["bins"] for one in known if one.detection and one.detection["bins"]}
        if bins:
            kind = "pairs" if findings is result.pairs else "negatives"
            picture = reliability_diagram(bins, "Reliability of the probabilities")
            place[f"reliability_{kind}.png"] = (picture, "predicted probability of noise against its true share")
    return pictures


def _agreement_picture(agreement: Agreement) -> bytes:
    title = "Cohen's κ: 1 agree, 0 as by chance"
    return matrix_picture(agreement.kappa_JJ, agreement.judges, title, 0.0, 1.0)


def audit_page(
    result: AuditResult,
    pictures: AuditPictures,
    offenders: Mapping[str, Sequence[ShownOffender]],
    provenance: Sequence[tuple[str, str]] = (),
) -> str:
    """The self-contained HTML report.

    Args:
        result: the figures.
        pictures: as from :func:`figures_of`, with the histograms added.
        offenders: by judge, the worst first.
        provenance: names and fingerprints of what was audited.
    """
    page = Page(f"Audit of {result.split} with model {result.model}")
    page.paragraph(
        "Two kinds of noise: a mismatched pair is a query whose annotated passage does not answer it; a false negative "
        "is a candidate that answers the query and is not annotated. All shares are estimates by judges that err; "
        "quality is given where noise was put in on purpose."
    )
    if result.pairs:
        _pair_section(page, result, pictures, offenders)
    if result.negatives:
        _negative_section(page, result, pictures, offenders)
    page.heading("Scores")
    page.paragraph(f"Similarities of a sample of the queries under model {result.model}, without the scale.")
    for png, caption in pictures.scores.values():
        page.picture(png, caption)
    if provenance:
        page.heading("Made from")
        page.table("fingerprints", ["what", "fingerprint"], provenance)
    return page.render()


def _pair_section(
    page: Page, result: AuditResult, pictures: AuditPictures, offenders: Mapping[str, Sequence[ShownOffender]]
) -> None:
    page.heading("Mismatched pairs")
    page.table(PAIRS_CAPTION, *pair_rows(result))
    page.note(PAIRS_LEGEND)
    _rules(page, result.pairs)
    for one in result.pairs:
        if one.reason:
            page.note(f"{one.judge} keeps all pairs: {one.reason}")
    columns, rows = quality_rows(result.pairs)
    if rows:
        page.table("quality against the pairs that were mismatched on purpose", columns, rows)
    for png, caption in pictures.pairs.values():
        page.picture(png, caption)
    _overlap(page, result.pair_agreement)
    for pair in result.pairs:
        _offender_section(page, pair, "pairs", offenders.get(pair.judge, ()))


def _negative_section(
    page: Page, result: AuditResult, pictures: AuditPictures, offenders: Mapping[str, Sequence[ShownOffender]]
) -> None:
    page.heading("False negatives")
    if result.suspected_by:
        page.paragraph(
            f"Queries whose annotated pair {result.suspected_by} suspects are left out, except where all queries are "
            "named: next to a mismatched positive nearly every candidate looks like a positive."
        )
    page.table("what the judges take for false negatives", *negative_rows(result))
    page.note(NEGATIVES_LEGEND)
    _rules(page, result.negatives)
    columns, rows = quality_rows(result.negatives)
    if rows:
        page.table(
            "quality against the false negatives that are known (planted, or replaced by a mismatched passage), over "
            "all queries",
            columns,
            rows,
        )
        page.note(KNOWN_LEGEND)
        if result.suspected_by:
            page.note(
                f"{result.num_known_trusted:,} of the {result.num_known:,} known ones are in queries that "
                f"{result.suspected_by} does not suspect."
            )
    for png, caption in pictures.negatives.values():
        page.picture(png, caption)
    _overlap(page, result.negative_agreement)
    for one in result.negatives:
        _offender_section(page, one, "negatives", offenders.get(one.judge, ()))


def _rules(page: Page, findings: Sequence[PairFindings | NegativeFindings]) -> None:
    """What each judge flags, what its scores are, and its settings."""
    for one in findings:
        judge = judge_class(one.settings)
        settings = ", ".join(f"{name} {value}" for name, value in flatten(one.settings).items() if name != "name")
        page.note(f"{one.judge} flags {judge.flags}; its score is the {judge.score_name}. Settings: {settings}.")


def _overlap(page: Page, agreement: Agreement | None) -> None:
    if agreement is None or len(agreement.judges) < 2:
        return
    rows = [
        [name, *(ABSENT if np.isnan(value) else f"{value:.2f}" for value in agreement.overlap_JJ[at].tolist())]
        for at, name in enumerate(agreement.judges)
    ]
    caption = "share of what the judge of the row flags that the judge of the column flags too"
    page.table(caption, ["judge", *agreement.judges], rows)


def _offender_section(
    page: Page, found: PairFindings | NegativeFindings, kind: str, offenders: Sequence[ShownOffender]
) -> None:
    judge, score_name = found.judge, judge_class(found.settings).score_name
    page.heading(f"Most suspicious {kind} by {judge}")
    if not offenders:
        page.note(f"{judge} flags none.")
    for number, shown in enumerate(offenders, start=1):
        one = shown.offender
        facts = [f"{score_name} {one.score:.4g}, {one.action}"]
        if one.flagged_by:
            facts.append(f"flagged by {', '.join(one.flagged_by)} too")
        if one.not_flagged_by:
            facts.append(f"not by {', '.join(one.not_flagged_by)}")
        if one.truth is not None:
            facts.append("in truth noise" if one.truth else "in truth not planted")
        texts = [(_heading(text), _shortened(f"{text.title}\n{text.text}".strip())) for text in shown.texts]
        page.beside(f"{number}. {one.query_id}", "; ".join([*facts, *shown.facts]), texts)


def _heading(text: ShownText) -> str:
    return f"{text.role} ({text.text_id})"


def _shortened(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} [...]"


def _percent(share: float | None) -> str:
    return ABSENT if share is None else f"{share:.1%}"
