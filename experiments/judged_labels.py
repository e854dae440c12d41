"""Judges of pairs against known labels: any judges of a config, a hub's ranker and a language model among them.

The labels are people's (``--data``): all of their pairs are taken as if right, and the config's judges read them as any
training pairs. Or they are those of the config's own pairs, some of which were mismatched on purpose. Where a judge
comes after another, its verdict takes the place of that one's. No label chooses anything.

    python -m experiments.judged_labels configs/experiments/judged-labels.yaml --data DATA/staqc-sql-labelled
    python -m experiments.judged_labels configs/experiments/cascade-code.yaml
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from scipy.special import expit
from sklearn.metrics import roc_auc_score

from experiments.arguments import command, load_config, run_parser
from experiments.beir_files import read_qrels, read_rows, write_qrels, write_rows
from experiments.results import Table, write_results
from raydr.artefacts.verdict_tables import open_earlier
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset
from raydr.data.noise_injection import MISMATCHED
from raydr.data.tables import pairs_of
from raydr.noise.detection_report import report_detection
from raydr.noise.judges.base import BoolArray, FloatArray, IntArray
from raydr.pipeline.compare import interval_text
from raydr.pipeline.session import open_session
from raydr.store.artifact import Artifact

#: Query and passage.
Pair = tuple[str, str]
SPLIT = "train"


def main() -> None:
    parser = run_parser(__doc__, "judged-labels")
    parser.add_argument("--data", type=Path, help="BEIR folder with pairs of score 1 (right) and 0")
    parser.add_argument("--splits", default="", help="that are labelled, separated by commas; all if left out")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    wrong: dict[Pair, bool] = {}
    if arguments.data is not None:
        out = Path(arguments.out or f"{config.workdir}/{arguments.data.name}").absolute()
        wrong = take_as_right(arguments.data, out / "data", arguments.splits)
        of_data = [f"data.reader={{name: beir, path: '{out / 'data'}'}}", f"workdir={out / 'work'}"]
        config = RunConfig.load(arguments.config, [*of_data, *arguments.overrides])
    elif config.inject_noise is None or config.inject_noise.kind != MISMATCHED:
        parser.error(f"{arguments.config} mismatches no pairs (inject_noise): give labelled ones by --data")
    judges = [judge for judge in config.judge.judges if judge.subject == "pairs"]
    if not judges:
        parser.error(f"{arguments.config} has no judge of pairs: list some in judge.judges")
    with open_session(config) as session:
        nodes = [session.recipe.verdicts(judge, SPLIT) for judge in judges]
        dataset, *made = session.make(session.recipe.dataset(), *nodes)
        by_judge = {judge.name: verdicts for judge, verdicts in zip(judges, made, strict=True)}
    wrong = wrong or mismatched(Dataset(dataset))
    rows = [suspicion.row() for suspicion in suspicions(by_judge, wrong)]
    name = config.name if arguments.data is None else arguments.data.name
    title = f"{name}: {len(wrong):,} pairs, {np.mean([*wrong.values()]):.1%} wrong"
    columns = ["judge", "pairs that it has read", "AUROC of these, before and after", "AUROC of all [95 %]", "flagged"]
    columns += ["precision", "recall", "calibration error"]
    write_results(out, config, [Table(title, columns, rows)], {})


def take_as_right(data: Path, folder: Path, splits: str = "") -> dict[Pair, bool]:
    """Write the labelled pairs of the splits as one BEIR split of right ones; returns which are wrong."""
    qrels = read_qrels(data)
    judged = [row for split in splits.split(",") if split for row in qrels[split]]
    judged = judged or [row for rows in qrels.values() for row in rows]
    shutil.rmtree(folder, ignore_errors=True)
    wrong = {(query_id, passage_id): int(score) == 0 for query_id, passage_id, score in judged}
    write_qrels(folder, SPLIT, [(*pair, "1") for pair in sorted(wrong)])
    for name in ("queries", "corpus"):
        write_rows(folder, name, read_rows(data, name))
    return wrong


def mismatched(data: Dataset) -> dict[Pair, bool]:
    """Which pairs were mismatched on purpose."""
    qrels = data.qrels(SPLIT)
    return dict(zip(pairs_of(qrels), (noise == MISMATCHED for noise in qrels["noise"].to_pylist()), strict=True))


@dataclass(frozen=True)
class Suspicion:
    """What one judge, and those before it in its place, say of all pairs.

    Args:
        judge: its name.
        num_read: pairs that it has read itself.
        area_before, area_after: AUROC of these by the judge before, and by this one; None if there is none.
        pairs: those of which any of them speaks.
        evidence_N: log-odds of the label being wrong.
        flagged_N: what is dropped.
        wrong_N: whether it is.
    """

    judge: str
    num_read: int
    area_before: float | None
    area_after: float | None
    pairs: list[Pair]
    evidence_N: FloatArray
    flagged_N: BoolArray
    wrong_N: BoolArray

    def row(self) -> list[str]:
        """Of the table."""
        if len(np.unique(self.wrong_N)) < 2:
            return [self.judge, f"{self.num_read:,}", "", "all labels alike", "", "", "", ""]
        _, query_N = np.unique([query_id for query_id, _ in self.pairs], return_inverse=True)
        low, high = area_interval(self.evidence_N, self.wrong_N, query_N)
        report = report_detection(self.wrong_N, self.flagged_N, self.evidence_N, expit(self.evidence_N))
        shares = (report.precision, report.recall, report.calibration_error)
        area = interval_text(float(roc_auc_score(self.wrong_N, self.evidence_N)), low, high)
        read = ", ".join(f"{value:.3f}" for value in (self.area_before, self.area_after) if value is not None)
        cells = [self.judge, f"{self.num_read:,}", read, area, f"{self.flagged_N.mean():.1%}"]
        return [*cells, *("" if share is None else f"{share:.3f}" for share in shares)]


def area_interval(
    evidence_N: FloatArray, wrong_N: BoolArray, query_N: IntArray, num_samples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % bootstrap interval of the AUROC; queries are drawn with all of their pairs."""
    num_queries = int(query_N.max()) + 1
    share_Q = np.full(num_queries, 1 / num_queries)
    times_SN = np.random.default_rng(seed).multinomial(num_queries, share_Q, size=num_samples)[:, query_N]
    # Without samples that have labels of one kind alone.
    defined_S = (times_SN[:, wrong_N].sum(axis=1) > 0) & (times_SN[:, ~wrong_N].sum(axis=1) > 0)
    areas = [roc_auc_score(wrong_N, evidence_N, sample_weight=times_N) for times_N in times_SN[defined_S]]
    low, high = np.quantile(areas, [0.025, 0.975])
    return float(low), float(high)


