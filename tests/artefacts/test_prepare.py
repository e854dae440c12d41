"""Corpus and data set: whole data sets, bad input and resume."""

from __future__ import annotations

import gzip
import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_stage import make
from pydantic import ValidationError

from raydr.artefacts import dataset as stage
from raydr.artefacts.dataset import prepare_corpus, prepare_dataset
from raydr.artefacts.sources import QUARANTINE, find_sources, source_checksums
from raydr.data.config import DataConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.readers.beir import BeirReader
from raydr.data.tables import pairs_of
from raydr.distributed.pool import Pool, ThisProcess
from raydr.distributed.ray_pool import RayPool
from raydr.errors import ConfigError, DataError
from raydr.store.artifact import Artifact
from raydr.store.identity import Identity


def config_of(reader: dict[str, Any], **data: Any) -> DataConfig:
    return DataConfig.model_validate({"reader": reader, "part_rows": 50, **data})


def run(data: DataConfig, root: Path, pool: Pool | None = None) -> tuple[Artifact, Artifact]:
    """Both stages, whatever the settings were of what is there."""
    how: dict[str, Any] = {"reader": data.reader, "sources": find_sources(data.reader), "data": data, "pool": pool}
    corpus = make(root / "corpus", "corpus", prepare_corpus, identity=Identity(kind="corpus"), **how)
    identity = Identity(kind="dataset", inputs={"corpus": corpus.fingerprint})
    return corpus, make(root / "dataset", "dataset", prepare_dataset, corpus, identity=identity, seed=0, **how)


def beir(path: Path, **data: Any) -> DataConfig:
    return config_of({"name": "beir", "path": str(path)}, **data)


def quarantine(root: Path) -> list[str]:
    rows = []
    for kind in ("corpus", "dataset"):
        file = root / kind / QUARANTINE
        if file.exists():
            rows += [json.loads(line) for line in file.read_text().splitlines()]
    return sorted(f"{Path(row['file']).name}:{row['line']}: {row['reason']}" for row in rows)


@pytest.fixture
def copied(beir_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(beir_folder, tmp_path / "in"))


@pytest.mark.invariant
def test_both_pools_give_the_same_bits_and_every_row_is_found(
    beir_folder: Path, tmp_path: Path, ray_local: None
) -> None:
    first = run(beir(beir_folder), tmp_path / "a")
    second = run(beir(beir_folder), tmp_path / "b", RayPool())
    for artifact, other in zip(first, second, strict=True):
        assert artifact.fingerprint == other.fingerprint
        assert artifact.manifest.parts == other.manifest.parts
        artifact.verify()
    corpus, dataset = Corpus(first[0]), Dataset(first[1])
    assert [len(part) for part in corpus.parts()] == [50, 50, 20]
    assert corpus.rows_of([f"p{at:03d}" for at in range(120)]).tolist() == list(range(120))
    fourth = json.loads((beir_folder / "corpus.jsonl").read_text().splitlines()[3])
    assert corpus.texts(np.array([3])).titles == [fourth["title"]]
    assert dataset.splits == ["dev", "test", "train"]
    assert dataset.corpus_fingerprint == corpus.fingerprint
    assert dataset.qrels("test").column("passage_id").to_pylist() == [f"p{at:03d}" for at in range(50, 60)]
    assert dataset.queries("train").column("answers")[0].as_py()
    assert dataset.negatives("train").num_rows == 0
    assert not (tmp_path / "a" / "corpus" / "staging").exists()


def test_a_subset_has_the_judgments_of_its_queries(beir_folder: Path, tmp_path: Path) -> None:
    _, subset = run(beir(beir_folder, max_queries={"train": 7}), tmp_path)
    assert subset.info["splits"]["train"]["queries"] == subset.info["splits"]["train"]["judgments"] == 7
    assert subset.info["splits"]["dev"]["queries"] == 10


def test_checksums_follow_the_content_and_are_named_by_what_a_source_holds(copied: Path) -> None:
    reader = BeirReader(path=str(copied))

    def by_role() -> tuple[dict[str, str], dict[str, str]]:
        sources = find_sources(reader)
        checksums = source_checksums(ThisProcess(), reader, sources)
        return sources.by_role("corpus", checksums), sources.by_role("dataset", checksums)

    corpus, dataset = by_role()
    assert list(corpus) == ["corpus"]
    assert sorted(dataset) == ["qrels/dev", "qrels/test", "qrels/train", "queries"]
    with (copied / "qrels" / "test.tsv").open("a") as file:
        file.write("q00\tp000\t1\n")
    corpus_after, dataset_after = by_role()
    assert corpus_after == corpus
    # Which queries belong to a split is read from the judgments.
    assert {role for role in dataset if dataset_after[role] != dataset[role]} == {"qrels/test", "queries"}


