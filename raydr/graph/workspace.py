"""Where the artefacts of a run live, so that every stage finds what the one before made.

::

    WORKDIR/corpus  dataset  dataset-noisy
            bm25  negatives/NAME  verdicts/NAME  models/NAME  classifiers/NAME
            embeddings/MODEL/{passages,queries-SPLIT}  index/MODEL  runs/SPLIT/NAME  evaluation/SPLIT  audits/NAME
            refresh/round-R/STEP-KEY
            plan.json  times/STAGE.json
"""

from __future__ import annotations

from dataclasses import dataclass

from raydr.store.artifact import MANIFEST
from raydr.store.folder import Folder

#: Names of systems that are compared, beside those a user gives.
TRAINED = "trained"
UNTRAINED = "untrained"
BM25 = "bm25"


@dataclass(frozen=True)
class Workspace:
    """Paths below one working folder."""

    root: Folder

    @property
    def corpus(self) -> Folder:
        return self.root / "corpus"

    @property
    def dataset(self) -> Folder:
        return self.root / "dataset"

    @property
    def noisy_dataset(self) -> Folder:
        return self.root / "dataset-noisy"

    @property
    def bm25(self) -> Folder:
        return self.root / "bm25"

    def negatives(self, name: str) -> Folder:
        return self.root / "negatives" / name

    def verdicts(self, name: str) -> Folder:
        return self.root / "verdicts" / name

    def model(self, name: str = TRAINED) -> Folder:
        return self.root / "models" / name

    def passages(self, model: str = TRAINED) -> Folder:
        return self.root / "embeddings" / model / "passages"

    def queries(self, split: str, model: str = TRAINED) -> Folder:
        return self.root / "embeddings" / model / f"queries-{split}"

    def index(self, model: str = TRAINED) -> Folder:
        return self.root / "index" / model

    def run(self, split: str, system: str) -> Folder:
        return self.root / "runs" / split / system

    def evaluation(self, split: str) -> Folder:
        return self.root / "evaluation" / split

    def audit(self, name: str) -> Folder:
        return self.root / "audits" / name

    @property
    def refresh(self) -> Folder:
        return self.root / "refresh"


def finished(root: Folder, under: str) -> list[str]:
    """Names of the finished artefacts in a folder of a working folder, sorted."""
    return sorted(
        {name.split("/")[1] for name in root.files(under) if name.count("/") == 2 and name.endswith(MANIFEST)}
    )
