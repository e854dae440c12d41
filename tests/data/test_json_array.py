"""JSON arrays: streamed, with record numbers, and what is said of broken ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from raydr.data.json_array import read_json_array
from raydr.data.readers.pairs import records_of
from raydr.data.rows import BadRows
from raydr.errors import DataError


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_items_come_with_their_record_numbers(tmp_path: Path, name: str, indent: int | None) -> None:
    items = [{"at": at, "score": at / 4, "text": 'é{[,]}"\\' + "x" * (600_000 if at == 3 else at)} for at in range(40)]
    content = "\ufeff " + json.dumps(items, indent=indent, ensure_ascii=False)
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    records = list(read_json_array(str(tmp_path / name), BadRows(name)))
    assert records == list(enumerate(items, start=1))
    assert {type(item["score"]) for _, item in records} == {float}


def test_items_are_read_as_the_file_is(tmp_path: Path) -> None:
    # Of a file that is cut, what stands before the cut is read: it is not parsed as a whole first.
    packed = gzip.compress(json.dumps([{"text": str(at * 2654435761)} for at in range(100_000)]).encode())
    (tmp_path / "a.json.gz").write_bytes(packed[: len(packed) // 2])
    got = []
    with pytest.raises(DataError, match=r"a\.json\.gz: the file is truncated or damaged") as caught:
        got.extend(record for record, _ in read_json_array(str(tmp_path / "a.json.gz"), BadRows("a")))
    records = []
    with pytest.raises(DataError):
        for record, _ in read_json_array(str(tmp_path / "a.json.gz"), BadRows("a")):
            records.append(record)
    assert 10_000 < records[-1] < 90_000
    assert f"the last good record is number {records[-1]}." in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ('{"a": 1}', r"a\.json: expected a JSON array, found '\{'\. Let its name end in \.jsonl"),
        (
            '[{"a": 1},\n {"a": },  {"a": 1}, {"a": 1}]',
            "record 2: broken JSON: parse error: unallowed token .*; the last good record is number 1",
        ),
        ('[{"a": 1},\n {"b": 2', "record 2: broken JSON: .*premature EOF; the last good record is number 1"),
        ('[{"a": 1}\n', "premature EOF; the last good record is number 1"),
        ('[{"a": "never closed', "record 1: broken JSON"),
        ('[{"a": 1}, {"a": "half \\ud83d\\udc"}]', "record 2: broken JSON"),
        ('[{"a": 1}] {"a": 2}', "trailing garbage; the last good record is number 1"),
    ],
)
def test_a_broken_array_names_the_last_good_record(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(DataError, match=message):
        list(read_json_array(str(tmp_path / "a.json"), BadRows("a")))


def test_items_that_are_no_objects_or_not_utf8_are_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'[{"a": 1},\n[2],\n{"a": ["\xff"]},\n{"a": 4}]')
    bad = BadRows("a")
    assert [(record, item["a"]) for record, item in read_json_array(str(tmp_path / "a.json"), bad)] == [(1, 1), (4, 4)]
    assert [(row.line, row.reason) for row in bad.kept] == [
        (2, "record 2: expected a JSON object, found list"),
        (3, "record 3: not valid UTF-8"),
    ]


@pytest.mark.parametrize("before", ["", 'a quote " and ', "x" * 300_000, "\\", "\\" * 300_001])
def test_brackets_in_texts_are_no_depth(before: str, tmp_path: Path) -> None:
    texts = [before, "{" * 3000, f"{before}{'{' * 3000}"]
    (tmp_path / "a.json").write_text(json.dumps([{"a": text} for text in texts]))
    assert [item["a"] for _, item in read_json_array(str(tmp_path / "a.json"), BadRows("a"))] == texts


@pytest.mark.parametrize("text", ["[" * 100_000, '[{"a":' * 100_000])
def test_an_array_that_is_nested_too_deeply_is_refused(text: str, tmp_path: Path) -> None:
    """Its parser would take tens of GB."""
    (tmp_path / "a.json").write_text('[{"a": 1}, ' + text)
    with pytest.raises(DataError, match=r"a\.json is nested too deeply, after record 0"):
        list(read_json_array(str(tmp_path / "a.json"), BadRows("a")))


def test_a_record_too_deep_for_python_is_a_bad_row(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'[{{"a": 1}}, {{"a": {"[" * 990}{"]" * 990}}}, {{"a": 3}}]')
    bad = BadRows("a")
    assert [record for record, _ in read_json_array(str(tmp_path / "a.json"), bad)] == [1, 3]
    assert [(row.line, row.reason) for row in bad.kept] == [(2, "record 2: nested too deeply")]


@pytest.mark.parametrize("number", ["9223372036854775808", "-18446744073709551617", "1" + "0" * 30, "1e400", "0.1"])
def test_a_number_is_the_same_in_an_array_in_lines_and_in_a_table(number: str, tmp_path: Path) -> None:
    """Also beyond 64 bits: ids of that length are common."""
    row = f'{{"id": {number}, "in": [{{"x": {number}}}]}}'
    (tmp_path / "a.json").write_text(f"[{row}]")
    (tmp_path / "a.jsonl").write_text(row)
    (tmp_path / "a.csv").write_text(f"id\n{number}\n")
    files = (str(tmp_path / f"a.{end}") for end in ("json", "jsonl", "csv"))
    array, lines, table = ([record for _, record in records_of(file, BadRows(file))] for file in files)
    assert array == lines
    assert [type(record["id"]) for record in array] == [type(record["id"]) for record in lines]
    assert table == [{"id": number}]