def test_the_order_of_sources_which_decides_that_of_the_passages_is_in_the_key(tmp_path: Path) -> None:
    for split in ("dev", "train"):
        (tmp_path / f"{split}.csv").write_text(f"query,positive\nquestion of {split},answer of {split}\n")
    identities, corpora = [], []
    for splits in (["train", "dev"], ["dev", "train"]):
        files = {split: f"{split}.csv" for split in splits}
        data = config_of({"name": "pairs", "path": str(tmp_path), "files": files})
        sources = find_sources(data.reader)
        checksums = sources.by_role("corpus", source_checksums(ThisProcess(), data.reader, sources))
        how = {"reader": data.reader, "sources": sources, "data": data, "checksums": checksums}
        identities.append(prepare_corpus.node("corpus", **how).key)
        corpora.append(run(data, tmp_path / splits[0])[0].manifest.digest)
    assert (identities[0] == identities[1]) == (corpora[0] == corpora[1])


def test_files_of_a_web_server_are_not_fetched_to_know_their_size(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    methods = []

    class Server(SimpleHTTPRequestHandler):
        def log_request(self, *ignored: Any) -> None:
            methods.append(self.command)

    row = 'where,"<a href=""http://127.0.0.1/other.html"">here</a>"\n'
    (tmp_path / "train.csv").write_text("query,positive\n" + 600 * row)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}"
        sources = find_sources(config_of({"name": "pairs", "path": place, "files": {"train": "train.csv"}}).reader)
        methods.clear()
        size = (tmp_path / "train.csv").stat().st_size
        assert sources.num_rows() == size // 300
        assert f"{size} bytes" in sources.versions()[0]
        server.shutdown()
    assert set(methods) == {"HEAD"}


