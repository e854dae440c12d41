"""The report on arms: tables with intervals over queries and seeds, a picture, and all figures as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.arm_training import DETECTORS, ArmResult
from experiments.results import Table, write_results
from raydr.config.run import RunConfig
from raydr.evaluation.config import EvaluateConfig
from raydr.evaluation.significance import Interval, bootstrap_means, holm
from raydr.pages.figure import COLORS, Draw, grid
from raydr.pipeline.compare import interval_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATES = {"last": "at the last epoch", "best": "at the epoch that is best on dev"}


@dataclass(frozen=True)
class ArmFigures:
    """A measure of an arm.

    Args:
        measure, arm: names of the two.
        value: mean over queries and seeds, with its interval.
        by_seed: mean of each seed.
        difference: from the first arm; None for the first arm itself.
        p: of the difference, two-sided, with Holm's correction over the arms.
    """

    measure: str
    arm: str
    value: Interval
    by_seed: list[float]
    difference: Interval | None = None
    p: float | None = None


def compare_arms(
    settings: EvaluateConfig, seed: int, names: Sequence[str], results: Sequence[ArmResult], state: str
) -> list[ArmFigures]:
    """Compute each measure of the arms, and its differences from the first arm, paired by query and seed.

    Args:
        settings: of intervals and tests.
        seed: of the resamplings.
        names: of the arms.
        results: of these arms, all with the same seeds.
        state: ``last`` or ``best``.
    """
    by_seed = sorted(results, key=lambda result: result.seed)
    runs = {name: [result for result in by_seed if result.arm == name] for name in names}
    if len({tuple(run.seed for run in runs[name]) for name in names}) != 1:
        raise ValueError("arms that are compared need the same seeds")
    rows: list[ArmFigures] = []
    for measure, values in runs[names[0]][0].values[state].items():
        query_ids = sorted(values)
        values_SQA = np.array(
            [
                [[run.values[state][measure][query_id] for query_id in query_ids] for run in by_arm]
                for by_arm in zip(*runs.values(), strict=True)
            ]
        ).swapaxes(1, 2)
        both_SQC = np.concatenate([values_SQA, values_SQA[:, :, 1:] - values_SQA[:, :, :1]], axis=2)
        intervals, p_values = seeds_and_queries(both_SQC, settings.confidence, settings.bootstrap_samples, seed)
        num = len(names)
        for at, (name, p) in enumerate(zip(names, [None, *holm(p_values[num:])], strict=True)):
            difference = intervals[num + at - 1] if at else None
            means = values_SQA[:, :, at].mean(axis=1).tolist()
            rows.append(ArmFigures(measure, name, intervals[at], means, difference, p))
    return rows


def seeds_and_queries(
    values_SQC: NDArray[np.float64], confidence: float, num_samples: int, seed: int
) -> tuple[list[Interval], list[float]]:
    """Compute means with bootstrap intervals over seeds and queries, and two-sided p-values for the mean 0.

    Each sample draws seeds and, independently, queries with replacement. Deviations of seeds from their mean are first
    scaled by √(S / (S − 1)), so that the variance between S seeds is estimated without bias. With two or three seeds,
    intervals are still too narrow if seeds vary more than queries.

    Args:
        values_SQC: value of each seed, query and column.
        confidence: of the intervals.
        num_samples: number of samples.
        seed: of the draws.

    >>> rng = np.random.default_rng(0)
    >>> agreeing = np.tile(rng.random((1, 200, 1)), (3, 1, 1))
    >>> apart = agreeing + np.array([-0.1, 0.0, 0.1])[:, None, None]
    >>> widths = []
    >>> for values_SQC in (agreeing, apart):
    ...     [interval], _ = seeds_and_queries(values_SQC, 0.95, 2000, seed=0)
    ...     widths.append(round(interval.high - interval.low, 2))
    >>> widths
    [0.08, 0.23]
    """
    num_seeds, num_queries, num_columns = values_SQC.shape
    mean_QC = values_SQC.mean(axis=0)
    widened_SQC = mean_QC + math.sqrt(num_seeds / max(1, num_seeds - 1)) * (values_SQC - mean_QC)
    flat_QF = widened_SQC.swapaxes(0, 1).reshape(num_queries, -1)
    means_NSC = bootstrap_means(flat_QF, num_samples, seed).reshape(num_samples, num_seeds, num_columns)
    share = np.full(num_seeds, 1 / num_seeds)
    weight_NS = np.random.default_rng([seed, 1]).multinomial(num_seeds, share, size=num_samples) / num_seeds
    means_NC = np.einsum("ns,nsc->nc", weight_NS, means_NSC)
    tail = (1 - confidence) / 2
    low_C, high_C = np.quantile(means_NC, [tail, 1 - tail], axis=0)
    columns = zip(mean_QC.mean(axis=0).tolist(), low_C.tolist(), high_C.tolist(), strict=True)
    one_sided_C = np.minimum((means_NC <= 0).mean(axis=0), (means_NC >= 0).mean(axis=0))
    p_C = np.minimum(1.0, 2 * np.maximum(one_sided_C, 1 / (num_samples + 1)))
    return [Interval(*column) for column in columns], p_C.tolist()


def arm_table(title: str, figures: Sequence[ArmFigures], confidence: float, reference: str = "") -> Table:
    """Return a table with a row for each measure and arm.

    Args:
        title: of the table.
        figures: of the arms; differences are from the first arm.
        confidence: of the intervals.
        reference: an arm that is an upper limit for the others. The table shows the share of the gap to it that an arm
            closes, if the interval of the gap is above 0.
    """
    gaps = {figure.measure: figure.difference for figure in figures if figure.arm == reference}
    baseline = figures[0].arm
    rows = []
    for figure in figures:
        seeds = " ".join(f"{mean:.3f}" for mean in figure.by_seed)
        row = [figure.measure, figure.arm, interval_text(*figure.value), seeds]
        if figure.difference is None:
            rows.append([*row, "", "", ""])
            continue
        mean, low, high = figure.difference
        gap = gaps.get(figure.measure) if figure.arm != reference else None
        closed = gap_closed(mean, gap, reference) if gap is not None else ""
        rows.append([*row, f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]", f"{figure.p:.4f}", closed])
    columns = [
        "measure",
        "arm",
        f"mean [{100 * confidence:g}%]",
        "by seed",
        f"minus {baseline}",
        "p (Holm)",
        "gap closed",
    ]
    has_gap = reference not in ("", baseline)
    return Table(title, columns if has_gap else columns[:-1], rows if has_gap else [row[:-1] for row in rows])


def gap_closed(gain: float, gap: Interval, reference: str) -> str:
    """Return the share of a gap that a gain closes; empty if the gap is not surely above 0.

    >>> gap = Interval(0.2, 0.1, 0.3)
    >>> gap_closed(0.15, gap, "clean"), gap_closed(0.25, gap, "clean"), gap_closed(0.15, Interval(0.2, 0, 0.4), "clean")
    ('75%', 'above clean', '')
    """
    if gap.low <= 0:
        return ""
    return f"above {reference}" if gain > gap.mean else f"{gain / gap.mean:.0%}"


def report_arms(
    config: RunConfig,
    groups: Mapping[str, Sequence[str]],
    results: Sequence[ArmResult],
    out: Path,
    references: Collection[str] = (),
) -> None:
    """Print the tables, and write ``results.md``, ``results.json`` and ``curves.png``.

    Args:
        config: with the settings of intervals and tests.
        groups: title → names of arms; each group is compared with its first arm, with its own correction.
        results: of all arms and seeds.
        out: folder of the files.
        references: arms that are an upper limit for the others of their group.
    """
    written: dict[str, Any] = {}
    tables = []
    for state, meaning in STATES.items():
        for title, names in groups.items():
            figures = compare_arms(config.evaluate, config.seed, names, results, state)
            heading = f"Test queries, {title + ', ' if title else ''}{meaning}, means over queries and seeds"
            reference = next((name for name in names if name in references), "")
            tables.append(arm_table(heading, figures, config.evaluate.confidence, reference))
            written.setdefault(state, {})[title or "all"] = [asdict(figure) for figure in figures]
    everyone = list(dict.fromkeys(name for names in groups.values() for name in names))
    detections = detection_table(everyone, results)
    tables += [*([detections] if detections.rows else []), cost_table(everyone, results)]
    written["arms"] = [{key: value for key, value in asdict(result).items() if key != "values"} for result in results]
    write_results(out, config, tables, written, {"curves.png": curves(groups, results)})


def detection_table(names: Sequence[str], results: Sequence[ArmResult]) -> Table:
    """Return the quality with which each arm's model, after each epoch, detects mismatched pairs by NPC's detectors."""
    figures = [("paper", "auroc"), *((name, key) for name in DETECTORS for key in ("precision", "recall"))]
    rows = []
    for name in names:
        runs = [result for result in results if result.arm == name]
        for epoch in range(max(len(run.detections) for run in runs)):
            detections = [run.detections[epoch] for run in runs if epoch < len(run.detections)]
            if "auroc" in detections[0]["paper"]:
                means = (_mean([row[detector][key] for row in detections]) for detector, key in figures)
                rows.append([name, str(epoch + 1), *means])
    columns = ["arm", "epoch", "AUROC", *(f"{key} ({name})" for name, key in figures[1:])]
    return Table("Mismatched training pairs, detected after each epoch, mean over the seeds", columns, rows)


def _mean(values: list[float | None]) -> str:
    """Format the mean of the defined values; a precision is undefined without flags."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "nothing flagged"


