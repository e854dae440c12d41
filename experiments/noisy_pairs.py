"""Training on mismatched pairs: NCE, co-teaching, NPC, and NCE on the clean pairs alone (NPC's table 2 in small).

Every variant of the config is an arm, beside plain NCE as the config trains it (``nce``) and the same training without
the pairs that are known to be mismatched (``clean``). Arms and seeds run side by side as Ray tasks; one that is
finished is not run again.

    python -m experiments.noisy_pairs configs/experiments/noisy-code.yaml --seeds 3
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arms import ArmData, ArmResult, gap_closed, run_arm
from experiments.tables import Table, write_markdown
from raydr.artifacts import fingerprint_of
from raydr.config import RunConfig
from raydr.console import progress_bar, say
from raydr.evaluation.comparison import Comparison, MeasureSummary, Settings, compare, summarize
from raydr.pipelines.job import Job, open_job
from raydr.reporting.figure import COLORS, Draw, grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BASELINE = "nce"
REFERENCE = "clean"
STATES = {"last": "at the last epoch", "best": "at the epoch that is best on dev"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--arms", default="", help="comma-separated; all if left out")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", default="", help="folder of the results; WORKDIR/experiment if left out")
    arguments = parser.parse_args()
    config = RunConfig.load(arguments.config, arguments.overrides)
    names = arguments.arms.split(",") if arguments.arms else [BASELINE, *config.variants, REFERENCE]
    unknown = sorted(set(names) - {BASELINE, REFERENCE, *config.variants})
    if unknown:
        parser.error(f"--arms: {unknown[0]!r} is none of {', '.join([BASELINE, *config.variants, REFERENCE])}")
    out = Path(arguments.out or f"{config.workdir}/experiment")
    out.mkdir(parents=True, exist_ok=True)
    with open_job(config) as job:
        data = make_data(job)
        results = run_arms(config, names, range(config.seed, config.seed + arguments.seeds), data, out)
    report(config, names, results, out)


def make_data(job: Job) -> ArmData:
    """The data set with its noise, and mined negatives if the arms use them."""
    config = job.config
    job.prepare()
    if config.inject_noise is not None:
        job.inject_noise()
    negatives = None
    if config.negatives is not None and config.train.num_hard_negatives:
        negatives = job.mine(config.data.train_split).folder
    return ArmData(job.dataset, job.corpus, negatives)


def run_arms(config: RunConfig, names: list[str], seeds: range, data: ArmData, out: Path) -> list[ArmResult]:
    """All arms with all seeds; what is finished is read, the rest is run, as many at a time as fit."""
    import ray

    results: list[ArmResult] = []
    waiting = {}
    run = ray.remote(num_cpus=1, num_gpus=1 if config.train.use_gpu else 0)(run_arm)
    for seed in seeds:
        for name in names:
            trained = config.variant(name)
            key = fingerprint_of(
                [trained.model_dump(mode="json", include={"data", "inject_noise", "negatives", "model", "train"}), seed]
            )
            file = out / f"{name}-{seed}-{key}.json"
            if file.exists():
                results.append(ArmResult(**json.loads(file.read_text(encoding="utf-8"))))
            else:
                waiting[run.remote(trained, name, seed, data, name == REFERENCE)] = file
    if results:
        say(f"{len(results)} arms are there already, {len(waiting)} to run")
    with progress_bar("arms", total=len(waiting), unit="arms") as bar:
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            file, result = waiting.pop(done), ray.get(done)
            temporary = file.with_suffix(".tmp")
            temporary.write_text(json.dumps(asdict(result)) + "\n", encoding="utf-8")
            temporary.rename(file)
            results.append(result)
            bar.advance(1)
            say(f"{result.arm}, seed {result.seed}: {result.seconds:,.0f} s of training")
    return results


def mean_over_seeds(results: list[ArmResult], names: list[str], state: str) -> dict[str, dict[str, dict[str, float]]]:
    """arm → measure → query id → value, the mean over the seeds."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in names:
        runs = [result.values[state] for result in results if result.arm == name]
        found[name] = {
            measure: {query_id: float(np.mean([run[measure][query_id] for run in runs])) for query_id in values}
            for measure, values in runs[0].items()
        }
    return found