def test_every_bad_row_is_named_counted_and_left_out(copied: Path, tmp_path: Path) -> None:
    with (copied / "corpus.jsonl").open("ab") as file:
        file.write(b'{"_id": "b1"\n')
        file.write(b'{"_id": "b2", "text": "\xff"}\n')
        file.write(b'{"_id": "p003", "text": "copy"}\n')
        file.write(b'{"_id": "b3", "text": " "}\n')
    with (copied / "queries.jsonl").open("a") as file:
        file.write('{"_id": "q50", "text": "again"}\n{"_id": "q51", "text": ""}\n')
    with (copied / "qrels" / "test.tsv").open("a") as file:
        file.write("q50\tp050\nunknown\tp001\t1\nq50\tunknown\t1\nq50\tp050\t1\nq51\tp051\t3\n")
    bad_rows = [
        "corpus.jsonl:121: broken JSON: Expecting ',' delimiter: line 1 column 13 (char 12)",
        "corpus.jsonl:122: not valid UTF-8 at byte 23 of the line",
        f"corpus.jsonl:123: duplicate passage id 'p003', first at {copied}/corpus.jsonl:4 with another text",
        "corpus.jsonl:124: empty text of passage 'b3'",
        f"queries.jsonl:61: duplicate query id 'q50', first at {copied}/queries.jsonl:51 with another text or other "
        "answers",
        "queries.jsonl:62: empty text of query 'q51'",
        "test.tsv:12: expected 3 columns (query-id, corpus-id, score), found 2",
        "test.tsv:13: unknown query id 'unknown': no such query in split test",
        "test.tsv:14: unknown passage id 'unknown': no such passage in the corpus",
        f"test.tsv:16: judgment 3 of query 'q51' and passage 'p051' differs from 1 at {copied}/qrels/test.tsv:3",
    ]
    with pytest.raises(DataError, match=r"bad rows?, allowed are 0 .*\n.*corpus\.jsonl:121") as caught:
        run(beir(copied), tmp_path)
    assert str(tmp_path / "corpus" / QUARANTINE) in str(caught.value)
    assert set(quarantine(tmp_path)) <= set(bad_rows)
    with pytest.raises(DataError, match=r"^10 bad rows, allowed are 9 "):
        run(beir(copied, max_bad_rows=9), tmp_path)
    assert quarantine(tmp_path) == bad_rows
    corpus, dataset = run(beir(copied, max_bad_rows=10), tmp_path)
    assert quarantine(tmp_path) == bad_rows
    assert corpus.info == {"num_passages": 120, "num_merged": 0, "num_bad": 4}
    assert dataset.info["num_bad"] == 6
    assert dataset.info["splits"]["test"]["judgments"] == 10
    assert dataset.info["splits"]["test"]["merged"] == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", r"queries\.jsonl\.gz is empty"), (None, r"queries\.jsonl\.gz is truncated or damaged .* last line")],
)
def test_a_damaged_file_is_an_error_of_its_own(
    copied: Path, tmp_path: Path, content: bytes | None, message: str, ray_local: None
) -> None:
    whole = gzip.compress((copied / "queries.jsonl").read_bytes())
    (copied / "queries.jsonl").unlink()
    (copied / "queries.jsonl.gz").write_bytes(whole[: len(whole) // 2] if content is None else gzip.compress(content))
    with pytest.raises(DataError, match=message) as caught:
        run(beir(copied), tmp_path, RayPool())
    assert "Traceback" not in str(caught.value)
    (copied / "queries.jsonl.gz").write_bytes(whole)
    _, dataset = run(beir(copied), tmp_path)
    assert dataset.info["splits"]["train"]["queries"] == 40


def test_all_damaged_files_are_named_once(copied: Path, tmp_path: Path) -> None:
    for split in ("dev", "train"):
        (copied / "qrels" / f"{split}.tsv").write_text("")
    # The source of the queries reads the judgments as well.
    with pytest.raises(DataError, match=r"dev\.tsv is empty[^\n]*\n[^\n]*train\.tsv is empty[^\n]*$"):
        run(beir(copied), tmp_path)


@pytest.mark.invariant
def test_a_resume_reads_only_what_is_missing_and_gives_the_same_bits(
    beir_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(beir(beir_folder), tmp_path / "whole")

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stage, "_split_plans", stop)
        with pytest.raises(KeyboardInterrupt):
            run(beir(beir_folder), tmp_path / "cut")
    # As if the task that read the queries had been killed: parts without the record that ends them.
    (tmp_path / "cut" / "dataset" / "staging" / "source-0001-00000.json").unlink()
    capsys.readouterr()
    resumed = run(beir(beir_folder), tmp_path / "cut")
    assert "3 of 4 pieces were read before; reading the other 1" in capsys.readouterr().err
    assert [made.manifest.parts for made in resumed] == [made.manifest.parts for made in whole]


def test_pairs_with_repeated_passages_become_one_corpus(tmp_path: Path) -> None:
    records = [{"anchor": f"q{at}", "positive": f"p{at // 2}", "negative": f"p{at // 2 + 1}"} for at in range(8)]
    for split, chosen in (("train", records[:6]), ("dev", records[6:])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in chosen))
    reader = {
        "name": "pairs", "path": str(tmp_path), "layout": "sentence-transformers",
        "files": {"train": "train.jsonl", "dev": "dev.jsonl"},
    }  # fmt: skip
    corpus, dataset = run(config_of(reader), tmp_path / "out")
    texts = [text for part in Corpus(corpus).parts() for text in part.column("text").to_pylist()]
    assert texts == ["p0", "p1", "p2", "p3", "p4"]
    assert corpus.info == {"num_passages": 5, "num_merged": 11, "num_bad": 0}
    assert dataset.info["splits"]["train"]["negatives"] == 6
    negatives = Dataset(dataset).negatives("dev").to_pylist()
    assert Corpus(corpus).find([row["passage_id"] for row in negatives]).tolist() == [4, 4]
    assert (negatives[0]["miner"], negatives[0]["action"], negatives[0]["weight"]) == ("source:hard", "keep", 1.0)


def test_a_subset_of_an_unknown_split_is_refused(beir_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_queries names 'tain'; the data has the splits dev, test, train"):
        run(beir(beir_folder, max_queries={"tain": 3}), tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "question,answer\nhow,so\n", r"a\.csv:2: no 'query' \(it has question, answer\)"),
        ("a.jsonl", '["how", "so"]\n', r"a\.jsonl:1: expected a JSON object, found list"),
        ("a.json", '[{"query": "how", "positive": null}]', r"a\.json:1: 'positive' is null"),
    ],
)
def test_rows_that_say_it_otherwise_are_named_with_column_line_and_path(
    name: str, content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(content)
    data = config_of({"name": "pairs", "path": str(tmp_path), "files": {"train": name}})
    error = rf"(?s)not one usable passage: 1 bad row, the first:\n  {tmp_path}/{message}.*data\.reader: .*columns"
    with pytest.raises(DataError, match=error):
        run(data, tmp_path / "out")


def test_judgments_that_cannot_be_read_leave_no_query_in_a_split(copied: Path, tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (copied / "qrels" / f"{split}.tsv").write_text("q00,p000,1\n")
    error = r"(?s)not one usable query that belongs to a split: 3 bad rows.*expected 3 columns \(query-id"
    with pytest.raises(DataError, match=error):
        run(beir(copied), tmp_path / "out")


def test_sources_without_passages_are_refused(copied: Path, tmp_path: Path) -> None:
    (copied / "corpus.jsonl").write_text("\n")
    with pytest.raises(
        DataError, match=r"^the sources hold not one usable passage\. Check data\.reader: files and splits"
    ):
        run(beir(copied), tmp_path / "out")


@pytest.mark.parametrize("leaked_queries", ["keep", "leave_out"])
def test_training_queries_that_are_held_out_too_are_told_loudly_and_left_out_if_asked(
    leaked_queries: str, copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [json.loads(line) for line in (copied / "queries.jsonl").read_text().splitlines()]
    texts = {row["_id"]: row["text"] for row in rows}
    # q00 and q01 are of train, q45 of dev, q55 of test.
    for ours, theirs in {"q00": "q45", "q01": "q55"}.items():
        rows[int(ours[1:])]["text"] = f"{texts[theirs].upper()}?"
    (copied / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, made = run(beir(copied, leaked_queries=leaked_queries), tmp_path / "out")
    log = capsys.readouterr().err
    assert "2 queries of train asked in dev or test too, word for word or nearly" in log
    assert made.info["splits"]["train"]["leaked"] == 2
    left = Dataset(made).queries("train")["query_id"].to_pylist()
    leaves_out = leaked_queries == "leave_out"
    # What is mended by a setting is a line, what is not a warning with examples.
    assert ("warning: LEAKAGE" in log) != leaves_out
    assert ("leave_out to train without them" in log) != leaves_out
    assert (f"{rows[0]['text']!r} is held out as {texts['q45']!r}" in log) != leaves_out
    assert {"q00", "q01"} - set(left) == ({"q00", "q01"} if leaves_out else set())
    assert set(Dataset(made).qrels("train")["query_id"].to_pylist()) == set(left)
    assert Dataset(made).queries("test").num_rows == 10
    assert made.info["splits"]["test"]["leaked"] == 0


def test_negatives_of_ids_with_tabs_are_not_taken_for_copies(tmp_path: Path) -> None:
    rows = [
        {"qid": query_id, "query": f"query {at}", "positive": "p", "negative": f"negative {at}", "nid": negative_id}
        for at, (query_id, negative_id) in enumerate([("a", "b\tc"), ("a\tb", "c")])
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    columns = {"query_id": "qid", "negatives": ["negative"], "negative_ids": ["nid"]}
    reader = {"name": "pairs", "path": str(tmp_path), "files": {"train": "a.jsonl"}, "columns": columns}
    _, made = run(config_of(reader), tmp_path / "out")
    assert pairs_of(Dataset(made).negatives("train")) == [("a", "b\tc"), ("a\tb", "c")]


def test_pairs_without_splits_are_split_by_a_setting_and_a_missing_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"what is {at},it is the number {at}" for at in range(200)]
    (tmp_path / "a.csv").write_text("\n".join(["query,positive", *lines, lines[7]]))
    reader = {"name": "pairs", "path": str(tmp_path), "files": {"train": "a.csv"}}
    run(config_of(reader), tmp_path / "without")
    warning = (
        "the data have the splits train, and none called dev or test (data.dev_split, data.test_splits). data.hold_out"
    )
    assert warning in capsys.readouterr().err
    _, made = run(config_of(reader, hold_out={"dev": 0.1, "test": 0.2}), tmp_path / "with")
    assert "none called" not in capsys.readouterr().err
    data = Dataset(made)
    queries = {split: set(data.queries(split)["query_id"].to_pylist()) for split in data.splits}
    assert {split: len(ids) for split, ids in queries.items()} == {"dev": 27, "test": 33, "train": 140}
    for split, ids in queries.items():
        # The judgments go with their queries.
        assert set(data.qrels(split)["query_id"].to_pylist()) == ids
    # The order of the settings is in no key, so it decides nothing.
    reversed_shares = config_of(reader, hold_out={"test": 0.2, "dev": 0.1})
    _, again = run(reversed_shares, tmp_path / "reversed")
    assert again.manifest.digest == made.manifest.digest
    # A share that is set is no remedy.
    (tmp_path / "a.csv").write_text("\n".join(["query,positive", *lines[:2]]))
    run(config_of(reader, hold_out={"dev": 0.01, "test": 0.01}), tmp_path / "few")
    err = capsys.readouterr().err
    assert "data.hold_out took no query for dev or test, since train has too few" in err
    assert "none called" not in err
    with pytest.raises(DataError, match=r"already have a split 'train', which data\.hold_out would take from 'other'"):
        run(config_of(reader, train_split="other", hold_out={"train": 0.1}), tmp_path / "there")


def test_shares_that_leave_nothing_are_refused() -> None:
    reader = {"name": "beir", "path": "x"}
    for wrong, message in (
        ({"dev": 0.5, "test": 0.5}, "add up to 1, and leave nothing"),
        ({"train": 0.1}, "taken from"),
    ):
        with pytest.raises(ValidationError, match=message):
            config_of(reader, hold_out=wrong)