def cost_table(names: Sequence[str], results: Sequence[ArmResult]) -> Table:
    """Return the training time of each arm, on a single CPU or GPU."""
    rows = []
    for name in names:
        runs = [result for result in results if result.arm == name]
        best = ", ".join(str(run.best_epoch + 1) for run in runs if run.best_epoch is not None)
        rows.append([name, f"{np.median([run.seconds for run in runs]):,.0f}", best])
    return Table("Training", ["arm", "seconds in steps, median", "best epoch on dev, by seed"], rows)


def curves(groups: Mapping[str, Sequence[str]], results: Sequence[ArmResult]) -> bytes:
    """Draw the dev measure and the detection AUROC of each group by epoch: mean and range over the seeds."""
    from matplotlib.ticker import MaxNLocator

    dev = next(key for key in results[0].history[0] if key.startswith("dev "))

    def bands(arms: Sequence[str], colours: Sequence[str], values: Callable[[ArmResult], list[float]]) -> Draw:
        def draw(axes: Axes) -> None:
            for name in arms:
                color = COLORS[colours.index(name) % len(COLORS)]
                lines = [values(run) for run in results if run.arm == name]
                # With train.dev.patience one seed may end before another.
                longest = max(len(line) for line in lines)
                curves_SE = np.array([line + [math.nan] * (longest - len(line)) for line in lines])
                epochs = np.arange(1, longest + 1)
                axes.plot(epochs, np.nanmean(curves_SE, axis=0), label=name, color=color, marker="o", markersize=3)
                low, high = np.nanmin(curves_SE, axis=0), np.nanmax(curves_SE, axis=0)
                axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
            axes.set_xlabel("epoch")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if len(groups) > 1:
                axes.legend(fontsize=7)

        return draw

    panels: list[tuple[str, Draw]] = []
    for title, names in groups.items():
        heading = f"{dev}, {title}" if title else dev
        panels.append((heading, bands(names, names, lambda run: [row[dev] for row in run.history])))
        # Arms without mismatched pairs have no AUROC.
        noisy = [name for name in names if _detects_noise([run for run in results if run.arm == name])]
        if noisy:
            aurocs = bands(noisy, names, lambda run: [row["paper"]["auroc"] for row in run.detections])
            panels.append(("AUROC of the margin", aurocs))
    return grid(panels, "By epoch: mean and range over the seeds", columns=2, shared_legend=len(groups) == 1)


def _detects_noise(runs: list[ArmResult]) -> bool:
    return all(run.detections and all("auroc" in row["paper"] for row in run.detections) for run in runs)
