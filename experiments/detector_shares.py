"""What detectors of mismatched pairs flag where few or none are mismatched: each detector by the share of them.

The pairs of one NCE training after its last epoch are thinned out: mismatched ones are left out until they are the
share asked for, or matched ones are. The retriever is the same for all shares, trained on the config's own.

    python -m experiments.detector_shares configs/experiments/noisy-code.yaml --set train.num_epochs=1

With ``--cross-fitted`` each share and seed has data of its own, and its pairs are measured by models that have not seen
them (the section ``cross_fit``). Margins are kept in the working folder.

    python -m experiments.detector_shares configs/experiments/noisy-code.yaml --cross-fitted --seeds 5

``--heads`` trains linear heads on frozen vectors in place of whole models, and as plain NCE would on all pairs besides.

    python -m experiments.detector_shares configs/experiments/noisy-code.yaml --heads --seeds 5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_training import DETECTORS
from experiments.arms import States
from experiments.noisy_pairs import BASELINE
from experiments.perplexity_panels import measured_states
from experiments.results import Table, write_results
from experiments.trained_heads import FrozenPairs, clean_data, measure_by_heads
from raydr.config.run import RunConfig
from raydr.graph.nodes import cross_fitting
from raydr.graph.session import open_session
from raydr.noise.detection_report import report_detection
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detection, Detector
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.margins import Margins
from raydr.stages.measure_folds import load_margins

#: What margins are given to.
MARGIN_DETECTORS: dict[str, Detector] = {"local_fdr": LocalFdrDetector(), "anchored": AnchoredDetector()}


def main() -> None:
    parser = run_parser(__doc__, "detector-shares", seeds=1)
    parser.add_argument("--shares", type=numbers(float, 0, 1), default="0,0.05,0.1,0.2,0.35,0.5,0.8")
    parser.add_argument("--cross-fitted", action="store_true")
    parser.add_argument("--heads", action="store_true")
    arguments = parser.parse_args()
    if arguments.heads and arguments.cross_fitted:
        parser.error("--heads and --cross-fitted are two ways of measuring: give one")
    if arguments.seeds != 1 and not arguments.heads and not arguments.cross_fitted:
        parser.error("--seeds is for --cross-fitted and --heads")
    config, out = load_config(parser, arguments)
    if config.inject_noise is None or config.inject_noise.kind != "mismatched":
        parser.error(f"{arguments.config} injects no mismatched pairs (inject_noise): there is no truth to thin out by")
    seeds = range(config.seed, config.seed + arguments.seeds)
    if arguments.heads or arguments.cross_fitted:
        measure = heads_by_share if arguments.heads else cross_fitted_by_share
        found = list(measure(config, arguments.shares, seeds))
    else:
        with open_session(config) as session:
            [states] = measured_states(session, BASELINE)
        found = list(thinned_by_share(states, arguments.shares, seeds))
    write_results(out, config, [table(found)], {"findings": found})


def cross_fitted_by_share(config: RunConfig, shares: Sequence[float], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What detectors make of data with each share, drawn and measured with each seed."""
    assert config.inject_noise is not None
    for seed, share in product(seeds, shares):
        noise = config.inject_noise.model_copy(update={"share": share})
        changed = config.model_copy(update={"inject_noise": noise, "seed": seed})
        with open_session(changed) as session:
            [margins] = session.make(cross_fitting.margins(session.recipe.run, config.data.train_split))
        measured = load_margins(margins)
        wrong_N = measured.truth.fill_null(False).to_numpy()
        for name, detector in MARGIN_DETECTORS.items():
            finding = _finding(f"{name}, cross-fitted", _detect(measured, detector), measured.perplexity_N, wrong_N)
            yield {"share": share, "seed": seed, "num_pairs": len(wrong_N)} | finding