def report(config: RunConfig, names: list[str], results: list[ArmResult], out: Path) -> None:
    """Tables on the console and as Markdown, a picture, and everything as JSON."""
    settings = Settings(
        config.evaluate.confidence, config.evaluate.bootstrap_samples, config.evaluate.permutations, config.seed
    )
    written: dict[str, Any] = {"config": config.model_dump(mode="json")}
    tables = []
    for state, meaning in STATES.items():
        per_query = mean_over_seeds(results, names, state)
        summaries, comparisons = summarize(per_query, settings), compare(per_query, settings)
        tables.append(retrieval_table(names, results, state, meaning, summaries, comparisons))
        written[state] = {
            "means": [asdict(row) for row in summaries],
            "comparisons": [asdict(row) for row in comparisons],
        }
    tables += [detection_table(names, results), cost_table(names, results)]
    for table in tables:
        table.show()
    write_markdown(tables, out / "results.md")
    written["arms"] = [{key: value for key, value in asdict(result).items() if key != "values"} for result in results]
    (out / "results.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    draw(names, results, out / "curves.png")
    say(f"results: {out}/results.md, results.json, curves.png")


def retrieval_table(
    names: list[str],
    results: list[ArmResult],
    state: str,
    meaning: str,
    summaries: list[MeasureSummary],
    comparisons: list[Comparison],
) -> Table:
    """Means with intervals over the queries, spread over the seeds, difference to the first arm, gap closed."""
    means = {(row.system, row.measure): row for row in summaries}
    against = {(row.system, row.measure): row for row in comparisons}
    has_gap = {names[0], REFERENCE} == {BASELINE, REFERENCE} & set(names)
    rows = []
    for measure in dict.fromkeys(row.measure for row in summaries):
        for name in names:
            by_seed = [np.mean(list(one.values[state][measure].values())) for one in results if one.arm == name]
            mean, other = means[name, measure], against.get((name, measure))
            closed = ""
            if other is not None and name != REFERENCE and has_gap:
                share = gap_closed(means[BASELINE, measure].mean, mean.mean, means[REFERENCE, measure].mean)
                closed = f"{share:.0%}"
            rows.append(
                [
                    measure,
                    name,
                    f"{mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]",
                    f"{min(by_seed):.3f} to {max(by_seed):.3f}",
                    f"{other.difference:+.3f}" if other is not None else "",
                    f"{other.p_holm:.4f}" if other is not None else "",
                    closed,
                ]
            )
    columns = ["measure", "arm", "mean [interval]", "over seeds", f"minus {names[0]}", "p (Holm)", "gap closed"]
    return Table(f"Test queries, {meaning}, mean over the seeds", columns, rows)


def detection_table(names: list[str], results: list[ArmResult]) -> Table:
    """How well each arm's model tells the mismatched pairs after each epoch: NPC's detectors on every arm."""
    figures = [("paper", "auroc"), *((fit, key) for fit in ("paper", "calibrated") for key in ("precision", "recall"))]
    rows = []
    for name in names:
        runs = [result for result in results if result.arm == name]
        for epoch in range(max(len(run.detections) for run in runs)):
            found = [run.detections[epoch] for run in runs if epoch < len(run.detections)]
            if "auroc" in found[0]["paper"]:
                cells = [_mean([one[fit][key] for one in found]) for fit, key in figures]
                rows.append([name, str(epoch + 1), *cells])
    columns = ["arm", "epoch", "AUROC", *(f"{key} ({fit})" for fit, key in figures[1:])]
    return Table("Mismatched training pairs, detected after each epoch, mean over the seeds", columns, rows)


def _mean(values: list[float | None]) -> str:
    """The mean of what is defined; a precision is not where nothing was flagged."""
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.3f}" if known else "nothing flagged"


def cost_table(names: list[str], results: list[ArmResult]) -> Table:
    """Time of training, on one CPU or GPU an arm."""
    rows = []
    for name in names:
        runs = [result for result in results if result.arm == name]
        best = ", ".join(str(run.best_epoch + 1) for run in runs if run.best_epoch is not None)
        rows.append([name, f"{np.median([run.seconds for run in runs]):,.0f}", best])
    return Table("Training", ["arm", "seconds in steps, median", "best epoch on dev, by seed"], rows)


def draw(names: list[str], results: list[ArmResult], path: Path) -> None:
    """Dev measure and detection AUROC by epoch: the mean over the seeds and their range."""
    dev = next(key for key in results[0].history[0] if key.startswith("dev "))
    runs_of = {name: [result for result in results if result.arm == name] for name in names}

    def curves(arms: list[str], values: Callable[[ArmResult], list[float]]) -> Draw:
        def draw_bands(axes: Axes) -> None:
            for name in arms:
                at = names.index(name)
                curves_SE = np.array([values(run) for run in runs_of[name]])
                epochs = np.arange(1, curves_SE.shape[1] + 1)
                axes.plot(epochs, curves_SE.mean(axis=0), label=name, color=COLORS[at], marker="o", markersize=3)
                axes.fill_between(
                    epochs, curves_SE.min(axis=0), curves_SE.max(axis=0), color=COLORS[at], alpha=0.15, linewidth=0
                )
            axes.set_xlabel("epoch")

        return draw_bands

    panels = [(dev, curves(names, lambda run: [row[dev] for row in run.history]))]
    # The clean arm has no mismatched pairs to find.
    noisy = [name for name in names if all("auroc" in row["paper"] for run in runs_of[name] for row in run.detections)]
    if noisy:
        panels.append(
            ("AUROC of the perplexity", curves(noisy, lambda run: [row["paper"]["auroc"] for row in run.detections]))
        )
    path.write_bytes(grid(panels, "By epoch: mean and range over the seeds", columns=2))


if __name__ == "__main__":
    main()
