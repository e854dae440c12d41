"""Perplexity of matched and mismatched pairs before training, after the warm-up, after NCE and after NPC (figure 4).

python -m experiments.perplexity_panels configs/experiments/noisy-code.yaml
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from experiments.arguments import command, load_config, run_parser
from experiments.arm_training import DETECTORS
from experiments.arms import States, make_arms, plain_arm
from experiments.noisy_pairs import BASELINE
from experiments.results import Table, write_results
from raydr.noise.detection_report import report_detection
from raydr.pages.audit import AXIS_LABELS, DetectedPairs
from raydr.pages.figure import grid
from raydr.pipeline.session import Session, open_session

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class Panel:
    """A state of training: the drawn pairs, and the margins of random pairs."""

    pairs: DetectedPairs
    random_N: NDArray[np.float64]


def main() -> None:
    parser = run_parser(__doc__, "perplexity-panels")
    parser.add_argument("--method", default="npc", help="the variant of the fourth panel")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    if arguments.method not in config.variants:
        parser.error(f"--method: {arguments.method!r} is no variant of the config: {', '.join(config.variants)}")
    if config.inject_noise is None or config.inject_noise.kind != "mismatched":
        parser.error(f"{arguments.config} injects no mismatched pairs (inject_noise): there is no truth to split by")
    with open_session(config) as session:
        plain, corrected = measured_states(session, BASELINE, arguments.method)
    warmup = config.variant(arguments.method).train.loss.num_warmup_epochs
    states = panels(plain, corrected, warmup, arguments.method)
    drawn = [(title, panel.pairs) for title, panel in states.items()]
    figures = {
        "margins": {title: panel.pairs.margins_N.tolist() for title, panel in states.items()},
        "mismatched": plain.mismatched_N.tolist(),
    }
    picture = grid([(title, partial(_draw, pairs)) for title, pairs in drawn], "Perplexity of the training pairs")
    write_results(out, config, [table(states)], figures, {"panels.png": picture})


def _draw(pairs: DetectedPairs, axes: Axes) -> None:
    """Draw a detection as a panel; the thresholds of all panels share an entry of the legend."""
    pairs.draw(axes)
    for line in axes.lines:
        if str(line.get_label()).startswith("threshold"):
            line.set_label("threshold")
    axes.set_xlabel(AXIS_LABELS[pairs.axis].split(":")[0])
    axes.set_yticks([])


def measured_states(session: Session, *names: str) -> list[States]:
    """Return the margins of the training pairs before training and after each epoch, for each of these arms."""
    plain = [plain_arm(session.recipe, name, keep_margins=True) for name in names]
    # Their own names, so that the names of compared arms do not move.
    arms = [replace(arm, name=f"measured-{arm.name}") for arm in plain]
    return [States.of(made) for made in make_arms(session, arms).values()]


def panels(plain: States, corrected: States, warmup_epochs: int, method: str) -> dict[str, Panel]:
    """Return the four states of the figure, by title."""
    chosen = {
        "before training": (plain, 0),
        f"after the warm-up ({warmup_epochs} of {len(plain.values_EN) - 1} epochs)": (plain, warmup_epochs),
        "NCE, after the last epoch": (plain, -1),
        f"{method.upper()}, after the last epoch": (corrected, -1),
    }
    return {
        title: Panel(
            DetectedPairs(states.values_EN[row], np.ones(len(states.mismatched_N), bool), None, states.mismatched_N),
            states.random_EN[row],
        )
        for title, (states, row) in chosen.items()
    }


def table(states: dict[str, Panel]) -> Table:
    """Return the separation of matched and mismatched pairs in each state, and the quality of the detectors."""
    rows = []
    for title, panel in states.items():
        pairs, truth_N = panel.pairs, panel.pairs.truth_N
        assert truth_N is not None
        perplexity_N = np.logaddexp(0.0, pairs.margins_N)
        medians = [f"{np.median(perplexity_N[truth_N == wrong]):.2f}" for wrong in (False, True)]
        cells = []
        for detector in DETECTORS.values():
            clean_N = detector.detect(pairs.margins_N, panel.random_N).clean
            report = report_detection(truth_N, ~clean_N, pairs.margins_N)
            nothing = report.precision is None
            cells.append("keeps all" if nothing else f"{report.precision:.2f} / {report.recall:.2f}")
        auroc = report_detection(truth_N, np.zeros_like(truth_N), pairs.margins_N).auroc
        rows.append([title, *medians, f"{auroc:.3f}", *cells])
    columns = ["state", "median, matched", "median, mismatched", "AUROC"]
    return Table("Perplexity of the training pairs", [*columns, *(f"P / R: {name}" for name in DETECTORS)], rows)


if __name__ == "__main__":
    command(main)
