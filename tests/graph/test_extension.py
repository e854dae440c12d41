"""A loss, a reader, a detector, a sampler and judges of somebody else: one class each is all that a run needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from conftest import make_sentence
from small_runs import small_run

import raydr
from raydr.config.run import RunConfig
from raydr.data.dataset import read_split
from raydr.data.quarantine import BadRows
from raydr.data.readers.base import Reader, Row, Source
from raydr.graph.places import Places
from raydr.losses.base import Candidates, Loss, LossOutput
from raydr.losses.nce import NCE
from raydr.negatives.samplers.base import CandidateList, Drawn, Sampler
from raydr.noise.detectors.base import Detector, FloatArray, MixtureFit
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
        return LossOutput(loss_Q if candidates.clean_Q is None else loss_Q * candidates.clean_Q)


class LastSampler(Sampler):
    """The candidates of the lowest ranks."""

    name: Literal["lowest"] = "lowest"

    def sample(self, candidates: CandidateList, num: int, rng: np.random.Generator) -> Drawn:
        found = np.arange(len(candidates.scores))[-num:] if num else np.zeros(0)
        return Drawn(found.astype(np.int64), num_missing=num - len(found))


class MedianDetector(Detector):
    """Two Gaussians, one around each half of the perplexities."""

    name: Literal["median"] = "median"

    def fit(self, perplexities_N: FloatArray, random_R: FloatArray) -> MixtureFit:
        low, high = np.array_split(np.sort(perplexities_N), 2)
        means, variances = (low.mean(), high.mean()), (low.var() + 1e-3, high.var() + 1e-3)
        return MixtureFit("perplexity", (0.5, 0.5), means, variances, bic_one=1.0, bic_two=0.0)


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


@pytest.fixture
def config(tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    for first, (split, num) in zip((0, 40, 50), {"train": 40, "dev": 10, "test": 10}.items(), strict=True):
        lines = [make_sentence(at, 12) for at in range(first, first + num)]
        (tmp_path / f"{split}.txt").write_text("".join(f"{line[:30]}\t{line}\n" for line in lines))
    settings: dict[str, Any] = {
        "data": {"reader": {"name": "tabbed", "path": str(tmp_path)}},
        "negatives": {"depth": 5},
        "train": {
            "num_epochs": 2,
            "loss": {"name": "halved", "factor": 0.25},
            "sampler": "lowest",
            "pair_detection": {"detector": {"name": "median", "threshold": 0.4}, "num_random": 10},
        },
        "judge": {
            "model": "untrained",
            "judges": ["best_candidate", "pupil", "stranger"],
            "guide": {"checkpoint": tiny_checkpoint, "query": {"max_length": 16}, "passage": {"max_length": 32}},
        },
        "evaluate": {"measures": ["RR@10"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
    }
    return RunConfig.parse(small_run(tmp_path, tiny_checkpoint, tmp_path / "w", **settings))


def test_a_run_uses_what_this_file_declares(config: RunConfig) -> None:
    [evaluation] = raydr.evaluate(config)
    assert evaluation.folder.read_json("summary.json")["measures"]
    places = Places.of(config.workdir)
    assert places.open("corpus", "corpus").rows("passages") == 60

    model = places.open("models/trained", "model")
    trained = model.manifest.identity.config["train"]
    assert trained["loss"] == {"name": "halved", "factor": 0.25}
    assert trained["sampler"] == {"name": "lowest"}
    assert [one["epoch"] for one in model.info["detections"]] == [0, 1]
    assert {one["threshold"] for one in model.info["detections"]} == {0.4}

    verdicts = {
        name: places.open(f"verdicts/{name}-bm25-train", "verdicts") for name in ("best_candidate", "pupil", "stranger")
    }
    assert {name: one.info["drop"] for name, one in verdicts.items()} == dict.fromkeys(verdicts, 40)
    asked = {name: one.manifest.identity.inputs["model"] for name, one in verdicts.items()}
    assert len(set(asked.values())) == 3
    pupil = places.folder("model", asked["pupil"]).read_json("manifest.json")["identity"]
    assert (pupil["config"]["model"]["similarity"], pupil["config"]["train"]["num_hard_negatives"]) == ("dot", 2)
    assert pupil["inputs"]["start"] == asked["best_candidate"]
    judged = read_split(places.open("negatives/judged-best_candidate+pupil+stranger-bm25-train", "negatives"),
                        "negatives", "train")  # fmt: skip
    assert set(judged["action"].to_pylist()) == {"keep", "drop"}

    [audit] = raydr.audit(config, judges="pupil,best_candidate", model="untrained")
    assert audit.manifest.identity.config["judges"] == ["pupil", "best_candidate"]
