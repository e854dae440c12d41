"""Warranties of people's decisions on sets whose labels are all known: coverage, drops, and saved decisions.

Each resampling draws the rows of a set with replacement, or a new simulated set, and a new random order. Labels are
decided in the order of ``raydr review``. The baseline decides on labels drawn at random from all, and tests the same
sets by exact hypergeometric tests with Bonferroni's correction for the number of sets.

    python -m experiments.review_warranty --data ../shared/data --out work/experiments/review-warranty
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import binomtest, hypergeom

from experiments.results import Table, write_results
from raydr.console import say
from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.noise.labelled import read_labelled
from raydr.noise.warranty import SuspectSets, log_evidence
from raydr.pages.figure import COLORS, grid
from raydr.pipeline.noise_benchmark import encode_set, set_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Draw = Callable[[np.random.Generator], tuple[FloatArray, BoolArray]]

CONFIDENCE = 0.95
#: Numbers of decisions in the table, and in the picture.
BUDGETS, STEPS = (100, 300, 1000), (50, 100, 200, 300, 500, 700, 1000, 2000, 4000)
#: Judged sets, and the kind of their rows.
REAL: dict[str, Literal["pairs", "candidates"]] = {
    "semeval-cqa-replies": "pairs",
    "semeval-cqa-questions": "candidates",
    "staqc-sql-labelled": "pairs",
    "cosqa-labelled": "pairs",
}
#: AUROC of simulated judges, number of simulated pairs, and share of wrong pairs.
SIMULATED, NUM_SIMULATED, SHARE_WRONG = (0.85, 0.95), 10_000, 0.3
#: Recall with all labels known above which a set and bound have a panel in the picture.
_LEAST_SHOWN = 0.1


class Outcome(NamedTuple):
    """The drops that decisions warrant, by the number of decisions.

    Args:
        num_drops_B: number of dropped labels.
        held_B: whether the drops keep the bound.
        recall_B: share of the wrong labels that are dropped.
    """

    num_drops_B: IntArray
    held_B: BoolArray
    recall_B: FloatArray


class Resampling(NamedTuple):
    """The outcomes of the review and of the baseline, and the recall if all labels were known."""

    review: Outcome
    random: Outcome
    most_recall: float


@dataclass(frozen=True)
class Finding:
    """A row of the table.

    Args:
        name: of the set.
        bound: maximal share of right labels among the dropped labels.
        decisions: number of decisions.
        coverage: share of resamplings that keep the bound, and its 95 % interval.
        any_drop: share of resamplings with a drop.
        num_drops: mean number of drops.
        recall: mean share of the wrong labels that are dropped.
        most_recall: mean recall if all labels were known.
        random_coverage, random_recall: of the baseline.
        random_decisions: number of decisions with which the baseline has the same recall; None if no tried number has.
    """

    name: str
    bound: float
    decisions: int
    coverage: tuple[float, float, float]
    any_drop: float
    num_drops: float
    recall: float
    most_recall: float
    random_coverage: float
    random_recall: float
    random_decisions: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the labelled sets")
    parser.add_argument("--out", default="work/experiments/review-warranty")
    parser.add_argument("--resamplings", type=int, default=1000)
    parser.add_argument("--bounds", type=lambda text: [float(part) for part in text.split(",")], default=[0.05, 0.2])
    arguments = parser.parse_args()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    draws: dict[str, Draw] = {f"simulated, AUROC {auroc}": partial(simulated, auroc) for auroc in SIMULATED}
    draws |= {name: partial(resampled, *suspicions(Path(arguments.data) / name, out)) for name in REAL}
    findings: list[Finding] = []
    curves: dict[str, Curves] = {}
    for at, (name, draw) in enumerate(draws.items()):
        for bound in arguments.bounds:
            rngs = (np.random.default_rng([at, seed]) for seed in range(arguments.resamplings))
            done = [review_once(draw, bound, rng) for rng in rngs]
            say(f"{name}, at most {bound:.0%} right: resampled {len(done):,} times")
            curve = Curves.of(done)
            curves[f"{name}, at most {bound:.0%} right"] = curve
            findings += summarized(name, bound, done, curve)
    figures = {
        "findings": [asdict(finding) for finding in findings],
        "curves": {name: curve._asdict() for name, curve in curves.items()},
        "decisions": STEPS,
    }
    write_results(out, vars(arguments), [table(findings)], figures, {"review_warranty.png": picture(curves)})


def suspicions(folder: Path, out: Path) -> tuple[FloatArray, BoolArray]:
    """Return suspicions by the cosine of the packaged encoder, cached in ``out``, and which labels are wrong."""
    labelled = read_labelled(folder, REAL[folder.name])
    kept = out / f"{folder.name}.npy"
    if not kept.exists():
        lengths = {"query": {"max_length": 64}, "passage": {"max_length": 256}}
        with tempfile.TemporaryDirectory() as work:
            config = set_config(labelled, {"checkpoint": str(OFFLINE_CHECKPOINT), **lengths}, work, 0)
            similarity_N = encode_set(labelled, config)[0].similarity_N
        np.save(kept, similarity_N if labelled.subject == "candidates" else -similarity_N)
    return np.load(kept), labelled.wrong_N


def simulated(auroc: float, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    """Draw suspicions, normal for right and for wrong labels, and which labels are wrong."""
    wrong_N = rng.random(NUM_SIMULATED) < SHARE_WRONG
    return rng.normal(size=NUM_SIMULATED) + np.sqrt(2.0) * ndtri(auroc) * wrong_N, wrong_N


def resampled(suspicion_N: FloatArray, wrong_N: BoolArray, rng: np.random.Generator) -> tuple[FloatArray, BoolArray]:
    """Draw rows with replacement."""
    rows_N = rng.integers(0, len(wrong_N), len(wrong_N))
    return suspicion_N[rows_N], wrong_N[rows_N]


def review_once(draw: Draw, bound: float, rng: np.random.Generator) -> Resampling:
    """Draw a set, decide on its labels both ways, and compare the drops with the truth."""
    suspicion_N, wrong_N = draw(rng)
    sets = SuspectSets(suspicion_N, rng.permutation(len(wrong_N)), bound, CONFIDENCE)
    wrong_S = np.cumsum(wrong_N[np.argsort(-suspicion_N, kind="stable")])[sets.sizes_S - 1]
    held_S = np.array([size - wrong < sets.limit(size) for size, wrong in zip(sets.sizes_S, wrong_S, strict=True)])

    def outcome(num_sets_B: IntArray) -> Outcome:
        size_B, wrong_B, held_B = (
            np.concatenate([[first], values_S])[num_sets_B]
            for first, values_S in ((0, sets.sizes_S), (0, wrong_S), (1, held_S))
        )
        return Outcome(size_B, held_B > 0, wrong_B / wrong_N.sum())

    review = outcome(sets_in_turn(sets, wrong_N))
    random = outcome(sets_at_random(sets, suspicion_N, wrong_N, rng))
    return Resampling(review, random, float(wrong_S[held_S].max(initial=0) / wrong_N.sum()))


def sets_in_turn(sets: SuspectSets, wrong_N: BoolArray) -> IntArray:
    """Return the number of warranted sets after each number of decisions in the order of ``raydr review``."""
    decided_N = np.zeros(len(wrong_N), dtype=np.bool_)
    decisions: list[int] = []
    for size in sets.sizes_S.tolist():
        rows_K = sets.drawn(size)[: max(STEPS)]
        enough = np.flatnonzero(log_evidence(~wrong_N[rows_K], size, sets.limit(size)) >= -np.log(1.0 - CONFIDENCE))
        if not len(enough) or (decisions and decisions[-1] > max(STEPS)):
            break
        decided_N[rows_K[: enough[0] + 1]] = True
        decisions.append(int(decided_N.sum()))
    return np.searchsorted(decisions, STEPS, side="right")


def sets_at_random(
    sets: SuspectSets, suspicion_N: FloatArray, wrong_N: BoolArray, rng: np.random.Generator
) -> IntArray:
    """Return the number of sets up to the largest that corrected exact tests allow, for decisions on random labels."""
    place_N = np.empty(len(wrong_N), dtype=np.int64)
    place_N[np.argsort(-suspicion_N, kind="stable")] = np.arange(len(wrong_N))
    order_N = rng.permutation(len(wrong_N))
    limit_S = np.array([sets.limit(size) for size in sets.sizes_S.tolist()])
    num_sets = []
    for num in STEPS:
        decided_D = order_N[:num]
        drawn_S = np.searchsorted(np.sort(place_N[decided_D]), sets.sizes_S)
        right_S = np.searchsorted(np.sort(place_N[decided_D[~wrong_N[decided_D]]]), sets.sizes_S)
        chance_S = hypergeom.cdf(right_S, sets.sizes_S, limit_S, drawn_S)
        num_sets.append(int(np.flatnonzero(chance_S <= (1.0 - CONFIDENCE) / len(limit_S)).max(initial=-1)) + 1)
    return np.array(num_sets)


class Curves(NamedTuple):
    """Mean recall after each number of decisions, of the review and of the baseline, and with all labels known."""

    review: list[float]
    random: list[float]
    most: float

    @classmethod
    def of(cls, done: Sequence[Resampling]) -> Curves:
        review = np.mean([resampling.review.recall_B for resampling in done], axis=0)
        random = np.mean([resampling.random.recall_B for resampling in done], axis=0)
        return cls(review.tolist(), random.tolist(), float(np.mean([resampling.most_recall for resampling in done])))


def summarized(name: str, bound: float, done: Sequence[Resampling], curves: Curves) -> Iterator[Finding]:
    """Yield a row for each number of decisions."""
    for decisions in BUDGETS:
        at = STEPS.index(decisions)
        num_held = sum(bool(resampling.review.held_B[at]) for resampling in done)
        interval, recall = binomtest(num_held, len(done)).proportion_ci(), curves.review[at]
        num_drops = np.array([resampling.review.num_drops_B[at] for resampling in done])
        yield Finding(
            name=name,
            bound=bound,
            decisions=decisions,
            coverage=(num_held / len(done), interval.low, interval.high),
            any_drop=float((num_drops > 0).mean()),
            num_drops=float(num_drops.mean()),
            recall=recall,
            most_recall=curves.most,
            random_coverage=float(np.mean([resampling.random.held_B[at] for resampling in done])),
            random_recall=curves.random[at],
            random_decisions=decisions_for(recall, curves.random),
        )


def decisions_for(recall: float, mean_recall: Sequence[float]) -> float | None:
    """Return the number of decisions at which a curve over ``STEPS`` first reaches a recall; None if it does not.

    >>> decisions_for(0.5, [0.0, 0.0, 1.0, 1.0])
    150.0
    """
    if recall > mean_recall[-1]:
        return None
    end = next(at for at, reached in enumerate(mean_recall) if reached >= recall) + 1
    return float(np.interp(recall, [0.0, *mean_recall[:end]], [0, *STEPS[:end]]))


def table(findings: Sequence[Finding]) -> Table:
    """Format the findings as a table."""
    columns = [
        "set", "right, at most", "decisions", "coverage", "with a drop", "drops", "recall", "at best",
        "random: coverage", "random: recall", "random: decisions for the same",
    ]  # fmt: skip
    rows = []
    for finding in findings:
        share, low, high = finding.coverage
        needed = f"{finding.random_decisions:,.0f}" if finding.random_decisions else f"> {max(STEPS):,}"
        rows.append([
            finding.name, f"{finding.bound:g}", f"{finding.decisions:,}", f"{share:.3f} [{low:.3f}, {high:.3f}]",
            f"{finding.any_drop:.2f}", f"{finding.num_drops:,.0f}", f"{finding.recall:.3f}",
            f"{finding.most_recall:.3f}", f"{finding.random_coverage:.3f}", f"{finding.random_recall:.3f}",
            needed if finding.recall else "–",
        ])  # fmt: skip
    return Table("Drops that decisions warrant", columns, rows)


def picture(curves: Mapping[str, Curves]) -> bytes:
    """Draw recall by the number of decisions, a panel for each set and bound."""

    def panel(mean: Curves) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            axes.plot(STEPS, mean.review, marker="o", markersize=3.5, color=COLORS[0], label="raydr review")
            axes.plot(STEPS, mean.random, marker="s", markersize=3.5, color=COLORS[1], label="at random")
            axes.axhline(mean.most, color=COLORS[6], linestyle="--", label="all labels known")
            axes.set(xscale="log", xlabel="decisions", ylabel="recall of wrong labels")
            axes.set_ylim(0.0, max(1.1 * mean.most, 0.01))

        return draw

    shown = [(name, panel(mean)) for name, mean in curves.items() if mean.most > _LEAST_SHOWN]
    return grid(shown, "Wrong labels that may be dropped, by the number of decisions")


if __name__ == "__main__":
    main()
