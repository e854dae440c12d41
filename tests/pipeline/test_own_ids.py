"""Queries that are passages of the corpus: nowhere is a query's own passage found for it, or a negative of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import make_sentence
from small_runs import small_run

import raydr
from raydr.artefacts.places import Places
from raydr.artefacts.run import Run, rank_rows, without_own_ids
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset, read_split
from raydr.data.examples import load_examples
from raydr.errors import ArtifactError
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.training.dev import DevSet, build_dev_set


@pytest.fixture
def arguments(tmp_path: Path) -> Path:
    """Passages of which the even ones are queries too; the next one is the answer to each, and shares half of it."""
    folder = tmp_path / "arguments"
    (folder / "qrels").mkdir(parents=True)
    texts = [make_sentence(at, 12) for at in range(0, 40, 2)]
    passages = [text for part in texts for text in (part, " ".join(part.split()[:6]))]
    rows = [{"_id": f"a{at:02d}", "title": "", "text": text} for at, text in enumerate(passages)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::2]))
    for split, numbers in {"train": range(0, 24, 2), "dev": range(24, 32, 2), "test": range(32, 40, 2)}.items():
        lines = ["query-id\tcorpus-id\tscore", *(f"a{at:02d}\ta{at + 1:02d}\t1" for at in numbers)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")
    return folder


def config_of(arguments: Path, checkpoint: str, workdir: Path, **data: Any) -> RunConfig:
    sections: dict[str, Any] = {
        "data": data,
        "train": {"num_epochs": 1, "num_hard_negatives": 2, "batch_size": 4},
        "search": {"top_k": 3},
        "evaluate": {"measures": ["R@1"], "answer_cutoffs": [], "bootstrap_samples": 100, "permutations": 100},
    }
    return RunConfig.parse(small_run(arguments, checkpoint, workdir, **sections))


def test_a_run_with_them(arguments: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    config = config_of(arguments, tiny_checkpoint, tmp_path / "w", skip_own_id=True)
    evaluations = raydr.evaluate(config, system=["bm25", "untrained", "trained"])
    assert evaluations.to_pandas().set_index("system")["mean"]["bm25"] == 1.0
    places = Places.of(config.workdir)
    data, corpus = Dataset(places.open("dataset", "dataset")), Corpus(places.open("corpus", "corpus"))
    # All that was ranked, BM25's candidates for training among it: as deep as asked for.
    names = places.names("runs")
    assert len(names) == 4
    for name in names:
        rows = [row for part in Run(places.open(name, "run")).parts() for row in part.to_pylist()]
        assert rows
        assert not [row for row in rows if row["query_id"] == row["passage_id"]]
        assert {row["rank"] for row in rows} <= {1, 2, 3}
    # In a batch and among random passages neither.
    tables = data.training_tables("train")
    examples = load_examples(*tables, corpus)
    for at, query_id in enumerate(examples.query_ids):
        assert corpus.content_hashes(corpus.rows_of([query_id])).view("int64")[0] in examples.forbidden[at]
    mined = read_split(places.open("negatives/bm25-train", "negatives"), "negatives", "train").to_pylist()
    assert mined
    assert not [row for row in mined if row["query_id"] == row["passage_id"]]


def test_judges_and_the_models_that_measure_for_them(arguments: Path, tiny_checkpoint: str, tmp_path: Path) -> None:
    """In a sample of all passages each query would be nearest to itself, so that no pair was right."""
    config = config_of(arguments, tiny_checkpoint, tmp_path / "w", skip_own_id=True)
    judges = [{"name": "consistency", "top_k": 1, "num_random": 40}, {"name": "npc", "margins": "cross_fitted"}]
    settings = config.model_dump(mode="json")
    settings["judge"] |= {"model": "untrained", "judges": judges}
    settings["cross_fit"] |= {"num_epochs": 1, "num_random": 4, "num_draws": 2, "batch_size": 2}
    config = RunConfig.parse(settings)
    raydr.judge(config)
    places = Places.of(config.workdir)
    verdicts = places.open("verdicts/consistency-train", "verdicts")
    assert verdicts.info["keep"] >= 1
    sets = [
        Artifact.open(Folder(str(path)), "dataset") for path in Path(f"{config.workdir}/store/dataset").glob("[!.]*")
    ]
    of_folds = [Dataset(artifact) for artifact in sets if "folds" in artifact.manifest.identity.inputs]
    assert len(of_folds) == 2
    for data in of_folds:
        own = data.dropped("train")
        assert own["query_id"].to_pylist() == own["passage_id"].to_pylist()
        assert set(own["query_id"].to_pylist()) == set(data.queries("train")["query_id"].to_pylist())


def test_a_diagnosis(arguments: Path, tiny_checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = []

    def build(*parts: Any) -> DevSet:
        samples.append(build_dev_set(*parts))
        return samples[-1]

    monkeypatch.setattr("raydr.artefacts.evidence_samples.build_dev_set", build)
    raydr.diagnose(config_of(arguments, tiny_checkpoint, tmp_path / "w", skip_own_id=True))
    assert len(samples) >= 2
    for sample in samples:
        pairs = {(sample.query_ids[query], sample.passage_ids[passage]) for query, passage in sample.dropped_N2}
        assert pairs == {(query_id, query_id) for query_id in sample.query_ids}


def test_a_run_that_was_imported_before_is_imported_again(
    arguments: Path, tiny_checkpoint: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.trec"
    lines = [f"a{at} Q0 a{at + step} {step + 1} {2 - step}.5 x\n" for at in range(32, 40, 2) for step in (0, 1)]
    file.write_text("".join(lines))
    before = config_of(arguments, tiny_checkpoint, tmp_path / "w")
    raydr.import_run(before, str(file), system="lucene")
    config = config_of(arguments, tiny_checkpoint, tmp_path / "w", skip_own_id=True)
    with pytest.raises(ArtifactError, match=r"imported with another data\.skip_own_id: raydr import-run"):
        raydr.evaluate(config, system=["lucene"])
    raydr.prepare(config, again=True)
    [run] = raydr.import_run(config, str(file), system="lucene", again=True)
    assert (run.info["top_k"], run.info["num_queries"]) == (1, 4)
    assert raydr.evaluate(config, system=["lucene"]).to_pandas()["mean"].tolist() == [1.0]


def test_who_did_not_say_so_is_told(
    arguments: Path, tiny_checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raydr.prepare(config_of(arguments, tiny_checkpoint, tmp_path / "w"))
    output = " ".join(capsys.readouterr().err.split())
    assert "by id (4 of dev, 4 of test, 12 of train): each finds itself first. Set data.skip_own_id: true" in output


def test_what_is_left_of_a_run_is_ranked_anew() -> None:
    queries = pa.array(["a", "a", "a", "b", "b", "c"])
    passages = pa.array(["b", "a", "c", "b", "a", "c"])
    ranked = rank_rows(queries, passages, pa.array([3.0, 2.0, 1.0, 5.0, 4.0, 1.0]))
    left = [(row["query_id"], row["passage_id"], row["rank"]) for row in without_own_ids(ranked).to_pylist()]
    assert left == [("a", "b", 1), ("a", "c", 2), ("b", "a", 1)]
    assert len(without_own_ids(ranked, top_k=1)) == 2
