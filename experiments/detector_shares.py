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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_training import DETECTORS
from experiments.arms import States
from experiments.noisy_pairs import BASELINE
from experiments.perplexity_panels import measured_states
from experiments.results import Table, write_results
from experiments.trained_heads import FrozenPairs, measure_by_heads
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.nodes import cross_fitting, data
from raydr.graph.session import open_session
from raydr.noise.detection_report import report_detection
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detection, Detector
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.margins import Margins
from raydr.stages.measure_folds import load_margins


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
        summary = table_over_seeds(found)
    else:
        with open_session(config) as session:
            [states] = measured_states(session, BASELINE)
        found = findings(states, arguments.shares, config.seed)
        summary = table(found)
    write_results(out, config, [summary], {"findings": found})


def cross_fitted_by_share(config: RunConfig, shares: Sequence[float], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """What detectors make of data with each share, drawn and measured with each seed."""
    assert config.inject_noise is not None
    for seed in seeds:
        for share in shares:
            noise = config.inject_noise.model_copy(update={"share": share})
            changed = config.model_copy(update={"inject_noise": noise, "seed": seed})
            with open_session(changed) as session:
                [margins] = session.make(cross_fitting.margins(session.recipe.run, config.data.train_split))
            measured = load_margins(margins)
            wrong_N = measured.truth.fill_null(False).to_numpy()
            of_share = {"share": share, "seed": seed, "num_pairs": len(wrong_N)}
            for name, detector in (("local_fdr", LocalFdrDetector()), ("anchored", AnchoredDetector())):
                detection = _detect(measured, detector)
                yield of_share | _finding(f"{name}, cross-fitted", detection, measured.perplexity_N, wrong_N)


def heads_by_share(config: RunConfig, shares: Sequence[float], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The same with heads on frozen vectors, cross-fitted and in sample."""
    clean = config.model_copy(update={"inject_noise": None})
    with open_session(clean) as session:
        dataset, corpus = session.make(data.prepared(session.recipe.run), data.corpus(session.recipe.run))
    model = config.cross_fit.model or config.model
    frozen = FrozenPairs.of(config, model, Dataset(dataset), Corpus.open(corpus.folder))
    for share in shares:
        for seed in seeds:
            measured = measure_by_heads(frozen, config, share, seed)
            for name, detector in (("local_fdr", LocalFdrDetector()), ("anchored", AnchoredDetector())):
                outside, inside = measured.cross_fitted, measured.in_sample
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


def table_over_seeds(found: list[dict[str, Any]]) -> Table:
    """A row a share and detector; means over the seeds, of the flagged share also the smallest and the largest."""
    rows = []
    for share, name in dict.fromkeys((one["share"], one["detector"]) for one in found):
        mine = [one for one in found if (one["share"], one["detector"]) == (share, name)]
        flagged = [one["share_flagged"] for one in mine]
        cells = [f"{np.mean(flagged):.1%} ({min(flagged):.0%} to {max(flagged):.0%})"]
        for key in ("share_estimated", "precision", "recall", "calibration_error", "average_precision", "auroc"):
            values = [one[key] for one in mine if one[key] is not None]
            cells.append(f"{np.mean(values):.3f}" if values else "–")
        rows.append([f"{share:.0%}", name, str(len(mine)), *cells])
    columns = ["mismatched", "detector", "seeds", "flagged", "estimated", "precision", "recall", "calibration error"]
    return Table("Pairs flagged, by the share that is mismatched", [*columns, "average precision", "AUROC"], rows)


def findings(states: States, shares: list[float], seed: int) -> list[dict[str, Any]]:
    """What each detector makes of the last state's pairs at each share."""
    found: list[dict[str, Any]] = []
    perplexities_N, random_N, wrong_N = states.values_EN[-1], states.random_EN[-1], states.mismatched_N
    for share in shares:
        rows = thin_out(wrong_N, share, np.random.default_rng(seed))
        for name, detector in DETECTORS.items():
            detection = detector.detect(perplexities_N[rows], random_N)
            probability = -np.expm1(detection.log_posterior)
            report = report_detection(wrong_N[rows], ~detection.clean, perplexities_N[rows], probability)
            found.append(
                {
                    "share": share,
                    "num_pairs": len(rows),
                    "detector": name,
                    "share_flagged": float((~detection.clean).mean()),
                    "precision": report.precision,
                    "recall": report.recall if share else None,
                    "calibration_error": report.calibration_error if not detection.reason else None,
                    "reason": detection.reason,
                }
            )
    return found


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


def table(found: list[dict[str, Any]]) -> Table:
    """A row a share; of each detector the share flagged, precision, recall and calibration error."""
    rows = []
    for share in dict.fromkeys(one["share"] for one in found):
        mine = [one for one in found if one["share"] == share]
        rows.append([f"{share:.0%}", f"{mine[0]['num_pairs']:,}", *(_cell(one) for one in mine)])
    columns = [f"{name}: flagged, P / R, calibration error" for name in dict.fromkeys(one["detector"] for one in found)]
    return Table("Pairs flagged, by the share that is mismatched", ["mismatched", "pairs", *columns], rows)


def _cell(one: dict[str, Any]) -> str:
    if one["reason"]:
        return "keeps all"
    figures = " / ".join("–" if one[key] is None else f"{one[key]:.2f}" for key in ("precision", "recall"))
    return f"{one['share_flagged']:.0%}, {figures}, {one['calibration_error']:.2f}"


if __name__ == "__main__":
    command(main)
