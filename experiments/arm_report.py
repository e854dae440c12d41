"""What arms came to: tables, a picture, and everything as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arm_training import DETECTORS, ArmResult
from experiments.results import Table, write_results
from raydr.compare import Compared, compare_seeds
from raydr.config.run import RunConfig
from raydr.pages.figure import COLORS, Draw, grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATES = {"last": "at the last epoch", "best": "at the epoch that is best on dev"}


def compare_arms(config: RunConfig, names: Sequence[str], results: Sequence[ArmResult], state: str) -> Compared:
    """The arms of these names, each against the first, in one state (``last`` or ``best``)."""
    values = {name: [one.values[state] for one in results if one.arm == name] for name in names}
    seeds = sorted({one.seed for one in results})
    return compare_seeds(config, config.data.test_splits[0], seeds, values)


def report_arms(
    config: RunConfig,
    groups: Mapping[str, Sequence[str]],
    results: Sequence[ArmResult],
    out: Path,
    references: Collection[str] = (),
    more: Sequence[Table] = (),
    pictures: Mapping[str, bytes] | None = None,
) -> None:
    """Print, and write ``results.md``, ``results.json`` and ``curves.png``.

    Args:
        config: says how uncertainty is computed.
        groups: title → names of arms; each group is compared with its first arm, and corrected for by itself.
        results: of all arms and seeds.
        out: folder.
        references: arms that show how far others of their group could go: the share of the way to it is a column.
        more: further tables.
        pictures: further pictures.
    """
    written: dict[str, Any] = {}
    tables = []
    for state, meaning in STATES.items():
        for title, names in groups.items():
            found = compare_arms(config, names, results, state)
            heading = f"Test queries, {title + ', ' if title else ''}{meaning}, means over queries and seeds"
            reference = next((name for name in names if name in references), "")
            tables.append(Table(heading, *found.rows(reference)))
            written.setdefault(state, {})[title or "all"] = asdict(found)
    everyone = list(dict.fromkeys(name for names in groups.values() for name in names))
    detections = detection_table(everyone, results)
    tables += [*more, *([detections] if detections.rows else []), cost_table(everyone, results)]
    written["tables"] = [asdict(table) for table in more]
    written["arms"] = [{key: value for key, value in asdict(result).items() if key != "values"} for result in results]
    write_results(out, config, tables, written, {"curves.png": curves(groups, results), **(pictures or {})})


def detection_table(names: Sequence[str], results: Sequence[ArmResult]) -> Table:
    """How well each arm's model tells its mismatched pairs after each epoch: NPC's detectors on every arm."""
    figures = [("paper", "auroc"), *((name, key) for name in DETECTORS for key in ("precision", "recall"))]
    rows = []
    for name in names:
        runs = [result for result in results if result.arm == name]
        for epoch in range(max(len(run.detections) for run in runs)):
            found = [run.detections[epoch] for run in runs if epoch < len(run.detections)]
            if "auroc" in found[0]["paper"]:
                rows.append([name, str(epoch + 1), *(_mean([one[of][key] for one in found]) for of, key in figures)])
    columns = ["arm", "epoch", "AUROC", *(f"{key} ({name})" for name, key in figures[1:])]
    return Table("Mismatched training pairs, detected after each epoch, mean over the seeds", columns, rows)


def _mean(values: list[float | None]) -> str:
    """The mean of what is defined; a precision is not where nothing was flagged."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "nothing flagged"


def cost_table(names: Sequence[str], results: Sequence[ArmResult]) -> Table:
    """Time of training, on one CPU or GPU an arm."""
    rows = []
    for name in names:
        runs = [result for result in results if result.arm == name]
        best = ", ".join(str(run.best_epoch + 1) for run in runs if run.best_epoch is not None)
        rows.append([name, f"{np.median([run.seconds for run in runs]):,.0f}", best])
    return Table("Training", ["arm", "seconds in steps, median", "best epoch on dev, by seed"], rows)


def curves(groups: Mapping[str, Sequence[str]], results: Sequence[ArmResult]) -> bytes:
    """Dev measure by epoch, a panel a group, and detection AUROC: the mean over the seeds and their range."""
    from matplotlib.ticker import MaxNLocator

    dev = next(key for key in results[0].history[0] if key.startswith("dev "))

    def bands(arms: Sequence[str], colours: Sequence[str], values: Callable[[ArmResult], list[float]]) -> Draw:
        def draw(axes: Axes) -> None:
            for name in arms:
                color = COLORS[colours.index(name) % len(COLORS)]
                found = [values(run) for run in results if run.arm == name]
                # With train.dev.patience one seed may end before another.
                longest = max(len(one) for one in found)
                curves_SE = np.array([one + [math.nan] * (longest - len(one)) for one in found])
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
        # An arm without mismatched pairs has none to find.
        noisy = [name for name in names if _finds_noise([run for run in results if run.arm == name])]
        if noisy:
            aurocs = bands(noisy, names, lambda run: [row["paper"]["auroc"] for row in run.detections])
            panels.append(("AUROC of the perplexity", aurocs))
    return grid(panels, "By epoch: mean and range over the seeds", columns=2, shared_legend=len(groups) == 1)


def _finds_noise(runs: list[ArmResult]) -> bool:
    return all(run.detections and all("auroc" in row["paper"] for row in run.detections) for run in runs)