def suspicions(by_judge: dict[str, Artifact], wrong: dict[Pair, bool]) -> list[Suspicion]:
    """Of each judge by its name, in order."""
    judged: dict[str, dict[Pair, tuple[float, bool]]] = {}
    results = []
    for judge, verdicts in by_judge.items():
        tables, evidence_N = open_earlier(verdicts, SPLIT).read()
        table = pa.concat_tables(tables.values())
        flags = [action != "keep" for action in table["action"].to_pylist()]
        own = dict(zip(pairs_of(table), zip(evidence_N.tolist(), flags, strict=True), strict=True))
        before = judged.get(verdicts.info.get("after", ""), {})
        judged[judge] = before | own
        read = [pair for pair in own if pair in wrong]
        pairs = [pair for pair in judged[judge] if pair in wrong]
        evidence, flagged = np.array([judged[judge][pair] for pair in pairs]).reshape(-1, 2).T
        wrong_N = np.array([wrong[pair] for pair in pairs])
        areas = (_area(before, read, wrong), _area(own, read, wrong))
        results.append(Suspicion(judge, len(own), *areas, pairs, evidence, flagged.astype(np.bool_), wrong_N))
    return results


def _area(judged: dict[Pair, tuple[float, bool]], pairs: list[Pair], wrong: dict[Pair, bool]) -> float | None:
    """AUROC of some pairs; None where these say nothing, or not of all of them."""
    labels = [wrong[pair] for pair in pairs]
    if len(set(labels)) < 2 or not judged.keys() >= set(pairs):
        return None
    return float(roc_auc_score(labels, [judged[pair][0] for pair in pairs]))


if __name__ == "__main__":
    command(main)
