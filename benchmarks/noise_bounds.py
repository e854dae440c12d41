"""Coverage of the bounds of the detector ``local_fdr``: the share of simulated data sets on which each bound holds.

Margins are normal. Those of right pairs lie below those of random pairs by a distance that yields the AUROC; mismatched
pairs are distributed as random pairs. ``near``: 30% of the mismatched pairs lie half-way. ``dependent``: pairs form
groups of ten that share 30% of their variance, also among random pairs. ``skewed``: right margins have a long lower
tail.

    python -m benchmarks.noise_bounds                       # about 10 minutes
    python -m benchmarks.noise_bounds --draws 40 --pairs 2000

A rule is a bound if its worst cell, over shares .01 to .8 and AUROC .75 to .98, is .95 or more, up to chance.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from raydr.noise.detectors.local_fdr import LocalFdrDetector

SHARES, AUROCS = (0.01, 0.05, 0.2, 0.5, 0.8), (0.75, 0.85, 0.92, 0.96, 0.98)
#: Share of mismatched pairs that lie half-way, share of variance common to ten pairs, and whether margins are skewed.
SETTINGS = {
    "plain": (0.0, 0.0, False),
    "near": (0.3, 0.0, False),
    "dependent": (0.0, 0.3, False),
    "skewed": (0.0, 0.0, True),
    "near, dependent": (0.3, 0.3, False),
}
RULES = {
    **{f"max_right_flagged {bound}": LocalFdrDetector(max_right_flagged=bound) for bound in (0.1, 0.3)},
    **{f"max_wrong_kept {bound}": LocalFdrDetector(max_wrong_kept=bound) for bound in (0.05, 0.1)},
}
FloatArray = NDArray[np.float64]


def margins(
    rng: np.random.Generator, num: int, share: float, auroc: float, setting: tuple[float, float, bool]
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Draw margins of pairs and of random pairs, and whether each pair is mismatched."""
    near, common, skewed = setting
    distance = float(np.sqrt(2.0) * ndtri(auroc))
    noise_N, random_N = (
        np.sqrt(common) * np.repeat(rng.normal(size=-(-num // 10)), 10)[:num]
        + np.sqrt(1.0 - common) * rng.normal(size=num)
        for _ in range(2)
    )
    wrong_N = rng.random(num) < share
    below_N = 0.6 * distance + rng.gamma(2.0, distance / 4.0, num) if skewed else np.full(num, distance)
    below_N = np.where(wrong_N, distance / 2.0 * (rng.random(num) < near), below_N)
    return noise_N - below_N, random_N, wrong_N


def holds(
    rule: LocalFdrDetector, margins_N: FloatArray, random_N: FloatArray, wrong_N: NDArray[np.bool_]
) -> tuple[bool, float]:
    """Return whether the bound holds, and the share of mismatched pairs that are flagged or of right pairs kept."""
    clean_N = rule.detect(margins_N, random_N).clean
    if rule.max_right_flagged is not None:
        chosen_N, good_N, bound = ~clean_N, wrong_N, rule.max_right_flagged
    else:
        assert rule.max_wrong_kept is not None
        chosen_N, good_N, bound = clean_N, ~wrong_N, rule.max_wrong_kept
    is_kept = not chosen_N.any() or float((~good_N[chosen_N]).mean()) <= bound
    return is_kept, float(good_N[chosen_N].sum() / max(1, good_N.sum()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100, help="data sets of each cell")
    parser.add_argument("--pairs", type=int, default=10_000)
    arguments = parser.parse_args()
    print("| pairs | rule | coverage, worst cell | all cells | recall at AUROC .98, shares .2, .5, .8 |")
    print("|---|---|---|---|---|")
    for title, setting in SETTINGS.items():
        kept: dict[str, dict[tuple[float, float], tuple[float, float]]] = {name: {} for name in RULES}
        for at, cell in enumerate(product(SHARES, AUROCS)):
            outcomes: dict[str, list[tuple[bool, float]]] = {name: [] for name in RULES}
            for draw in range(arguments.draws):
                drawn = margins(np.random.default_rng([at, draw]), arguments.pairs, *cell, setting)
                for name, rule in RULES.items():
                    outcomes[name].append(holds(rule, *drawn))
            for name, draws in outcomes.items():
                share_kept, yields = np.mean(draws, axis=0).tolist()
                kept[name][cell] = share_kept, yields
        for name, cells in kept.items():
            shares = [share for share, _ in cells.values()]
            yields = ", ".join(f"{cells[share, 0.98][1]:.2f}" for share in (0.2, 0.5, 0.8))
            print(f"| {title} | {name} | {min(shares):.2f} | {np.mean(shares):.2f} | {yields} |", flush=True)


if __name__ == "__main__":
    main()
