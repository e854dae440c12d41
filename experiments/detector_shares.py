"""Flags of detectors by the share of mismatched pairs, which may be small or zero.

Each share and seed has its own noise, and its pairs are measured by models that have not seen them (the section
``cross_fit``). Margins are kept in the working folder.

    python -m experiments.detector_shares configs/experiments/noisy-code.yaml --seeds 3
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.results import Table, write_results
from raydr.artefacts import cross_fitting
from raydr.config.run import RunConfig
from raydr.noise.detection_report import report_detection
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detection, Detector
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.margins import Margins, read_margins
from raydr.pipeline.session import open_session

DETECTORS: dict[str, Detector] = {"local_fdr": LocalFdrDetector(), "anchored": AnchoredDetector()}


def main() -> None:
    parser = run_parser(__doc__, "detector-shares", seeds=1)
    parser.add_argument("--shares", type=numbers(float, 0, 1), default="0,0.05,0.2,0.5,0.8")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    if config.inject_noise is None or config.inject_noise.kind != "mismatched":
        parser.error(f"{arguments.config} injects no mismatched pairs (inject_noise): set their kind")
    seeds = range(config.seed, config.seed + arguments.seeds)
    findings = [finding for margins in measured(config, arguments.shares, seeds) for finding in examined(*margins)]
    write_results(out, config, [table(findings)], {"findings": findings})


def measured(config: RunConfig, shares: Sequence[float], seeds: Sequence[int]) -> Iterator[tuple[float, int, Margins]]:
    """Yield each share and seed, with the margins of data with that noise."""
    assert config.inject_noise is not None
    for seed, share in product(seeds, shares):
        noise = config.inject_noise.model_copy(update={"share": share})
        changed = config.model_copy(update={"inject_noise": noise, "seed": seed})
        with open_session(changed) as session:
            [margins] = session.make(cross_fitting.margins(session.recipe.context, config.data.train_split))
        yield share, seed, read_margins(margins)


def examined(share: float, seed: int, margins: Margins) -> Iterator[dict[str, Any]]:
    """Yield a record of each detector on margins whose truth is known."""
    wrong_N = margins.truth.fill_null(False).to_numpy()
    for name, detector in DETECTORS.items():
        detection = detect(margins, detector)
        probability_N = -np.expm1(detection.log_posterior)
        report = report_detection(wrong_N, ~detection.clean, margins.margin_N, probability_N)
        yield {
            "share": share,
            "seed": seed,
            "num_pairs": len(wrong_N),
            "detector": name,
            "share_flagged": float((~detection.clean).mean()),
            "share_estimated": detection.share_mismatched,
            "precision": report.precision if wrong_N.any() else None,
            "recall": report.recall,
            "calibration_error": report.calibration_error,
            "average_precision": report.average_precision,
            "auroc": report.auroc,
            "reason": detection.reason,
        }


def detect(margins: Margins, detector: Detector) -> Detection:
    """Apply a detector to cross-fitted margins; a mixture, which is slow to fit, reads only the first draw."""
    if isinstance(detector, LocalFdrDetector):
        return margins.detect(detector)
    return detector.detect(margins.margins_ND[:, 0], margins.random_ND[:, 0], margins.fold_N)


def table(findings: list[dict[str, Any]]) -> Table:
    """Return a row for each share and detector: means over the seeds, and the range of the flagged share."""
    rows = []
    for share, name in dict.fromkeys((finding["share"], finding["detector"]) for finding in findings):
        own = [finding for finding in findings if (finding["share"], finding["detector"]) == (share, name)]
        flagged = [finding["share_flagged"] for finding in own]
        keeps_all = all(finding["reason"] for finding in own)
        cells = ["keeps all" if keeps_all else f"{np.mean(flagged):.1%} ({min(flagged):.0%} to {max(flagged):.0%})"]
        for key in ("share_estimated", "precision", "recall", "calibration_error", "average_precision", "auroc"):
            values = [finding[key] for finding in own if finding[key] is not None]
            cells.append(f"{np.mean(values):.3f}" if values else "–")
        rows.append([f"{share:.0%}", name, str(len(own)), *cells])
    columns = ["mismatched", "detector", "seeds", "flagged", "estimated", "precision", "recall", "calibration error"]
    return Table("Pairs flagged, by the share that is mismatched", [*columns, "average precision", "AUROC"], rows)


if __name__ == "__main__":
    command(main)
