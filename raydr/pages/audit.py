"""The page and tables of an audit, and the picture of a detection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from raydr.noise.audit_result import AuditResult, NegativeFindings, PairFindings
from raydr.noise.detectors.base import Axis, MixtureFit, to_axis
from raydr.noise.judges.base import judge_class
from raydr.pages.figure import COLORS, INK, legend, png
from raydr.pages.html import Page, number
from raydr.store.identity import flatten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_TEXT = 3000

PAIRS_CAPTION = "estimated share of mismatched pairs, by judge"
PAIRS_LEGEND = (
    "mean probability: of a mismatch, over all pairs; it estimates the share without a threshold. estimated share: by "
    "the detector, from the weight of the higher of two groups of margins, or from similarity to random pairs."
)
NEGATIVES_CAPTION = "estimated share of false negatives, by judge"
NEGATIVES_LEGEND = (
    "flags in top 10: share of the flagged candidates that the miner ranks 10 or better. A sieve's share does not "
    "estimate the number of false negatives."
)
KNOWN_LEGEND = (
    "Flagged candidates that are not known to be false negatives count as errors, although some are false negatives: "
    "the precision is a lower bound."
)
_NO_FAULTS = (
    "None: every judgment has its passage and its query, every copy is judged, and no query is leaked, empty, repeated "
    "or without a positive."
)


@dataclass(frozen=True)
class ShownText:
    """A passage or query, with its role."""

    role: str
    text_id: str
    title: str
    text: str

    @property
    def whole(self) -> str:
        """Title and text, cut if they are long."""
        text = f"{self.title}\n{self.text}".strip()
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} [...]"


@dataclass(frozen=True)
class ShownVerdict:
    """A flagged pair with its texts, the query first.

    Args:
        query_id: id of the query.
        facts: score of the pair, other judges that flag it, and origin of the passage.
        texts: query, annotated passage, suspicious passage, and passages to compare them with.
    """

    query_id: str
    facts: Sequence[str]
    texts: Sequence[ShownText]


Findings = PairFindings | NegativeFindings


def pair_rows(result: AuditResult) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: the estimates of each judge of pairs."""
    columns = ["judge", "pairs", "flagged", "share flagged", "mean probability", "estimated share"]
    rows = []
    for pair in result.pairs:
        shares = (pair.share_flagged, pair.mean_probability, pair.share_estimated)
        shown = [
            "inconclusive" if pair.reason else number(pair.num_flagged),
            *(number(share, ".1%") for share in shares),
        ]
        rows.append([pair.judge, number(pair.num_judged), *shown])
    return columns, rows


def negative_rows(result: AuditResult) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: the false negatives that each judge finds, in the queries whose pair is trusted."""
    columns = ["judge", "queries", "candidates", "share flagged", "queries with a flag", "flags in top 10"]
    rows = []
    for negative in result.negatives:
        in_top = negative.num_flagged_in_top_10 / negative.num_flagged if negative.num_flagged else None
        counts = [negative.judge, number(negative.num_queries), number(negative.num_candidates)]
        rows.append(
            [*counts, *(number(share, ".1%") for share in (negative.share_flagged, negative.share_of_queries, in_top))]
        )
    return columns, rows


def quality_rows(findings: Sequence[Findings]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows: the quality of judges on labels whose truth is known."""
    names = {
        "precision": "precision", "recall": "recall", "f1": "F1", "auroc": "AUROC",
        "average_precision": "average precision", "calibration_error": "calibration error",
    }  # fmt: skip
    rows = []
    for finding in findings:
        if finding.detection is not None:
            counts = (number(finding.detection[name]) for name in ("count", "num_noisy", "num_flagged"))
            rows.append([finding.judge, *counts, *(number(finding.detection[name], ".3f") for name in names)])
    return ["judge", "with truth", "noisy", "flagged", *names.values()], rows


