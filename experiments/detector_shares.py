"""What detectors of mismatched pairs flag where few or none are mismatched: each detector by the share of them.

The pairs of one NCE training after its last epoch are thinned out: mismatched ones are left out until they are the
share asked for, or matched ones are. The retriever is the same for all shares, trained on the config's own.

    python -m experiments.detector_shares configs/experiments/noisy-code.yaml --set train.num_epochs=1
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.arguments import load_config, numbers, run_parser
from experiments.arm_runs import Arm
from experiments.arms import DETECTORS
from experiments.noisy_pairs import BASELINE, make_data
from experiments.perplexity_panels import States, load, measure_missing
from experiments.tables import Table, write_markdown
from raydr.graph.session import open_session
from raydr.noise.detection_report import report_detection
from raydr.runtime.console import say


def main() -> None:
    parser = run_parser(__doc__, "detector-shares")
    parser.add_argument("--shares", type=numbers(float, 0, 1), default="0,0.05,0.1,0.2,0.35,0.5,0.8")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    if config.inject_noise is None or config.inject_noise.kind != "mismatched":
        parser.error(f"{arguments.config} injects no mismatched pairs (inject_noise): there is no truth to thin out by")
    with open_session(config) as session:
        arm = Arm(BASELINE, config, make_data(session))
        file = out / f"{arm.name}-{arm.key(config.seed)}.npz"
        measure_missing([arm], {arm.name: file}, config.seed)
    found = findings(load(file), arguments.shares, config.seed)
    summary = table(found)
    summary.show()
    write_markdown([summary], out / "results.md")
    written = {"config": config.model_dump(mode="json"), "findings": found}
    (out / "results.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    say(f"results: {out}/results.md, results.json")


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
    main()
