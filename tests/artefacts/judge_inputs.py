"""A corpus, a noisy data set, candidates and a model for the tests of judging."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made_artefacts as artefacts
from conftest import WORDS, make_sentence
from made_artefacts import make_corpus
from made_stage import make

from raydr.artefacts.model import save_untrained
from raydr.artefacts.scoring import Scoring, scoring_of
from raydr.data.tables import to_table, write_arrow
from raydr.distributed.arithmetic import Arithmetic
from raydr.distributed.pool import ThisProcess
from raydr.models.config import CrossEncoderConfig, ModelConfig, SideConfig
from raydr.models.cross_encoder import CrossEncoder, PairTokenizer
from raydr.models.encode_config import EncodeConfig
from raydr.store.artifact import Artifact
from raydr.store.building import Building, begin
from raydr.store.folder import publish_files, write_part
from raydr.store.identity import Identity

NUM_QUERIES = 30
DEPTH = 6


#: Arithmetic of all scores here.
FLOAT32 = Arithmetic("float32", "cpu", 4096)


@dataclass(frozen=True)
class JudgeInputs:
    corpus: Artifact
    dataset: Artifact
    negatives: Artifact
    model: Artifact

    @property
    def scoring(self) -> Scoring:
        return scoring_of(ThisProcess(), self.model, EncodeConfig(), FLOAT32)


def negatives_of(at: int) -> list[dict[str, Any]]:
    """Five passages of other queries, and at rank 2 the query's second positive; q10 has the positive it lost too."""
    others = [f"p{(at + step) % NUM_QUERIES:02d}" for step in range(3, 3 + DEPTH - 1)]
    if at == 10:
        others[-1] = "p10"
    ids = [others[0], f"s{at:02d}", *others[1:]]
    return [
        {
            "query_id": f"q{at:02d}",
            "passage_id": passage_id,
            "miner": "bm25",
            "rank": rank,
            "score": 10.0 - rank,
            "positive_score": 9.0 if at else None,
        }
        for rank, passage_id in enumerate(ids, start=1)
    ]


def make_negatives(path: Path, dataset: str, parts: list[list[dict[str, Any]]]) -> Artifact:
    """A ``negatives`` artefact of the split train."""
    identity = Identity(kind="negatives", config={"parts": len(parts)}, inputs={"dataset": dataset})
    with begin(str(path), identity) as making:
        assert isinstance(making, Building)
        for at, rows in enumerate(parts):
            table = to_table("negatives", rows)
            name = f"negatives/train/part-{at:05d}.arrow"
            making.record(name, write_part(making.folder, name, len(table), lambda p, t=table: write_arrow(t, p)))
        return making.finish({"miner": "bm25"})


def make_inputs(folder: Path, checkpoint: str) -> JudgeInputs:
    """30 queries; the passages p.. answer them, s.. say nearly the same; the pairs of every fifth are mismatched.

    Every s.. is a candidate of its query, planted with the truth in the data set's own negatives.
    """
    passages = []
    for at in range(NUM_QUERIES):
        text = make_sentence(at, 12)
        passages.append({"passage_id": f"p{at:02d}", "title": WORDS[at], "text": text})
        passages.append({"passage_id": f"s{at:02d}", "title": WORDS[at], "text": f"{text} end"})
    corpus = make_corpus(folder / "corpus", passages, part_rows=25)
    queries = [{"query_id": f"q{at:02d}", "text": make_sentence(at, 12)} for at in range(NUM_QUERIES)]
    qrels = []
    for at in range(NUM_QUERIES):
        row = {"query_id": f"q{at:02d}", "passage_id": f"p{at:02d}"}
        if at % 5 == 0:
            wrong = f"p{(at + 17) % NUM_QUERIES:02d}"
            row |= {"original_passage_id": row["passage_id"], "passage_id": wrong, "noise": "mismatched"}
        qrels.append(row)
    planted = [
        {
            "query_id": f"q{at:02d}",
            "passage_id": f"s{at:02d}",
            "miner": "planted",
            "rank": 1,
            "noise": "false_negative",
        }
        for at in range(NUM_QUERIES)
    ]
    tables = {"queries": {"train": queries}, "qrels": {"train": qrels}, "negatives": {"train": planted}}
    dataset = artefacts.make_dataset(folder / "dataset", corpus, tables)
    parts = [[row for at in range(*ends) for row in negatives_of(at)] for ends in ((0, 12), (12, NUM_QUERIES))]
    negatives = make_negatives(folder / "negatives", dataset.fingerprint, parts)
    config = ModelConfig(checkpoint=checkpoint, query=SideConfig(max_length=24), passage=SideConfig(max_length=32))
    model = make(folder / "model", "model", save_untrained, model=config, seed=0)
    return JudgeInputs(corpus.artifact, dataset.artifact, negatives, model)


def make_cross_encoder(folder: Path, checkpoint: str) -> Artifact:
    """A cross-encoder with weights as they were drawn."""
    config = CrossEncoderConfig(checkpoint=checkpoint, max_length=48)
    model = CrossEncoder.from_config(config, seed=3)
    with begin(str(folder), Identity(kind="cross_encoder")) as making:
        assert isinstance(making, Building)
        publish_files(making.folder, lambda path: model.save(path, PairTokenizer(config), "log_odds"))
        making.record_files()
        return making.finish({})
