"""Runs: rank order, TREC files and back, and what is wrong with a run file."""

from __future__ import annotations

import gzip
from pathlib import Path

import ir_measures
import numpy as np
import pyarrow as pa
import pytest
from made_evaluation import make_run
from made_stage import make

from raydr.artefacts import run as runs
from raydr.artefacts.run import Run, by_query, export_trec, import_trec_run, rank_rows, trec_checksum
from raydr.errors import DataError, FingerprintError
from raydr.evaluation.metrics import parse_measures, score_queries
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.store.identity import Identity


def imported_from(path: Path, output: Path) -> Artifact:
    identity = Identity(kind="run", inputs={"file": trec_checksum(str(path))})
    return make(output, "run", import_trec_run, identity=identity, path=str(path))


def random_rows(seed: int = 0, num_queries: int = 10) -> list[tuple[str, str, float]]:
    rng = np.random.default_rng(seed)
    return [
        (f"q{query}", f"p{passage}", float(rng.choice([0.1, 0.25, 1 / 3, -2.0, 1e-7, 12345.678])))
        for query in range(num_queries)
        for passage in rng.choice(40, size=12, replace=False)
    ]


def test_order_is_score_then_id_both_descending_by_bytes() -> None:
    table = rank_rows(
        pa.array(["b", "a", "b", "b", "b"]),
        pa.array(["d9", "x", "d10", "é", "d1"]),
        pa.array([1.0, 5.0, 1.0, 1.0, 2.0]),
    )
    assert table["query_id"].to_pylist() == ["b", "b", "b", "b", "a"]
    assert table["passage_id"].to_pylist() == ["d1", "é", "d9", "d10", "x"]
    assert table["rank"].to_pylist() == [1, 2, 3, 4, 1]


@pytest.mark.parametrize(("scores", "ids"), [([1.0, float("nan")], ["a", "b"]), ([1.0, 2.0], ["a", "a"])])
def test_bad_rows_name_query_and_passage(scores: list[float], ids: list[str]) -> None:
    with pytest.raises(DataError, match=r"query 'q'.*passage '[ab]'"):
        rank_rows(pa.array(["q", "q"]), pa.array(ids), pa.array(scores))


def test_no_rows_at_all() -> None:
    empty = rank_rows(pa.array([], pa.string()), pa.array([], pa.string()), pa.array([], pa.float32()))
    assert empty.num_rows == 0
    assert by_query(empty) == {}


@pytest.mark.invariant
def test_export_and_import_give_the_same_run(tmp_path: Path) -> None:
    run = Run.open(make_run(tmp_path / "run", random_rows()))
    assert len(run.part_names) == 4
    assert export_trec(run, Folder(str(tmp_path)), "a.run", tag="trial") == 120
    imported = Run(imported_from(tmp_path / "a.run", tmp_path / "imported"))
    assert pa.concat_tables(run.parts()) == pa.concat_tables(imported.parts())
    assert imported.artifact.info["num_queries"] == 10


@pytest.mark.invariant
def test_trec_eval_gives_the_exported_file_the_same_values(tmp_path: Path) -> None:
    run = Run.open(make_run(tmp_path / "run", random_rows(3)))
    export_trec(run, Folder(str(tmp_path)), "a.run")
    qrels = {f"q{query}": {f"p{(7 * query + at) % 40}": 1 for at in range(6)} for query in range(10)}
    names = ["R@5", "RR@10", "nDCG@10", "AP"]
    judged = [ir_measures.Qrel(q, p, grade) for q, ids in qrels.items() for p, grade in ids.items()]
    theirs = ir_measures.calc_aggregate(
        [ir_measures.parse_measure(name) for name in names if name != "RR@10"],
        judged,
        list(ir_measures.read_trec_run(str(tmp_path / "a.run"))),
    )
    ranking = {q: rows["passage_id"].to_pylist() for part in run.parts() for q, rows in by_query(part).items()}
    ours = score_queries(parse_measures(names), qrels, ranking)
    assert np.mean(list(ours["recall@5"].values())) == pytest.approx(theirs[ir_measures.parse_measure("R@5")])
    assert np.mean(list(ours["AP"].values())) == pytest.approx(theirs[ir_measures.parse_measure("AP")])
    assert np.mean(list(ours["nDCG@10"].values())) == pytest.approx(theirs[ir_measures.parse_measure("nDCG@10")])


def test_import_in_several_parts_cuts_between_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "_IMPORT_ROWS", 20)
    run = Run.open(make_run(tmp_path / "run", random_rows()))
    export_trec(run, Folder(str(tmp_path)), "a.run")
    imported = Run(imported_from(tmp_path / "a.run", tmp_path / "imported"))
    assert [part.num_rows for part in imported.parts()] == [24] * 5
    assert imported.artifact.info["num_queries"] == 10
    assert pa.concat_tables(run.parts()) == pa.concat_tables(imported.parts())