def heads_by_share(config: RunConfig, shares: Sequence[float], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The same with heads on frozen vectors, cross-fitted and in sample."""
    frozen = FrozenPairs.of(config, *clean_data(config))
    for share, seed in product(shares, seeds):
        measured = measure_by_heads(frozen, config, share, seed)
        outside, inside = measured.cross_fitted, measured.in_sample
        for name, detector in MARGIN_DETECTORS.items():
            for how, values_N, detection in (
                ("cross-fitted", outside.perplexity_N, _detect(outside, detector)),
                ("in sample", inside.pairs_N, detector.detect(inside.pairs_N, inside.random_N)),
            ):
                finding = _finding(f"{name}, {how}", detection, values_N, measured.wrong_N)
                yield {"share": share, "seed": seed, "num_pairs": len(values_N)} | finding


def _detect(measured: Margins, detector: Detector) -> Detection:
    """What a detector makes of cross-fitted margins; a mixture, which takes seconds to fit, of the first draw alone."""
    if isinstance(detector, LocalFdrDetector):
        return measured.detect(detector)
    return detector.detect(measured.perplexities_ND[:, 0], measured.random_ND[:, 0], measured.fold_N)


def _finding(
    name: str, detection: Detection, perplexities_N: NDArray[np.float64], wrong_N: NDArray[np.bool_]
) -> dict[str, Any]:
    probability = -np.expm1(detection.log_posterior)
    report = report_detection(wrong_N, ~detection.clean, perplexities_N, probability)
    return {
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


def table(found: list[dict[str, Any]]) -> Table:
    """A row a share and detector; means over the seeds, of the flagged share also the smallest and the largest."""
    rows = []
    for share, name in dict.fromkeys((one["share"], one["detector"]) for one in found):
        mine = [one for one in found if (one["share"], one["detector"]) == (share, name)]
        flagged = [one["share_flagged"] for one in mine]
        keeps_all = all(one["reason"] for one in mine)
        cells = ["keeps all" if keeps_all else f"{np.mean(flagged):.1%} ({min(flagged):.0%} to {max(flagged):.0%})"]
        for key in ("share_estimated", "precision", "recall", "calibration_error", "average_precision", "auroc"):
            values = [one[key] for one in mine if one[key] is not None]
            cells.append(f"{np.mean(values):.3f}" if values else "–")
        rows.append([f"{share:.0%}", name, str(len(mine)), *cells])
    columns = ["mismatched", "detector", "seeds", "flagged", "estimated", "precision", "recall", "calibration error"]
    return Table("Pairs flagged, by the share that is mismatched", [*columns, "average precision", "AUROC"], rows)


def thinned_by_share(states: States, shares: Sequence[float], seeds: Sequence[int] = (0,)) -> Iterator[dict[str, Any]]:
    """What each detector makes of the last state's pairs, thinned out to each share with each seed."""
    perplexities_N, random_N, wrong_N = states.values_EN[-1], states.random_EN[-1], states.mismatched_N
    for share, seed in product(shares, seeds):
        rows = thin_out(wrong_N, share, np.random.default_rng(seed))
        for name, detector in DETECTORS.items():
            detection = detector.detect(perplexities_N[rows], random_N)
            finding = _finding(name, detection, perplexities_N[rows], wrong_N[rows])
            yield {"share": share, "seed": seed, "num_pairs": len(rows)} | finding


def thin_out(wrong_N: NDArray[np.bool_], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """Rows of which a share is mismatched, as many as there are for that.

    >>> rows = thin_out(np.array([True, False] * 10), 0.2, np.random.default_rng(0))
    >>> len(rows), int((rows % 2 == 0).sum())
    (12, 2)
    """
    kinds = {wrong: rng.permutation(np.flatnonzero(wrong_N == wrong)) for wrong in (False, True)}
    wanted = {False: 1.0 - share, True: share}
    total = min(len(kinds[wrong]) / wanted[wrong] for wrong in kinds if wanted[wrong])
    return np.sort(np.concatenate([rows[: int(total * wanted[wrong])] for wrong, rows in kinds.items()]))


if __name__ == "__main__":
    command(main)