def audit_page(
    result: AuditResult,
    pictures: Sequence[tuple[bytes, str]],
    shown: Mapping[str, Sequence[ShownVerdict]],
    provenance: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the self-contained HTML page.

    Args:
        result: the figures.
        pictures: PNG and caption of each picture of the pairs.
        shown: the worst verdicts: on ``pairs``, and on candidates by judge.
        provenance: names and fingerprints of the audited artefacts.
    """
    page = Page(f"Audit of {result.split}", result.headline, result.advice("CONFIG"))
    if result.pairs:
        page.heading("Mismatched pairs").table(PAIRS_CAPTION, *pair_rows(result)).note(PAIRS_LEGEND)
        _quality(page, result.pairs, "quality against the injected noise")
        for png, caption in pictures:
            page.picture(png, caption)
        page.heading(f"Most suspicious pairs, by {result.suspected_by}")
        flagged = f"All {result.pairs[0].num_flagged:,} flagged pairs are in flagged.csv, beside this page."
        page.note(flagged if result.pairs[0].num_flagged else "None of them is flagged: these have the highest scores.")
        _verdicts(page, shown["pairs"])
    if result.negatives:
        page.heading("False negatives").table(NEGATIVES_CAPTION, *negative_rows(result)).note(NEGATIVES_LEGEND)
        if judge := result.suspected_by:
            page.note(
                f"Queries whose annotated pair {judge} flags are left out: next to a mismatched positive nearly "
                "every candidate looks like a positive."
            )
        known = "the false negatives that are known (planted, or replaced by a mismatched passage), over all queries"
        if _quality(page, result.negatives, f"quality against {known}"):
            page.note(KNOWN_LEGEND)
        for negative in result.negatives:
            page.heading(f"Most suspicious candidates, by {negative.judge}")
            _verdicts(page, shown[negative.judge])
    page.heading("Faults of the data").paragraph(
        f"{result.data.num_queries:,} queries with {result.data.num_judgments:,} judgments, of which "
        f"{result.data.num_positives:,} call a passage right. Faults that need no judge:"
    )
    for fault in result.faults or [_NO_FAULTS]:
        page.paragraph(fault)
    page.heading("Method").note(
        "A mismatched pair is a query whose annotated passage does not answer it; a false negative is a candidate that "
        f"answers the query and is not annotated. Judges that need a model use {result.model}."
    )
    findings: list[Findings] = [*result.pairs, *result.negatives]
    for finding in findings:
        if settings := finding.settings:
            rule = judge_class(settings)
            set_values = [(key, value) for key, value in flatten(settings).items() if value is not None]
            listed = ", ".join(f"{key} {value}" for key, value in set_values if key != "name")
            page.note(f"{finding.judge} flags {rule.flags}; its score is the {rule.score_name}. Settings: {listed}.")
    return page.render(provenance)


def _quality(page: Page, findings: Sequence[Findings], caption: str) -> bool:
    columns, rows = quality_rows(findings)
    if rows:
        page.table(caption, columns, rows)
    return bool(rows)


def _verdicts(page: Page, shown: Sequence[ShownVerdict]) -> None:
    if not shown:
        page.note("There is none.")
    for place, label in enumerate(shown, start=1):
        texts = [(f"{text.role} ({text.text_id})", text.whole) for text in label.texts]
        page.beside(f"{place}. {label.query_id}", "; ".join(label.facts), texts)


FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Name of each axis, and after a colon its meaning.
AXIS_LABELS: dict[Axis, str] = {
    "perplexity": "perplexity",
    "log": "log perplexity",
    "margin": "margin: how far random passages score above the pair's own",
}


@dataclass(frozen=True)
class DetectedPairs:
    """A detection of mismatched pairs.

    Args:
        margins_N: margin of each pair.
        clean_N: False for flagged pairs.
        fit: the mixture; None if nothing was fitted.
        truth_N: whether each pair is mismatched; None if that is not known.
    """

    margins_N: FloatArray
    clean_N: BoolArray
    fit: MixtureFit | None
    truth_N: BoolArray | None = None

    @property
    def axis(self) -> Axis:
        return self.fit.axis if self.fit is not None else "margin"

    @property
    def boundary(self) -> float | None:
        """The point of the axis half-way between the last clean and the first flagged pair; None without flags.

        >>> pairs = DetectedPairs(np.array([-3.0, 4.0, 2.0]), np.array([True, False, True]), None)
        >>> round(pairs.boundary, 3)
        3.0
        """
        if self.clean_N.all() or not self.clean_N.any():
            return None
        axis_N = to_axis(self.margins_N, self.axis)
        return float(axis_N[self.clean_N].max() + axis_N[~self.clean_N].min()) / 2

    @property
    def caption(self) -> str:
        """The content of the picture that :meth:`draw` makes.

        >>> DetectedPairs(np.array([0.1, 4.0]), np.array([True, False]), None).caption
        'the annotated pairs by margin, and where flagging begins'
        """
        shown = [f"the annotated pairs by {AXIS_LABELS[self.axis].partition(':')[0]}"]
        if self.fit is not None and self.fit.bimodal:
            shown.append("the two components of the mixture")
        if self.boundary is not None:
            shown.append("where flagging begins")
        return ", and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else f"{shown[0]}; none is flagged"

    def draw(self, axes: Axes) -> None:
        """Draw a histogram on the axis of the mixture, split by the truth if it is known.

        Add the two densities if the mixture is bimodal, and the threshold if a pair is flagged.
        """
        axis_N = to_axis(self.margins_N, self.axis)
        edges = np.histogram_bin_edges(axis_N, bins=60)
        if self.truth_N is None:
            axes.hist(axis_N, bins=list(edges), density=True, color="#BBBBBB", label="pairs")
        else:
            kinds = [axis_N[~self.truth_N], axis_N[self.truth_N]]
            # The two histograms have one area together, so that the components' densities fit on top.
            weights = [np.full(len(kind), 1 / (len(axis_N) * (edges[1] - edges[0]))) for kind in kinds]
            axes.hist(
                kinds, bins=list(edges), weights=weights, stacked=True,
                color=["#BBBBBB", "#E8A0A0"], label=["right pairs", "noisy pairs"],
            )  # fmt: skip
        if self.fit is not None and self.fit.bimodal:
            x = np.linspace(edges[0], edges[-1], 400)
            for name, color, log_density in zip(
                ("clean", "mismatched"), COLORS[:2], self.fit.log_densities(x), strict=True
            ):
                axes.plot(x, np.exp(log_density), color=color, label=name)
        if self.boundary is not None:
            label = f"threshold {self.boundary:.3g}"
            axes.axvline(self.boundary, color=INK, linestyle="--", linewidth=1, label=label)


def parse_fit(raw: Mapping[str, Any] | None) -> MixtureFit | None:
    """Parse the mixture of a manifest.

    >>> parse_fit(None) is None
    True
    """
    return None if raw is None else TypeAdapter(MixtureFit).validate_python(raw)


def margin_histogram(pairs: DetectedPairs, title: str) -> bytes:
    """Draw a detection as a PNG."""

    def draw(axes: Axes) -> None:
        pairs.draw(axes)
        axes.set(xlabel=AXIS_LABELS[pairs.axis], ylabel="density")
        legend(axes)

    return png(draw, title)
