"""First finding of ``raydr diagnose`` for faults that are injected into real data or settings, one at a time.

For each fault, 400 training pairs, 150 dev and 300 test queries, and 800 passages of a BEIR folder are written with it.
A small model is trained on them in this process, and the run is diagnosed with ``--quick``. With ``--remedies``, a
second model is trained with the settings of the first finding, and compared with the first on the test queries.

    python -m experiments.seeded_faults ../shared/data/openqa-wiki --faults none,mismatched,shifted-dev,hot --remedies
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import raydr
from experiments.arguments import command
from experiments.beir_files import Judgment, read_qrels, read_rows, write_qrels, write_rows
from raydr.artefacts.diagnosis import load_result
from raydr.config.run import RunConfig
from raydr.console import show_table
from raydr.diagnosis.diagnosis import Finding
from raydr.evaluation.comparison import compare, summarize
from raydr.pipeline.compare import query_values

SIZES = {"train": 400, "dev": 150, "test": 300}
NUM_PASSAGES = 800
MEASURE = "RR@10"
SETTINGS = (
    "ray.in_process_rows=1000000000", "tracking.enabled=false", "data.max_bad_rows=10000", "model.num_layers=2",
    "model.query.max_length=24", "model.passage.max_length=48", "train.num_epochs=3", "train.batch_size=10",
    "train.num_hard_negatives=0", "train.optimizer.learning_rate=1e-4", "train.optimizer.frozen_layers=0",
    "train.dev.random_passages=100", "train.dev.max_queries=100",
)  # fmt: skip


class Part:
    """A small random part of a BEIR folder."""

    def __init__(self, source: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.passages = {row["_id"]: row for row in read_rows(source, "corpus")}
        judged = read_qrels(source)
        self.qrels: dict[str, list[Judgment]] = {}
        for split, num in SIZES.items():
            rows = [row for row in judged[split] if float(row[2]) > 0 and row[1] in self.passages]
            chosen = set(self.rng.permutation(sorted({row[0] for row in rows}))[:num].tolist())
            self.qrels[split] = [row for row in rows if row[0] in chosen]
        used = {row[0] for rows in self.qrels.values() for row in rows}
        self.queries = {row["_id"]: row for row in read_rows(source, "queries") if row["_id"] in used}
        needed = {row[1] for rows in self.qrels.values() for row in rows}
        others = self.rng.permutation(sorted(set(self.passages) - needed))[: max(0, NUM_PASSAGES - len(needed))]
        self.passages = {passage_id: self.passages[passage_id] for passage_id in sorted(needed) + others.tolist()}

    def write(self, folder: Path) -> None:
        for split, rows in self.qrels.items():
            write_qrels(folder, split, rows)
        write_rows(folder, "corpus", self.passages.values())
        write_rows(folder, "queries", self.queries.values())

    def exchange(self, split: str, share: float) -> None:
        """Exchange the passages among a share of a split's judgments."""
        rows = self.qrels[split]
        chosen = np.sort(self.rng.permutation(len(rows))[: round(share * len(rows))]).tolist()
        passages = [rows[at][1] for at in chosen]
        for at, passage_id in zip(chosen, passages[1:] + passages[:1], strict=True):
            rows[at] = (rows[at][0], passage_id, rows[at][2])

    def rewrite(self, change: Callable[[str], str]) -> None:
        """Change the text of every passage."""
        self.passages = {passage_id: {**row, "text": change(row["text"])} for passage_id, row in self.passages.items()}

    def copy_positives(self, change: Callable[[str], str]) -> None:
        """Put a changed copy of each training positive into the corpus."""
        for _, passage_id, _ in self.qrels["train"]:
            row = self.passages[passage_id]
            copied = f"copy-{passage_id}"
            self.passages[copied] = {**row, "_id": copied, "text": change(row["text"])}

    def leak(self, split: str, share: float) -> None:
        """Add a share of a split's queries, with their words reversed, to the training split."""
        for query_id, passage_id, relevance in self.qrels[split]:
            if self.rng.uniform() < share:
                again = f"again-{query_id}"
                words = self.queries[query_id]["text"].split()
                self.queries[again] = {"_id": again, "text": " ".join(reversed(words))}
                self.qrels["train"].append((again, passage_id, relevance))

    def lose(self, split: str, share: float) -> None:
        """Replace the passages in a share of a split's judgments by missing ids."""
        self.qrels[split] = [
            (query_id, f"gone-{passage_id}" if self.rng.uniform() < share else passage_id, relevance)
            for query_id, passage_id, relevance in self.qrels[split]
        ]


@dataclass(frozen=True)
class Fault:
    """A fault: the check that should find it (None for no fault), a change of the data, and settings."""

    check: str | None
    harm: Callable[[Part], None] = lambda part: None
    settings: Mapping[str, Any] = field(default_factory=dict)


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _broken_letters(text: str) -> str:
    return "".join(
        chr(ord(letter) + 960) if letter.isascii() and letter.isalpha() and letter not in "aeiou" else letter
        for letter in text
    )


