"""What arms came to: tables on the console and as Markdown, a picture, and everything as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arms import DETECTORS, ArmResult, gap_closed
from experiments.tables import Table, write_markdown
from raydr.config.run import RunConfig
from raydr.evaluation.comparison import Comparison, MeasureSummary, Settings, compare, summarize
from raydr.pages.figure import COLORS, Draw, grid
from raydr.runtime.console import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STATES = {"last": "at the last epoch", "best": "at the epoch that is best on dev"}


def settings_of(config: RunConfig) -> Settings:
    """How uncertain the figures are, as the run's evaluations say it."""
    evaluate = config.evaluate
    return Settings(evaluate.confidence, evaluate.bootstrap_samples, evaluate.permutations, config.seed)


def mean_over_seeds(
    results: Sequence[ArmResult], names: Sequence[str], state: str
) -> dict[str, dict[str, dict[str, float]]]:
    """arm → measure → query id → value, the mean over the seeds."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        runs = [result.values[state] for result in results if result.arm == name]
        found[name] = {
            measure: {query_id: float(np.mean([run[measure][query_id] for run in runs])) for query_id in values}
            for measure, values in runs[0].items()
        }
    return found


def report_arms(
    config: RunConfig,
    groups: Mapping[str, Sequence[str]],
    results: Sequence[ArmResult],
    out: Path,
    references: Collection[str] = (),
    more: Sequence[Table] = (),
) -> None:
    """Print, and write ``results.md``, ``results.json`` and ``curves.png``.

    Args:
        config: says how uncertainty is computed.
        groups: title → names of arms; each group is compared with its first arm, and corrected for by itself.
        results: of all arms and seeds.
        out: folder.
        references: arms that show how far others of their group could go: the share of the way to it is a column.
        more: further tables.
    """
    settings = settings_of(config)
    written: dict[str, Any] = {"config": config.model_dump(mode="json")}
    tables = []
    for state, meaning in STATES.items():
        for title, names in groups.items():
            per_query = mean_over_seeds(results, names, state)
            summaries, comparisons = summarize(per_query, settings), compare(per_query, settings)
            heading = f"Test queries, {title + ', ' if title else ''}{meaning}, mean over the seeds"
            reference = next((name for name in names if name in references), "")
            tables.append(retrieval_table(heading, names, results, state, summaries, comparisons, reference))
            written.setdefault(state, {})[title or "all"] = {
                "means": [asdict(row) for row in summaries],
                "comparisons": [asdict(row) for row in comparisons],
            }
    everyone = list(dict.fromkeys(name for names in groups.values() for name in names))
    detections = detection_table(everyone, results)
    tables += [*more, *([detections] if detections.rows else []), cost_table(everyone, results)]
    for table in tables:
        table.show()
    write_markdown(tables, out / "results.md")
    written["tables"] = [asdict(table) for table in more]
    written["arms"] = [{key: value for key, value in asdict(result).items() if key != "values"} for result in results]
    (out / "results.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    draw(groups, results, out / "curves.png")
    say(f"results: {out}/results.md, results.json, curves.png")


def retrieval_table(
    heading: str,
    names: Sequence[str],
    results: Sequence[ArmResult],
    state: str,
    summaries: Sequence[MeasureSummary],
    comparisons: Sequence[Comparison],
    reference: str = "",
) -> Table:
    """Means with intervals over the queries, spread over the seeds, difference to the first arm, gap closed."""
    means = {(row.system, row.measure): row for row in summaries}
    against = {(row.system, row.measure): row for row in comparisons}
    has_gap = reference in names and reference != names[0]
    rows = []
    for measure in dict.fromkeys(row.measure for row in summaries):
        for name in names:
            by_seed = [np.mean(list(one.values[state][measure].values())) for one in results if one.arm == name]
            mean, other = means[name, measure], against.get((name, measure))
            row = [
                measure,
                name,
                f"{mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]",
                f"{min(by_seed):.3f} to {max(by_seed):.3f}" if len(by_seed) > 1 else "one seed",
                f"{other.difference:+.3f}" if other is not None else "",
                f"{other.p_holm:.4f}" if other is not None else "",
            ]
            if has_gap:
                closed = gap_closed(means[names[0], measure].mean, mean.mean, means[reference, measure].mean)
                shown = other is not None and name != reference and not np.isnan(closed)
                row.append(f"{closed:.0%}" if shown else "")
            rows.append(row)
    columns = ["measure", "arm", "mean [interval]", "over seeds", f"minus {names[0]}", "p (Holm)"]
    return Table(heading, [*columns, "gap closed"] if has_gap else columns, rows)


def detection_table(names: Sequence[str], results: Sequence[ArmResult]) -> Table:
    """How well each arm's model tells its mismatched pairs after each epoch: NPC's detectors on every arm."""
    fits = [fit for fit in DETECTORS if any(fit in one for result in results for one in result.detections)]
    figures = [("paper", "auroc"), *((fit, key) for fit in fits for key in ("precision", "recall"))]
    rows = []
    for name in names:
        runs = [result for result in results if result.arm == name]
        for epoch in range(max(len(run.detections) for run in runs)):
            found = [run.detections[epoch] for run in runs if epoch < len(run.detections)]
            if "auroc" in found[0]["paper"]:
                # Results of before a detector was there do not have it.
                cells = [_mean([one[fit][key] for one in found]) if fit in found[0] else "" for fit, key in figures]
                rows.append([name, str(epoch + 1), *cells])
    columns = ["arm", "epoch", "AUROC", *(f"{key} ({fit})" for fit, key in figures[1:])]
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


def draw(groups: Mapping[str, Sequence[str]], results: Sequence[ArmResult], path: Path) -> None:
    """Dev measure by epoch, a panel a group, and detection AUROC: the mean over the seeds and their range."""
    from matplotlib.ticker import MaxNLocator

    dev = next(key for key in results[0].history[0] if key.startswith("dev "))

    def curves(arms: Sequence[str], colours: Sequence[str], values: Callable[[ArmResult], list[float]]) -> Draw:
        def draw_bands(axes: Axes) -> None:
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

        return draw_bands

    panels: list[tuple[str, Draw]] = []
    for title, names in groups.items():
        heading = f"{dev}, {title}" if title else dev
        panels.append((heading, curves(names, names, lambda run: [row[dev] for row in run.history])))
        # An arm without mismatched pairs has none to find.
        noisy = [name for name in names if _finds_noise([run for run in results if run.arm == name])]
        if noisy:
            aurocs = curves(noisy, names, lambda run: [row["paper"]["auroc"] for row in run.detections])
            panels.append(("AUROC of the perplexity", aurocs))
    picture = grid(panels, "By epoch: mean and range over the seeds", columns=2, shared_legend=len(groups) == 1)
    path.write_bytes(picture)


def _finds_noise(runs: list[ArmResult]) -> bool:
    return all(run.detections and all("auroc" in row["paper"] for row in run.detections) for run in runs)
