"""Detection of mismatched pairs on real noise: StaQC's SQL pairs against the verdicts of their human annotators.

All labelled pairs are taken as if right. Each is a query of its own; the other snippets of its question never count
against it. Measured are code length alone, the perplexity under MiniLM as it comes, and the perplexity after each epoch
of plain NCE and of NPC on these pairs; each detector says which pairs it would drop.

    python -m experiments.labelled_pairs --data DATA/staqc-sql-labelled --out work/experiments/labelled_pairs
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from experiments.arm_training import AfterEpoch
from experiments.filter_curves import area_interval
from experiments.pair_labels import Pairs, convert, siblings
from experiments.results import Table, write_results
from raydr.compare import interval_text
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.graph.session import open_session
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.noise.detection_report import report_detection
from raydr.noise.detectors.anchored import AnchoredDetector
from raydr.noise.detectors.base import Detector
from raydr.noise.detectors.calibrated import CalibratedDetector
from raydr.noise.detectors.gaussian import GaussianDetector
from raydr.noise.perplexity import Perplexities
from raydr.pages.figure import COLORS, legend, png
from raydr.runtime.console import say
from raydr.training.config import PairDetectionConfig
from raydr.training.detection import PairDetector
from raydr.training.run import TrainingInputs, build_setup
from raydr.training.trainer import Trainer

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The third takes the two components whatever their distance: here they overlap.
DETECTORS: dict[str, Detector] = {
    "paper": GaussianDetector(),
    "calibrated": CalibratedDetector(),
    "calibrated, any distance": CalibratedDetector(min_separation=0.0),
    "anchored": AnchoredDetector(),
}
LENGTH = "code length"
NUM_SAMPLES = 1000


def run_config(folder: Path, loss: dict[str, Any], num_layers: int | None, epochs: int, batch_size: int) -> RunConfig:
    """MiniLM with cosine and the scale 20, as the NPC paper trains on code."""
    model: dict[str, Any] = {"checkpoint": "offline:minilm", "similarity": "cosine", "scale": 20}
    if num_layers is not None:
        model["num_layers"] = num_layers
    model |= {"query": {"max_length": 32}, "passage": {"max_length": 128}}
    train = {
        "loss": loss,
        "num_epochs": epochs,
        "batch_size": batch_size,
        "optimizer": {"learning_rate": 1e-4},
        "keep": "last",
    }
    if loss["name"] == "npc":
        # Training follows the flags whatever the components' distance: the default would keep every pair.
        train["pair_detection"] = {"detector": {"name": "calibrated", "min_separation": 0.0}}
    return RunConfig.parse(
        {
            "name": "labelled_pairs",
            "workdir": str(folder / "work"),
            "data": {"reader": {"name": "beir", "path": str(folder / "data")}},
            "model": model,
            "train": train,
            "tracking": {"enabled": False},
        }
    )


def perplexities_by_epoch(config: RunConfig, pairs: Pairs, train: bool, seed: int, threads: int) -> list[Perplexities]:
    """Perplexity of every pair under the checkpoint, and after each epoch of training."""
    torch.set_num_threads(threads)
    opened = Dataset.open(f"{config.workdir}/dataset")
    corpus = Corpus.open(f"{config.workdir}/corpus")
    tables = (opened.queries("train"), opened.qrels("train"), siblings(pairs, opened))
    model = DualEncoder.from_config(config.model, seed)
    tokenizers = build_tokenizers(config.model)
    dtype = torch_dtype(resolve_dtype(config.train.dtype, "cpu")[0])
    measured: list[Perplexities] = []

    def measure(epoch: int) -> None:
        measured.append(detector.measure(model, epoch, dtype))

    setup = build_setup(
        config.train,
        seed,
        model,
        tokenizers,
        TrainingInputs(corpus, tables, None),
        dtype,
        AfterEpoch(lambda progress: measure(progress.epoch)),
    )
    assert setup.batches.examples.query_ids == pairs.ids
    detector = PairDetector(setup.batches.examples, corpus, tokenizers, PairDetectionConfig(), config.train, seed)
    measure(0)
    if train:
        Trainer(setup).run()
    return measured


@dataclass(frozen=True)
class Finding:
    """One way of suspecting pairs, against the verdicts."""

    method: str
    epoch: int | None
    auroc: float
    low: float
    high: float
    #: By detector: share flagged, precision, recall, and why nothing was flagged.
    detectors: dict[str, dict[str, Any]]


def examine(
    pairs: Pairs,
    method: str,
    epoch: int | None,
    suspicion: NDArray[np.float64],
    random_pairs: NDArray[np.float64] | None = None,
) -> Finding:
    """AUROC with a bootstrap interval over questions; what each detector flags, if it is a perplexity.

    Args:
        pairs: with the verdicts.
        method: how they were suspected.
        epoch: of the training; None for what is no perplexity.
        suspicion: of each pair.
        random_pairs: perplexities of random pairs.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, detector in DETECTORS.items() if epoch is not None else ():
        detection = detector.detect(suspicion, random_pairs)
        flagged = ~detection.clean
        report = report_detection(pairs.wrong, flagged, suspicion)
        found[name] = {
            "share_flagged": float(flagged.mean()),
            "precision": report.precision,
            "recall": report.recall,
            "reason": detection.reason,
        }
    # Questions are drawn with all of their pairs.
    _, question_N = np.unique(pairs.questions, return_inverse=True)
    low, high = area_interval(suspicion, pairs.wrong, question_N, NUM_SAMPLES, seed=0)
    return Finding(method, epoch, float(roc_auc_score(pairs.wrong, suspicion)), low, high, found)