_HARD = {"negatives.depth": 2, "train.num_hard_negatives": 1}
FAULTS = {
    "none": Fault(None),
    "mismatched": Fault("mismatched_pairs", lambda part: part.exchange("train", 0.3)),
    "shifted-dev": Fault("mismatched_pairs", lambda part: part.exchange("dev", 1)),
    "broken-letters": Fault("mismatched_pairs", lambda part: part.rewrite(_broken_letters)),
    "without-spaces": Fault("mismatched_pairs", lambda part: part.rewrite(_without_spaces)),
    "copies": Fault("duplicates", lambda part: part.copy_positives(lambda text: text.replace(" ", "  ")), _HARD),
    "missing-ids": Fault("unanswered_queries", lambda part: part.lose("train", 0.5)),
    "missing-test-ids": Fault("unanswered_queries", lambda part: part.lose("test", 0.5)),
    "leaked-dev": Fault("leakage", lambda part: part.leak("dev", 0.5)),
    "cut": Fault("truncation", settings={"model.passage.max_length": 8}),
    "hot": Fault("learning_rate", settings={"train.optimizer.learning_rate": 1e-2}),
    "cold": Fault("learning_rate", settings={"train.optimizer.learning_rate": 1e-6}),
    "flat": Fault("temperature", settings={"model.scale": 1}),
    "sharp": Fault("temperature", settings={"model.scale": 1000}),
    "few-steps": Fault("too_few_steps", settings={"data.max_queries.train": 50, "train.num_epochs": 1}),
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A training with a fault, and optionally with the remedy of a finding."""

    data: Path
    workdir: Path
    fault: Fault

    @classmethod
    def of(cls, source: Path, fault: Fault, seed: int, scratch: Path) -> Trial:
        part = Part(source, seed)
        fault.harm(part)
        part.write(scratch / "data")
        return cls(scratch / "data", scratch / "work", fault)

    def config(self, remedy: Sequence[str] = ()) -> RunConfig:
        own = [f"{key}={value}" for key, value in self.fault.settings.items()]
        workdir = self.workdir / ("remedied" if remedy else "faulty")
        paths = [f"data.reader={{name: beir, path: {self.data}}}", f"workdir={workdir}"]
        return RunConfig.load("example", [*SETTINGS, *paths, *own, *remedy])

    def named(self) -> list[Finding]:
        """Return the findings of the diagnosis, the likeliest first."""
        [made] = raydr.diagnose(self.config(), quick=True)
        return load_result(made).faults

    def evaluated(self, remedy: Sequence[str] = ()) -> dict[str, dict[str, float]]:
        """Return the measure of the trained model by test query."""
        [made] = raydr.evaluate(self.config(remedy), system=["trained"])
        return {MEASURE: query_values(made)["trained"][MEASURE]}

    def remedied(self, remedy: Sequence[str]) -> list[str]:
        """Return the means without and with the remedy, the gain, and p; without a remedy only the first mean."""
        config, systems = self.config(), {"faulty": self.evaluated()}
        if remedy:
            systems["remedied"] = self.evaluated(remedy)
        cells = [f"{summary.mean:.3f}" for summary in summarize(systems, config.evaluate, config.seed)]
        for comparison in compare(systems, config.evaluate, config.seed):
            cells += [
                f"{comparison.difference:+.3f} [{comparison.low:+.3f}, {comparison.high:+.3f}]",
                f"{comparison.p:.4f}",
            ]
        return cells if remedy else [*cells, "", "", ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="BEIR folder with train, dev and test")
    parser.add_argument("--faults", default=",".join(FAULTS), help=f"comma-separated: {', '.join(FAULTS)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--remedies", action="store_true", help="train again with the settings of the first finding")
    arguments = parser.parse_args()
    chosen = arguments.faults.split(",")
    if unknown := [name for name in chosen if name not in FAULTS]:
        parser.error(f"--faults: there is no {', '.join(map(repr, unknown))}; there are {', '.join(FAULTS)}")
    rows, remedied = [], []
    for name in chosen:
        fault = FAULTS[name]
        with tempfile.TemporaryDirectory(prefix="fault-") as scratch:
            trial = Trial.of(arguments.source, fault, arguments.seed, Path(scratch))
            named = trial.named()
            shown = ", ".join(f"{finding.check} {finding.severity:.2f}" for finding in named)
            first = named[0] if named else None
            is_right = (first.check if first else None) == fault.check
            rows.append([name, fault.check or "nothing", shown or "nothing", str(is_right)])
            settings = first.settings if first else ()
            if arguments.remedies and (settings or not first):
                remedied.append([name, " ".join(settings) or "nothing was named", *trial.remedied(settings)])
    show_table("Findings of diagnose", ["fault", "expected first", "findings", "right"], rows)
    if remedied:
        columns = ["fault", "remedy", f"{MEASURE} of test", "with the remedy", "gain", "p"]
        show_table("Gain of the first remedy", columns, remedied)


if __name__ == "__main__":
    command(main)
