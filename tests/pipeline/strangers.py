"""A reader, a loss, a sampler, a detector and judges of somebody else, as the module of another distribution."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from raydr.data.readers.base import Reader, Row, Source
from raydr.data.rows import BadRows
from raydr.losses.base import CLEAN, Candidates, Loss, LossOutput
from raydr.losses.nce import NCE
from raydr.negatives.samplers.base import CandidateList, Drawn, Sampler
from raydr.noise.detectors.base import FloatArray, MixtureDetector, MixtureFit
from raydr.noise.judges.asked import Asked, AskedModels, Copy, Embedder
from raydr.noise.judges.base import Judge, ScoredCandidates, Verdicts


class TabbedReader(Reader):
    """``SPLIT.txt`` files in a folder: a query and its passage in each line."""

    name: Literal["tabbed"] = "tabbed"
    path: str

    def sources(self) -> list[Source]:
        return [Source(f"{self.path}/{split}.txt", "lines", split) for split in ("train", "dev", "test")]

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        for line, text in enumerate(Path(source.path).read_text().splitlines(), start=1):
            query, passage = text.split("\t")
            ids = {"query_id": f"{source.split}-q{line}", "passage_id": f"{source.split}-p{line}"}
            passage_row = {"passage_id": ids["passage_id"], "title": "", "text": passage}
            yield Row("passages", "", passage_row, line)
            yield Row("queries", source.split, {"query_id": ids["query_id"], "text": query}, line)
            yield Row("qrels", source.split, ids | {"relevance": 1}, line)


class HalvedLoss(Loss):
    """Half of NCE, and nothing for flagged pairs."""

    reads_pair_flags: ClassVar[bool] = True

    name: Literal["halved"] = "halved"
    factor: float = 0.5

    def compute(self, candidates: Candidates, epoch: int) -> LossOutput:
        loss_Q = NCE().compute(candidates, epoch).per_query_Q * self.factor
        clean_Q = candidates.signal(CLEAN)
        return LossOutput(loss_Q if clean_Q is None else loss_Q * clean_Q)


class LastSampler(Sampler):
    """The candidates of the lowest ranks."""

    name: Literal["lowest"] = "lowest"

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        flagged = np.arange(len(candidates.scores))[-num:] if num else np.zeros(0)
        return Drawn(flagged.astype(np.int64), num_missing=num - len(flagged))


class MedianDetector(MixtureDetector):
    """Two Gaussians, one around each half of the margins."""

    name: Literal["median"] = "median"

    def fit(self, margins_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        low, high = np.array_split(np.sort(margins_N), 2)
        means, variances = (low.mean(), high.mean()), (low.var() + 1e-3, high.var() + 1e-3)
        return MixtureFit("margin", (0.5, 0.5), means, variances, bic_single=1.0, bic_mixture=0.0)


class BestCandidate(Judge):
    """Drops the best candidate of each query."""

    flags: ClassVar[str] = "each query's best candidate"
    score_name: ClassVar[str] = "similarity"

    name: Literal["best_candidate"] = "best_candidate"

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        best_Q = np.maximum.reduceat(candidates.scores_M, candidates.offsets[:-1])
        keep_M = candidates.scores_M < best_Q[candidates.query_M()]
        return Verdicts(candidates.scores_M, np.where(keep_M, "keep", "drop"), keep_M.astype(np.float64))


class Pupil(BestCandidate):
    """The same by a copy of the retriever that has learnt the candidates."""

    name: Literal["pupil"] = "pupil"

    def asks(self, models: AskedModels) -> Asked:
        return Copy(self.name, 2, {"similarity": "dot"}, {"loss": NCE(), "num_epochs": 1, "pair_detection": None})


class Stranger(BestCandidate):
    """The same by another embedding model."""

    name: Literal["stranger"] = "stranger"

    def asks(self, models: AskedModels) -> Asked:
        return Embedder(models.guide, "stranger")
