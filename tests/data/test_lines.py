"""Text input: line numbers, bad lines, and files that are damaged as a whole."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from raydr.data.lines import read_csv, read_json_lines, read_lines, read_tsv
from raydr.data.rows import BadRows
from raydr.errors import DataError


def bad_of(bad_rows: BadRows) -> list[tuple[int, str]]:
    return [(row.line, row.reason) for row in bad_rows.kept]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_lines_have_their_numbers_plain_and_gzipped(tmp_path: Path, name: str) -> None:
    content = "\ufefffirst\r\n\nthïrd\nlast".encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert list(read_lines(str(path), BadRows(name))) == [(1, "first"), (2, ""), (3, "thïrd"), (4, "last")]


def test_lines_longer_than_a_chunk_stay_whole(tmp_path: Path) -> None:
    lines = [str(at) * 200_000 for at in range(5)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert [line for _, line in read_lines(str(tmp_path / "a.txt"), BadRows("a"))] == lines


def test_bad_utf8_is_a_bad_row_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\ntw\xffo\nthree\n")
    bad = BadRows("a.txt")
    assert list(read_lines(str(tmp_path / "a.txt"), bad)) == [(1, "one"), (3, "three")]
    assert bad_of(bad) == [(2, "not valid UTF-8 at byte 2 of the line")]


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_empty_file_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b"", mtime=0) if name.endswith(".gz") else b"")
    with pytest.raises(DataError, match=f"{name} is empty"):
        list(read_lines(str(tmp_path / name), BadRows(name)))


def test_truncated_gzip_names_the_last_good_line(tmp_path: Path) -> None:
    lines = [f"{at} {hash_like(at)}" for at in range(5000)]
    packed = gzip.compress("\n".join(lines).encode())
    path = tmp_path / "a.txt.gz"
    path.write_bytes(packed[: len(packed) // 2])
    read: list[int] = []
    with pytest.raises(DataError, match=r"a\.txt\.gz is truncated or damaged") as caught:
        read.extend(number for number, _ in read_lines(str(path), BadRows("a")))
    got = []
    try:
        for number, line in read_lines(str(path), BadRows("a")):
            assert line == lines[number - 1]
            got.append(number)
    except DataError:
        pass
    assert 1000 < got[-1] < 5000
    assert f"the last line that can be read is {got[-1]}." in str(caught.value)


def hash_like(at: int) -> str:
    return f"{at * 2654435761 % 2**32:x}{at * 40503 % 2**16:x}"


def test_json_lines_refuse_what_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"a": \n[1]\n{"a": 2}\n')
    bad = BadRows("a.jsonl")
    assert list(read_json_lines(str(tmp_path / "a.jsonl"), bad)) == [(1, {"a": 1}), (5, {"a": 2})]
    assert [line for line, _ in bad_of(bad)] == [3, 4]
    assert "broken JSON" in bad.kept[0].reason
    assert "expected a JSON object, found list" in bad.kept[1].reason


def test_tsv_checks_the_number_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('1\ta "quoted" word\n2\n3\tx\ty\n')
    bad = BadRows("a.tsv")
    assert list(read_tsv(str(tmp_path / "a.tsv"), ("id", "text"), bad)) == [(1, ["1", 'a "quoted" word'])]
    assert bad_of(bad) == [
        (2, "expected 2 columns (id, text), found 1"),
        (3, "expected 2 columns (id, text), found 3"),
    ]


def test_quoted_tsv_fields_may_span_lines(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('1\t"say ""hi""\nto all"\n\n2\t"a"b\n3\tplain\n4\n')
    bad = BadRows("a.tsv")
    rows = list(read_tsv(str(tmp_path / "a.tsv"), ("id", "text"), bad, quoted=True))
    assert rows == [(1, ["1", 'say "hi"\nto all']), (5, ["3", "plain"])]
    assert [line for line, _ in bad_of(bad)] == [4, 6]
    assert bad.kept[0].reason.startswith("broken quoting, found in line 4")


def test_csv_records_may_span_lines_and_keep_the_first_lines_number(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('q,p\n"two\nlines",x\nshort\nb,y\n')
    bad = BadRows("a.csv")
    rows = list(read_csv(str(tmp_path / "a.csv"), ",", bad))
    assert rows == [(2, {"q": "two\nlines", "p": "x"}), (5, {"q": "b", "p": "y"})]
    assert bad_of(bad) == [(4, "expected 2 columns (q, p), found 1")]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_quoted_texts_keep_their_line_ends_whatever_ends_a_row(tmp_path: Path, end: str) -> None:
    path = tmp_path / "form.csv"
    rows = ["query,answer", 'q,"a\r\nb\nc\r\n"', "r,s", 'last,"d\r\n"']
    path.write_bytes((end.join(rows)).encode())
    bad = BadRows(str(path))
    answers = ["a\r\nb\nc\r\n", "s", "d\r\n"]
    assert [row["answer"] for _, row in read_csv(str(path), ",", bad)] == answers
    with path.open(newline="") as file:
        assert [row["answer"] for row in csv.DictReader(file)] == answers
    assert not bad.count


def test_csv_says_where_a_quote_was_opened_that_never_ends(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('q,p\na,x\n"b,y\nc,z\n')
    bad = BadRows("a.csv")
    assert [line for line, _ in read_csv(str(tmp_path / "a.csv"), ",", bad)] == [2]
    # What the quote has swallowed is missing as well.
    assert [(row.line, row.content) for row in bad.kept] == [(3, '"b,y'), (4, "c,z")]


@pytest.mark.parametrize(
    ("header", "problem"), [("Frage für,Antwort".encode("latin-1"), "not valid UTF-8"), (b'"a";"b"', "broken quoting")]
)
def test_a_row_does_not_stand_in_for_a_header_that_cannot_be_read(tmp_path: Path, header: bytes, problem: str) -> None:
    (tmp_path / "a.csv").write_bytes(header + b"\nfirst,row\nsecond,row\n")
    with pytest.raises(DataError, match=rf"^a\.csv:1: {problem}.*: the header"):
        list(read_csv(str(tmp_path / "a.csv"), ",", BadRows("a.csv")))


def test_a_quoted_passage_may_be_long(tmp_path: Path) -> None:
    text = "long " * 40_000
    (tmp_path / "a.csv").write_text(f'q,p\na,"{text}"\n')
    bad = BadRows("a.csv")
    assert list(read_csv(str(tmp_path / "a.csv"), ",", bad)) == [(2, {"q": "a", "p": text})]
    assert not bad.count


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("query,positive\n".encode("utf-16"), r"is UTF-16 and not text in UTF-8: iconv -f UTF-16 -t UTF-8 .*a\.csv"),
        ("query,positive\n".encode("utf-16-be"), r"looks like UTF-16 without a byte order mark"),
        ("query,positive\n".encode("utf-32"), r"is UTF-32"),
        (
            gzip.compress(b"query,positive\n", mtime=0),
            r"is compressed by gzip and not text in UTF-8: name it .*a\.csv\.gz",
        ),
        (b"PK\x03\x04 rest", r"is a ZIP archive \(as Excel's files are\)"),
        (b"query;positive\nhow;so\n", r"a\.csv:1: the header 'query;positive' is one column between ',', and has ';'"),
        (b"query\tpositive\nhow\tso\n", r"has '\\t' in it"),
    ],
)
def test_what_is_taken_for_csv_in_utf8_by_mistake_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_csv(str(tmp_path / "a.csv"), ",", BadRows("a")))
    with pytest.raises(DataError, match=r"a\.csv\.gz is not compressed, as its name says: name it .*a\.csv\."):
        (tmp_path / "a.csv.gz").write_bytes(b"query,positive\n")
        list(read_csv(str(tmp_path / "a.csv.gz"), ",", BadRows("a")))


@pytest.mark.parametrize("text", ['[\n{"a": 1},\n{"a": 2}\n]\n', '\n[{"a": 1}, {"a": 2}]\n'])
def test_an_array_where_lines_are_expected_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    with pytest.raises(DataError, match=r"a\.jsonl:[12]: a JSON array begins; expected a JSON object on each line"):
        list(read_json_lines(str(tmp_path / "a.jsonl"), BadRows("a")))


def test_a_list_among_objects_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('["how", "so"]\n{"a": 1}\n[1,\n')
    bad = BadRows("a")
    assert list(read_json_lines(str(tmp_path / "a.jsonl"), bad)) == [(2, {"a": 1})]
    assert [line for line, _ in bad_of(bad)] == [1, 3]


@pytest.mark.parametrize("quoted", [False, True])
def test_a_first_line_of_column_names_is_no_row(tmp_path: Path, quoted: bool) -> None:
    path, bad_rows = tmp_path / "a.tsv", BadRows("a.tsv")
    path.write_text("id\ttext\n1\tone\nid\ttext\n")
    assert list(read_tsv(str(path), ("id", "text"), bad_rows, quoted)) == [(2, ["1", "one"]), (3, ["id", "text"])]
    assert bad_rows.count == 0