def picture(findings: list[Finding]) -> bytes:
    """AUROC by epoch, one line a training, with intervals; the baselines as dashed lines."""

    def draw(axes: Axes) -> None:
        trained = [one for one in findings if one.epoch is not None]
        for at, name in enumerate(dict.fromkeys(one.method for one in trained)):
            mine = [(one.epoch or 0, one.auroc, one.low, one.high) for one in trained if one.method == name]
            epochs, values, low, high = np.array(mine).T
            style: Any = {"color": COLORS[at], "label": name, "marker": "o", "markersize": 3.5, "capsize": 2.5}
            axes.errorbar(epochs, values, [values - low, high - values], **style)
        for one in findings:
            if one.epoch is None:
                axes.axhline(one.auroc, color="#333333", linestyle="--", linewidth=1, label=one.method)
        axes.set(xlabel="epochs of training", ylabel="AUROC against the verdicts, 95 % interval")
        legend(axes)

    return png(draw, "Mismatched pairs of StaQC-SQL found by perplexity")


def row_of(one: Finding) -> list[str]:
    epoch = "" if one.epoch is None else str(one.epoch)
    cells = [one.method, epoch, interval_text(one.auroc, one.low, one.high)]
    for name in DETECTORS:
        found = one.detectors.get(name)
        if found is None:
            cells.append("")
        elif found["precision"] is None:
            cells.append("keeps all")
        else:
            cells.append(f"{found['precision']:.2f} / {found['recall']:.2f}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of staqc-sql-labelled")
    parser.add_argument("--out", type=Path, default=Path("work/experiments/labelled_pairs"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--layers", type=int, default=3, help="of the model that is trained")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    pairs = convert(arguments.data, out / "data")

    def config_of(loss: dict[str, Any], layers: int | None) -> RunConfig:
        return run_config(out, loss, layers, arguments.epochs, arguments.batch_size)

    with open_session(config_of({"name": "nce"}, None)) as session:
        session.make(session.recipe.dataset())
    findings = [examine(pairs, LENGTH, None, -pairs.num_words.astype(np.float64))]
    trainings: dict[str, tuple[dict[str, Any], int | None, bool]] = {
        "MiniLM, 6 layers, untouched": ({"name": "nce"}, None, False),
        f"NCE, {arguments.layers} layers": ({"name": "nce"}, arguments.layers, True),
        f"NPC, {arguments.layers} layers": ({"name": "npc", "warmup_epochs": 1}, arguments.layers, True),
    }
    for method, (loss, layers, train) in trainings.items():
        measured = perplexities_by_epoch(config_of(loss, layers), pairs, train, arguments.seed, arguments.threads)
        findings += [examine(pairs, method, epoch, one.pairs_N, one.random_N) for epoch, one in enumerate(measured)]
        say(f"{method}: AUROC " + ", ".join(f"{one.auroc:.3f}" for one in findings if one.method == method))
    columns = ["method", "epoch", "AUROC [95 %]", *(f"precision / recall: {name}" for name in DETECTORS)]
    title = f"{len(pairs.ids):,} pairs, {pairs.wrong.mean():.1%} wrong"
    figures = {"findings": [asdict(one) for one in findings]}
    tables = [Table(title, columns, [row_of(one) for one in findings])]
    write_results(out, vars(arguments), tables, figures, {"labelled_pairs.png": picture(findings)})


if __name__ == "__main__":
    main()
