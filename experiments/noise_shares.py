"""NCE and NPC by the share of mismatched pairs (NPC's figure 5).

The arms of ``noisy_pairs`` for several shares of noise; what that experiment has trained is not trained again.

    python -m experiments.noise_shares configs/experiments/noisy-code.yaml --seeds 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_report import STATES, compare_arms
from experiments.arm_training import ArmResult
from experiments.arms import run_arms
from experiments.noisy_pairs import REFERENCE, arm_names, declare_arms
from experiments.results import Table, write_results
from raydr.config.run import RunConfig
from raydr.errors import ConfigError
from raydr.graph.declaring import Declaring
from raydr.graph.recipe import Recipe
from raydr.graph.session import open_session
from raydr.pages.figure import COLORS, Draw, grid

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from raydr.compare import Compared


def main() -> None:
    parser = run_parser(__doc__, "noise-shares", seeds=1)
    parser.add_argument(
        "--shares", type=numbers(float, 0, 1), default="0,0.2,0.5,0.8", help="shares of mismatched pairs"
    )
    parser.add_argument("--arms", default="nce,npc,clean", help="comma-separated arms of noisy_pairs")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    names = arm_names(config, arguments.arms)
    configs = {share: with_share(config, share) for share in arguments.shares}
    with open_session(config) as session:
        arms = {}
        for share, changed in configs.items():
            recipe = Recipe(Declaring(changed, session.recipe.run.facts, changed))
            for arm in declare_arms(session, recipe, names):
                arms[f"share{share:g}-{arm.name}"] = share, arm
        found = run_arms(session, [replace(arm, name=name) for name, (_, arm) in arms.items()], arguments.seeds)
    results: dict[float, list[ArmResult]] = {share: [] for share in configs}
    for result in found:
        share, arm = arms[result.arm]
        results[share].append(replace(result, arm=arm.name))
    report(config, names, results, out)


def with_share(config: RunConfig, share: float) -> RunConfig:
    """The run with another share of noise.

    Raises:
        ConfigError: the config has no mismatched pairs.
    """
    noise = config.inject_noise
    if noise is None or noise.kind != "mismatched":
        raise ConfigError("the config has no inject_noise of kind mismatched whose share could be changed")
    if share == noise.share:
        return config
    # Co-teaching is told how many pairs are mismatched.
    variants = {name: dict(change) for name, change in config.variants.items()}
    for change in variants.values():
        if change.get("coteaching"):
            change["coteaching"] = change["coteaching"] | {"noise_rate": share}
    return config.model_copy(update={"inject_noise": noise.model_copy(update={"share": share}), "variants": variants})


def report(config: RunConfig, names: Sequence[str], results: Mapping[float, Sequence[ArmResult]], out: Path) -> None:
    """A table a share and state, and the curves over the shares."""
    compared = {
        state: {share: compare_arms(config, names, runs, state) for share, runs in results.items()} for state in STATES
    }
    tables = [
        Table(
            f"{share:.0%} mismatched, {meaning}", *compared[state][share].rows(REFERENCE if REFERENCE in names else "")
        )
        for share in results
        for state, meaning in STATES.items()
    ]
    written = {f"{share:g}": {state: asdict(compared[state][share]) for state in STATES} for share in results}
    write_results(out, config, tables, {"shares": written}, {"shares.png": picture(names, compared)})


def picture(names: Sequence[str], compared: Mapping[str, Mapping[float, Compared]]) -> bytes:
    """Each measure against the share of noise, with intervals; a row of panels a state."""

    def curve(by_share: Mapping[float, Compared], measure: str) -> Draw:
        def draw(axes: Axes) -> None:
            style: Any = {"marker": "o", "markersize": 3.5, "capsize": 2.5}
            for at, name in enumerate(names):
                rows = [
                    (share, row.mean, row.mean - row.low, row.high - row.mean)
                    for share, found in sorted(by_share.items())
                    for row in found.summaries
                    if (row.system, row.measure) == (name, measure)
                ]
                shares, means, below, above = np.array(rows).T
                axes.errorbar(shares, means, [below, above], color=COLORS[at], label=name, **style)
            axes.set_xlabel("share of mismatched pairs")

        return draw

    panels: list[tuple[str, Draw]] = []
    for state, by_share in compared.items():
        measures = next(iter(by_share.values())).by_seed
        panels += [(f"{measure}, {STATES[state]}", curve(by_share, measure)) for measure in measures]
    return grid(panels, "Test queries by share of noise, with intervals", columns=len(panels) // len(compared))


if __name__ == "__main__":
    command(main)