def test_import_ignores_the_rank_column_as_trec_eval_does_and_reads_gz(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.run.gz", "wt") as file:
        file.write("q1 Q0 a 1 0.5 t\nq1 Q0 b 2 0.75 t\n\nq2\tQ0\tc\t1\t3\tt\n")
    imported = Run(imported_from(tmp_path / "a.run.gz", tmp_path / "imported"))
    table = imported.part(imported.part_names[0])
    assert table["passage_id"].to_pylist() == ["b", "a", "c"]
    assert table["rank"].to_pylist() == [1, 2, 1]


def test_an_import_of_distances_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sign in (1, -1):
        lines = [f"q{at // 3} Q0 p{at} {at % 3 + 1} {sign * at} t\n" for at in range(9)]
        (tmp_path / f"{sign}.run").write_text("".join(lines))
        imported_from(tmp_path / f"{sign}.run", tmp_path / f"imported {sign}")
        shown = " ".join("".join(capsys.readouterr()).split())
        assert ("in 3 of 3 queries the last rank has no lower score than the first" in shown) is (sign == 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"q1 Q0 a 1 0.5 t\nq1 Q0 b 2 0.4\n", r"a\.run:2: found 5 columns, expected 6"),
        (b"q1 Q0 a 1 high t\n", r"a\.run:1: the score is 'high'"),
        (b"q1 Q0 a 1 inf t\n", r"a\.run:1: the score is 'inf'"),
        (b"q1 Q0 a 1 1_0 t\n", r"a\.run:1: the score is '1_0'"),
        (b"q1 Q0 a 1 True t\n", r"a\.run:1: the score is 'True'"),
        (b"q1 Q0 a 1 1 t\nq2 Q0 a 1 1 t\nq1 Q0 b 2 1 t\n", r"a\.run:3: the lines of query 'q1' are not consecutive"),
        (b"q1 Q0 a 1 2 t\nq1 Q0 a 2 1 t\n", r"a\.run.*passage 'a' occurs twice"),
        (b"q1 Q0 \xff 1 2 t\n", r"a\.run:1: not valid UTF-8"),
        (b"\n", r"a\.run is empty"),
    ],
)
def test_malformed_run_names_file_and_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.run").write_bytes(content)
    with pytest.raises(DataError, match=message):
        imported_from(tmp_path / "a.run", tmp_path / "imported")
    assert not (tmp_path / "imported" / "manifest.json").exists()


def test_truncated_gz_and_missing_file(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"q1 Q0 p%d 1 %d t\n" % (at, -at) for at in range(5000)))
    (tmp_path / "a.run.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"a\.run\.gz: the compressed file breaks off after line \d+"):
        imported_from(tmp_path / "a.run.gz", tmp_path / "imported")
    with pytest.raises(DataError, match="does not exist; expected lines"):
        imported_from(tmp_path / "b.run", tmp_path / "imported2")


def test_changed_file_is_not_mixed_up_with_the_one_imported_before(tmp_path: Path) -> None:
    (tmp_path / "a.run").write_text("q1 Q0 a 1 2 t\n")
    first = imported_from(tmp_path / "a.run", tmp_path / "imported")
    again = imported_from(tmp_path / "a.run", tmp_path / "imported")
    assert again.manifest.created == first.manifest.created
    (tmp_path / "a.run").write_text("q1 Q0 b 1 2 t\n")
    with pytest.raises(FingerprintError, match=r"inputs\.file"):
        imported_from(tmp_path / "a.run", tmp_path / "imported")


def test_ids_keep_the_spaces_of_unicode_in_a_trec_file(tmp_path: Path) -> None:
    ids = ["a\u00a0b", "\u2028c", "d\u0085", "e\u3000f"]
    run = Run.open(
        make_run(tmp_path / "run", [("q\u00a01", passage_id, -float(at)) for at, passage_id in enumerate(ids)])
    )
    export_trec(run, Folder(str(tmp_path)), "a.run")
    [again] = Run(imported_from(tmp_path / "a.run", tmp_path / "imported")).parts()
    assert again["passage_id"].to_pylist() == ids
    assert set(again["query_id"].to_pylist()) == {"q\u00a01"}


def test_id_with_white_space_cannot_go_into_a_trec_file(tmp_path: Path) -> None:
    run = Run.open(make_run(tmp_path / "run", [("q", "two words", 1.0)]))
    with pytest.raises(DataError, match="'two words'"):
        export_trec(run, Folder(str(tmp_path)), "a.run")
    assert not (tmp_path / "a.run").exists()


def test_an_imported_run_may_begin_with_a_byte_order_mark_and_knows_its_depth(tmp_path: Path) -> None:
    (tmp_path / "a.run").write_bytes(b"\xef\xbb\xbfq1 Q0 a 1 2.5 x\nq1 Q0 b 2 1.5 x\nq2 Q0 c 1 0.5 x\n")
    run = imported_from(tmp_path / "a.run", tmp_path / "imported")
    table = Run(run).part(run.parts()[0])
    assert table["query_id"].to_pylist() == ["q1", "q1", "q2"]
    assert run.info["top_k"] == 2


def test_a_file_that_is_not_gzip_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.run.gz").write_text("q1 Q0 a 1 2.5 x\n")
    with pytest.raises(DataError, match="the compressed file breaks off after line 0"):
        imported_from(tmp_path / "a.run.gz", tmp_path / "imported")
