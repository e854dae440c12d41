"""NCE and NPC by the share of mismatched pairs (NPC's figure 5).

The arms of ``noisy_pairs`` for several shares of noise. Each share has a working folder of its own below the config's;
the config's own share uses the config's folder, so that arms which ``noisy_pairs`` has trained are not trained again.

    python -m experiments.noise_shares configs/experiments/noisy-code.yaml --seeds 1
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arguments import load_config, numbers, run_parser
from experiments.arm_report import STATES, mean_over_seeds, retrieval_table, settings_of
from experiments.arm_runs import run_arms
from experiments.arms import ArmResult
from experiments.noisy_pairs import REFERENCE, arm_names, make_arms
from experiments.tables import Table, write_markdown
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.evaluation.comparison import MeasureSummary, compare, summarize
from raydr.graph.session import open_session
from raydr.pages.figure import COLORS, Draw, grid
from raydr.runtime.cluster import ray_session
from raydr.runtime.console import say

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def main() -> None:
    parser = run_parser(__doc__, "noise-shares", seeds=1)
    parser.add_argument(
        "--shares",
        type=numbers(float, 0, 1),
        default="0,0.2,0.5,0.8",
        help="shares of mismatched pairs",
    )
    parser.add_argument("--arms", default="nce,npc,clean", help="comma-separated arms of noisy_pairs")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    try:
        names = arm_names(config, arguments.arms)
        configs = {share: with_share(config, share) for share in arguments.shares}
    except ConfigError as error:
        parser.error(str(error))
    results: dict[float, list[ArmResult]] = {}
    with ray_session(config.ray):
        for share, changed in configs.items():
            say(f"{share:.0%} of the pairs mismatched")
            with open_session(changed) as session:
                arms = make_arms(session, names)
                seeds = range(config.seed, config.seed + arguments.seeds)
                results[share] = run_arms(arms, seeds, Path(f"{changed.workdir}/experiment"))
    report(config, names, results, out)


def with_share(config: RunConfig, share: float) -> RunConfig:
    """The run with another share of noise, in a folder of its own.

    Raises:
        ConfigError: the config has no mismatched pairs.
    """
    noise = config.inject_noise
    if noise is None or noise.kind != "mismatched":
        raise ConfigError("the config has no inject_noise of kind mismatched whose share could be changed")
    if share == noise.share:
        return config
    changed = noise.model_copy(update={"share": share})
    # Co-teaching is told how many pairs are mismatched.
    variants = {name: dict(change) for name, change in config.variants.items()}
    for change in variants.values():
        if change.get("coteaching"):
            change["coteaching"] = change["coteaching"] | {"noise_rate": share}
    return config.model_copy(
        update={"inject_noise": changed, "variants": variants, "workdir": f"{config.workdir}/share-{share:g}"}
    )


def report(config: RunConfig, names: Sequence[str], results: Mapping[float, Sequence[ArmResult]], out: Path) -> None:
    """A table a share, and the curves over the shares."""
    settings = settings_of(config)
    tables: list[Table] = []
    summaries: dict[str, dict[float, list[MeasureSummary]]] = {state: {} for state in STATES}
    written: dict[str, Any] = {"config": config.model_dump(mode="json"), "shares": {}}
    for share, runs in results.items():
        for state, meaning in STATES.items():
            per_query = mean_over_seeds(runs, names, state)
            means, comparisons = summarize(per_query, settings), compare(per_query, settings)
            heading = f"{share:.0%} mismatched, {meaning}"
            tables.append(retrieval_table(heading, names, runs, state, means, comparisons, REFERENCE))
            summaries[state][share] = means
            written["shares"].setdefault(f"{share:g}", {})[state] = {
                "means": [asdict(row) for row in means],
                "comparisons": [asdict(row) for row in comparisons],
            }
    for table in tables:
        table.show()
    write_markdown(tables, out / "results.md")
    (out / "results.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    (out / "shares.png").write_bytes(picture(names, summaries))
    say(f"results: {out}/results.md, results.json, shares.png")


def picture(names: Sequence[str], summaries: Mapping[str, Mapping[float, Sequence[MeasureSummary]]]) -> bytes:
    """Each measure against the share of noise, with intervals; a row of panels a state."""

    def curve(by_share: Mapping[float, Sequence[MeasureSummary]], measure: str) -> Draw:
        def draw(axes: Axes) -> None:
            for at, name in enumerate(names):
                mine = [
                    (share, row)
                    for share, rows in sorted(by_share.items())
                    for row in rows
                    if (row.system, row.measure) == (name, measure)
                ]
                means = np.array([row.mean for _, row in mine])
                errors = np.array([[row.mean - row.low, row.high - row.mean] for _, row in mine]).T
                axes.errorbar(
                    [share for share, _ in mine], means, errors, color=COLORS[at], label=name, marker="o",
                    markersize=3.5, capsize=2.5,
                )  # fmt: skip
            axes.set_xlabel("share of mismatched pairs")

        return draw

    panels: list[tuple[str, Draw]] = []
    for state, by_share in summaries.items():
        measures = list(dict.fromkeys(row.measure for row in next(iter(by_share.values()))))
        panels += [(f"{measure}, {STATES[state]}", curve(by_share, measure)) for measure in measures]
    return grid(panels, "Test queries by share of noise, with intervals", columns=len(panels) // len(summaries))


if __name__ == "__main__":
    main()
