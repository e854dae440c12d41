"""Perplexities of matched and mismatched pairs before and after the warm-up, after NCE, after NPC (NPC's figure 4).

python -m experiments.perplexity_panels configs/experiments/noisy-code.yaml
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.arguments import load_config, run_parser
from experiments.arm_runs import Arm
from experiments.arms import DETECTORS, ArmData, EpochListener, PreparedArm, prepare_arm
from experiments.noisy_pairs import BASELINE, make_data
from experiments.tables import Table, write_markdown
from experiments.tasks import results
from raydr.config.run import RunConfig
from raydr.graph.session import open_session
from raydr.noise.detection_report import report_detection
from raydr.noise.perplexity import Perplexities
from raydr.pages.noise_plots import DetectedPairs, detection_panel
from raydr.runtime.cluster import start_ray
from raydr.runtime.console import say
from raydr.training.checkpoint import Progress
from raydr.training.config import PairDetectionConfig
from raydr.training.detection import PairDetector


@dataclass(frozen=True)
class States:
    """Perplexities of all training pairs, before training and after each epoch.

    Args:
        values_EN: one row a state: before training, after the first epoch, ...
        random_EN: of random pairs, one a query.
        mismatched_N: the truth.
    """

    values_EN: NDArray[np.float64]
    random_EN: NDArray[np.float64]
    mismatched_N: NDArray[np.bool_]


@dataclass(frozen=True)
class Panel:
    """One state: what is drawn, and the perplexities of random pairs."""

    pairs: DetectedPairs
    random_N: NDArray[np.float64]


class _Meter(EpochListener):
    """Measures every pair after each epoch, all against the same random passages."""

    def __init__(self) -> None:
        self.measured: list[Perplexities] = []

    def follow(self, arm: PreparedArm, settings: PairDetectionConfig) -> None:
        """Measure an arm that has not begun, and then each of its epochs."""
        self.setup = arm.trainer.setup
        self.detector = PairDetector(
            self.setup.batches.examples, arm.corpus, arm.tokenizers, settings, self.setup.config, self.setup.seed
        )
        self._measure()

    def after_epoch(self, progress: Progress) -> None:
        self._measure()

    def _measure(self) -> None:
        model = self.setup.model
        self.measured.append(self.detector.measure(model, 0, self.setup.dtype))


def measure_arm(config: RunConfig, seed: int, data: ArmData, file: str) -> str:
    """Train an arm and write its perplexities into a file; returns its name."""
    meter = _Meter()
    arm = prepare_arm(config, seed, data, clean_only=False, threads=1, listener=meter)
    meter.follow(arm, PairDetectionConfig())
    arm.trainer.run()
    temporary = Path(file).with_suffix(".part")
    with temporary.open("wb") as stream:
        np.savez(
            stream,
            values_EN=np.stack([one.pairs_N for one in meter.measured]),
            random_EN=np.stack([one.random_N for one in meter.measured]),
            mismatched_N=arm.trainer.setup.batches.examples.is_noise,
        )
    temporary.rename(file)
    return file


def load(file: Path) -> States:
    """What :func:`measure_arm` wrote."""
    with np.load(file, allow_pickle=False) as arrays:
        return States(arrays["values_EN"], arrays["random_EN"], arrays["mismatched_N"])


def panels(plain: States, corrected: States, warmup_epochs: int, method: str) -> dict[str, Panel]:
    """The four states of the figure, by title."""
    chosen = {
        "before training": (plain, 0),
        f"after the warm-up ({warmup_epochs} of {len(plain.values_EN) - 1} epochs)": (plain, warmup_epochs),
        "NCE, after the last epoch": (plain, -1),
        f"{method.upper()}, after the last epoch": (corrected, -1),
    }
    return {
        title: Panel(
            DetectedPairs(found.values_EN[row], np.ones(len(found.mismatched_N), bool), None, found.mismatched_N),
            found.random_EN[row],
        )
        for title, (found, row) in chosen.items()
    }


def table(states: dict[str, Panel]) -> Table:
    """How far apart the two kinds of pairs are, and what the detectors make of it."""
    rows = []
    for title, panel in states.items():
        pairs, truth_N = panel.pairs, panel.pairs.truth_N
        assert truth_N is not None
        medians = [f"{np.median(pairs.perplexities_N[truth_N == wrong]):.2f}" for wrong in (False, True)]
        cells = []
        for detector in DETECTORS.values():
            clean_N = detector.detect(pairs.perplexities_N, panel.random_N).clean
            found = report_detection(truth_N, ~clean_N, pairs.perplexities_N)
            nothing = found.precision is None
            cells.append("keeps all" if nothing else f"{found.precision:.2f} / {found.recall:.2f}")
        auroc = report_detection(truth_N, np.zeros_like(truth_N), pairs.perplexities_N).auroc
        rows.append([title, *medians, f"{auroc:.3f}", *cells])
    columns = ["state", "median, matched", "median, mismatched", "AUROC"]
    return Table("Perplexity of the training pairs", [*columns, *(f"P / R: {name}" for name in DETECTORS)], rows)


def main() -> None:
    parser = run_parser(__doc__, "perplexity-panels")
    parser.add_argument("--method", default="npc", help="the variant of the fourth panel")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    if arguments.method not in config.variants:
        parser.error(f"--method: {arguments.method!r} is no variant of the config: {', '.join(config.variants)}")
    if config.inject_noise is None or config.inject_noise.kind != "mismatched":
        parser.error(f"{arguments.config} injects no mismatched pairs (inject_noise): there is no truth to split by")
    files = {}
    with open_session(config) as session:
        data = make_data(session)
        arms = [Arm(name, config.variant(name), data) for name in (BASELINE, arguments.method)]
        files = {arm.name: out / f"{arm.name}-{arm.key(config.seed)}.npz" for arm in arms}
        measure_missing(arms, files, config.seed)
    plain, corrected = load(files[BASELINE]), load(files[arguments.method])
    warmup = config.variant(arguments.method).train.loss.num_warmup_epochs
    states = panels(plain, corrected, warmup, arguments.method)
    summary = table(states)
    summary.show()
    write_markdown([summary], out / "results.md")
    drawn = [(title, panel.pairs) for title, panel in states.items()]
    (out / "panels.png").write_bytes(detection_panel(drawn, "Perplexity of the training pairs", 2))
    written: dict[str, Any] = {
        "config": config.model_dump(mode="json"),
        "perplexities": {title: panel.pairs.perplexities_N.tolist() for title, panel in states.items()},
        "mismatched": plain.mismatched_N.tolist(),
    }
    (out / "results.json").write_text(json.dumps(written) + "\n", encoding="utf-8")
    say(f"results: {out}/results.md, results.json, panels.png")


def measure_missing(arms: list[Arm], files: dict[str, Path], seed: int) -> None:
    """Run :func:`measure_arm` as a Ray task for each arm, by name, whose file is not there."""
    import ray

    start_ray()
    waiting = []
    for arm in arms:
        if files[arm.name].exists():
            say(f"{arm.name} is there already")
            continue
        run = ray.remote(num_cpus=1, num_gpus=1 if arm.config.train.use_gpu else 0)(measure_arm)
        waiting.append(run.remote(arm.config, seed, arm.data, str(files[arm.name])))
    for file in results(waiting, "arms", "arms"):
        say(f"measured: {file}")


if __name__ == "__main__":
    main()
