"""The Zeshel reader."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from data.reading import read_all
from raydr.data.readers.zeshel import ZeshelReader
from raydr.data.rows import MentionConfig
from raydr.errors import DataError

LONG = " ".join(f"w{at}" for at in range(3000))


def mention(number: int, **changes: Any) -> dict[str, Any]:
    """The mention "w1500 w1501" of the long page."""
    return {
        "mention_id": f"m{number}", "context_document_id": "long", "corpus": "lego", "start_index": 1500,
        "end_index": 1501, "text": "w1500 w1501", "label_document_id": "brick", "category": "LOW_OVERLAP",
    } | changes  # fmt: skip


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    brick = {"document_id": "brick", "title": "Brick", "text": "Brick a toy"}
    write(tmp_path / "documents" / "lego.json.gz", [brick])
    write(tmp_path / "documents" / "yugioh.json", [{"document_id": "card", "title": "Card", "text": "Card a game"}])
    long, short = ({"document_id": name, "title": "", "text": text} for name, text in (("long", LONG), ("end", "a  b")))
    write(tmp_path / "documents" / "contexts_all.json", [long, short])
    write(tmp_path / "mentions" / "train.json", [mention(1)])
    in_other_world = {"corpus": "yugioh", "context_document_id": "brick", "start_index": 0, "end_index": 0}
    write(tmp_path / "mentions" / "val.json.gz", [mention(2, **in_other_world, text="Brick", label_document_id="card")])
    return tmp_path


def queries(reader: ZeshelReader) -> dict[str, dict[str, Any]]:
    return {row.values["query_id"]: row.values for row in read_all(reader)[0] if row.table == "queries"}


def test_pages_are_passages_of_their_world_and_contexts_are_none(folder: Path) -> None:
    rows, bad = read_all(ZeshelReader(path=str(folder)))
    passages = [row.values for row in rows if row.table == "passages"]
    assert passages == [
        {"passage_id": "brick", "title": "Brick", "text": "Brick a toy", "partition": "lego"},
        {"passage_id": "card", "title": "Card", "text": "Card a game", "partition": "yugioh"},
    ]
    judged = [(row.split, row.values["query_id"], row.values["passage_id"]) for row in rows if row.table == "qrels"]
    assert judged == [("train", "m1", "brick"), ("val", "m2", "card")]
    assert not bad


def test_a_mention_is_a_query_in_its_context_wherever_that_lies(folder: Path) -> None:
    by_id = queries(ZeshelReader(path=str(folder), mention=MentionConfig(window=6, markers=("<m>", "</m>"))))
    assert by_id["m1"]["text"] == "w1498 w1499 <m> w1500 w1501 </m> w1502 w1503"
    # Its context is an entity of another world than its own.
    assert (by_id["m2"]["text"], by_id["m2"]["partition"]) == ("<m> Brick </m> a toy", "yugioh")
    assert by_id["m1"]["category"] == "LOW_OVERLAP"


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 3), (2999, 2999), (2000, 2130), (95, 96), (2950, 2951)])
def test_a_window_has_so_many_words_around_the_mention_as_there_are(folder: Path, start: int, end: int) -> None:
    words = LONG.split()
    text = " ".join(words[start : end + 1])
    write(folder / "mentions" / "train.json", [mention(1, start_index=start, end_index=end, text=text)])
    shown = queries(ZeshelReader(path=str(folder)))["m1"]["text"].split()
    at, stop = shown.index("["), shown.index("]")
    assert shown[at + 1 : stop] == words[start : end + 1]
    before, after = shown[:at], shown[stop + 1 :]
    assert len(shown) - 2 == max(96, end + 1 - start)
    assert before == words[start - len(before) : start]
    assert after == words[end + 1 : end + 1 + len(after)]
    # As even as the page allows.
    assert abs(len(before) - len(after)) <= 1 or min(start, len(words) - end - 1) == min(len(before), len(after))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"end_index": 1502}, "words 1500 to 1502 of document 'long', which has 3000, are 'w1500 w1501 w1502', not"),
        ({"start_index": 3000, "end_index": 3001}, "are '', not 'w1500 w1501'"),
        ({"start_index": -1}, "'start_index' must be the number of a word, from 0; found -1"),
        ({"context_document_id": "gone"}, "no file of documents has the document 'gone'"),
        ({"corpus": "contexts_all"}, "there is no world 'contexts_all' among lego, yugioh"),
    ],
)
def test_a_mention_that_does_not_fit_is_a_bad_row(folder: Path, changes: dict[str, Any], message: str) -> None:
    write(folder / "mentions" / "train.json", [mention(1, **changes), mention(3)])
    rows, [bad] = read_all(ZeshelReader(path=str(folder)))
    assert bad.startswith("train.json:1: ")
    assert message in bad
    assert [row.values["query_id"] for row in rows if row.table == "queries"] == ["m3", "m2"]


def test_a_world_in_two_splits_is_an_error_but_for_those_that_share_theirs(folder: Path) -> None:
    write(folder / "mentions" / "heldout_train_seen.json", [mention(5)])
    assert "m5" in queries(ZeshelReader(path=str(folder)))
    write(folder / "mentions" / "test.json", [mention(4)])
    with pytest.raises(DataError, match=r"test\.json:1: world 'lego' is one of split 'test' and of 'train'"):
        read_all(ZeshelReader(path=str(folder)))
    assert "m4" not in queries(ZeshelReader(path=str(folder), splits=["train", "val"]))


def test_some_worlds_are_read_with_their_mentions(folder: Path) -> None:
    rows, bad = read_all(ZeshelReader(path=str(folder), worlds=["yugioh"]))
    assert not bad
    passages, asked = ([row.values for row in rows if row.table == table] for table in ("passages", "queries"))
    assert ([row["passage_id"] for row in passages], [row["query_id"] for row in asked]) == (["card"], ["m2"])
    with pytest.raises(DataError, match=r"data\.reader\.worlds names 'contexts_all'; .*documents has lego, yugioh"):
        ZeshelReader(path=str(folder), worlds=["contexts_all"]).sources()


def test_folders_without_files_are_named(folder: Path) -> None:
    with pytest.raises(DataError, match=r"pages/WORLD\.json .* with the pages, one file a world"):
        ZeshelReader(path=str(folder), documents="pages").sources()
    with pytest.raises(DataError, match=r"mentions/dev\.json .* with the mentions of dev"):
        ZeshelReader(path=str(folder), splits=["dev"]).sources()


def test_how_mentions_become_queries_is_in_the_key_of_mentions_alone(folder: Path) -> None:
    reader, other = (ZeshelReader(path=str(folder), mention=MentionConfig(window=window)) for window in (96, 32))
    for source in reader.sources():
        assert (reader.checksum(source) == other.checksum(source)) == source.has_only_passages
