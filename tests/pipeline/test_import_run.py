"""A run of another program, from its file to candidates and an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_runs import small_run

import raydr
from raydr.config.run import RunConfig
from raydr.data.dataset import Dataset, read_split
from raydr.errors import ArtifactError, ConfigError, DataError


@pytest.fixture
def config(beir_folder: Path, tiny_checkpoint: str, tmp_path: Path) -> RunConfig:
    settings: dict[str, Any] = {"evaluate": {"measures": ["RR@10"], "answer_cutoffs": [], "permutations": 100}}
    return RunConfig.parse(small_run(beir_folder, tiny_checkpoint, tmp_path / "w", **settings))


def test_another_programs_run_is_mined_and_evaluated(config: RunConfig, tmp_path: Path) -> None:
    _, dataset = raydr.prepare(config)
    for split in ("train", "test"):
        qrels = Dataset(dataset).qrels(split).to_pylist()
        lines = [f"{row['query_id']} Q0 {row['passage_id']} 1 2.5 lucene\n" for row in qrels]
        other = qrels[0]["passage_id"]
        lines += [f"{row['query_id']} Q0 {other} 2 1.5 lucene\n" for row in qrels if row["passage_id"] != other]
        lines.sort()
        (tmp_path / f"{split}.trec").write_text("".join(lines))
        raydr.import_run(config, str(tmp_path / f"{split}.trec"), system="lucene", split=split)
    [mined] = raydr.mine(config, miner="lucene")
    rows = read_split(mined, "negatives", "train").to_pylist()
    assert {row["miner"] for row in rows} == {"lucene"}
    assert {(row["rank"], row["score"], row["positive_score"]) for row in rows} == {(2, 1.5, 2.5)}
    [made] = raydr.evaluate(config, system=["lucene"])
    assert made.folder.read_json("summary.json")["measures"][0]["mean"] == 1.0


def test_a_file_that_was_changed_is_another_run(config: RunConfig, tmp_path: Path) -> None:
    file = tmp_path / "a.trec"
    file.write_text("q50 Q0 p050 1 2.5 x\n")
    [before] = raydr.import_run(config, str(file), system="lucene", split="test")
    file.write_text("q50 Q0 p051 1 2.5 x\n")
    [after] = raydr.import_run(config, str(file), system="lucene", split="test", again=True)
    assert before.fingerprint != after.fingerprint


def test_passages_of_another_corpus_are_noticed(config: RunConfig, tmp_path: Path, capsys: Any) -> None:
    _, dataset = raydr.prepare(config)
    row = Dataset(dataset).qrels("test").to_pylist()[0]
    lines = [f"{row['query_id']} Q0 {row['passage_id']} 1 2.5 x\n", f"{row['query_id']} Q0 lucene-7 2 1.5 x\n"]
    (tmp_path / "a.trec").write_text("".join(lines))
    raydr.import_run(config, str(tmp_path / "a.trec"), system="lucene", split="test")
    output = " ".join(capsys.readouterr().err.split())
    assert "1 of the first 2 passages of the run are not in the corpus" in output
    assert "first: 'lucene-7'" in output
    assert "queries of the run" not in output


def test_a_passage_of_another_corpus_counts_as_wrong(config: RunConfig, tmp_path: Path) -> None:
    config = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"answer_cutoffs": [1, 5]})})
    _, dataset = raydr.prepare(config)
    pairs = [(row["query_id"], row["passage_id"]) for row in Dataset(dataset).qrels("test").to_pylist()]
    lines = [f"{query_id} Q0 x 1 2 t\n{query_id} Q0 {passage_id} 2 1 t\n" for query_id, passage_id in pairs]
    (tmp_path / "a.trec").write_text("".join(lines))
    raydr.import_run(config, str(tmp_path / "a.trec"), system="lucene")
    [made] = raydr.evaluate(config, system=["lucene"])
    means = {row["measure"]: row["mean"] for row in made.folder.read_json("summary.json")["measures"]}
    assert means == {"RR@10": 0.5, "accuracy@1 (answer)": 0.0, "accuracy@5 (answer)": 1.0}
    assert '"x": ["", ""]' in Path(raydr.report(config)).read_text()


def test_queries_of_another_split_are_noticed(config: RunConfig, tmp_path: Path, capsys: Any) -> None:
    _, dataset = raydr.prepare(config)
    row = Dataset(dataset).qrels("test").to_pylist()[0]
    lines = [f"{query_id} Q0 {row['passage_id']} 1 2.5 x\n" for query_id in (row["query_id"], "stranger")]
    (tmp_path / "a.trec").write_text("".join(lines))
    raydr.import_run(config, str(tmp_path / "a.trec"), system="lucene", split="test")
    output = " ".join(capsys.readouterr().err.split())
    assert "1 of the first 2 queries of the run are not in split 'test' (first: 'stranger') and are left out" in output


def test_a_run_over_another_split_is_named_and_its_import_advised(config: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "a.trec").write_text("q50 Q0 p050 1 2.5 x\n")
    raydr.import_run(config, str(tmp_path / "a.trec"), system="lucene", split="test")
    with pytest.raises(ArtifactError, match="runs over test, and none over split 'train': raydr import-run"):
        raydr.mine(config, miner="lucene")
    with pytest.raises(ArtifactError, match="runs over test, and none over split 'dev': raydr import-run"):
        raydr.evaluate(config, system=["lucene"], split="dev")


def test_names_and_files_that_cannot_be_are_refused(config: RunConfig, tmp_path: Path) -> None:
    for name in ("bm25", "trained", "a/b", ""):
        with pytest.raises(ConfigError, match="is no valid name of an imported run"):
            raydr.import_run(config, "any.trec", system=name)
    # Evaluations would take it for the cross-encoder.
    for name in ("ranker", "ranker-bce"):
        with pytest.raises(ConfigError, match=f"the run has a model called '{name}'"):
            raydr.import_run(config, "any.trec", system=name)
    with pytest.raises(DataError, match="does not exist; expected lines"):
        raydr.import_run(config, str(tmp_path / "none.trec"), system="lucene")
