"""Recognition of data: the first records of a file or a folder give the reader and its settings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import pyarrow.parquet as pq

from raydr.data.inputs import absolute, exists, place_of, shown_files
from raydr.data.judgment_columns import check_classes
from raydr.data.lines import read_lines
from raydr.data.pair_shape import DPR, LOOKED_AT, pair_shape
from raydr.data.readers.beir import qrels_files
from raydr.data.readers.pairs import FORMATS, format_of, records_of
from raydr.data.rows import BadRows
from raydr.errors import DataError
from raydr.store import Folder
from raydr.store.filesystems import open_file

#: Splits by the words that name them in files.
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("dev", "valid", "validation", "val"), "dev"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}
#: Descriptions of data sets, which are no data.
_DESCRIPTIONS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_KNOWN = (
    "Known are BEIR (corpus.jsonl or corpus/, queries, qrels/), DPR (passages TSV, biencoder JSON), MS MARCO "
    "(collection.tsv, queries.SPLIT.tsv), Zeshel (documents/, mentions/), data sets that save_to_disk wrote, and files "
    "of pairs named train, dev, test "
    f"({', '.join(f'.{end}' for end in FORMATS)}, also .gz)"
)


@dataclass(frozen=True)
class Recognised:
    """Recognised data: settings of the reader, and a description.

    Args:
        reader: settings of the reader.
        what: description of the format.
        splits: names of the splits in the data.
        num_queries: queries of the training split; None if the first records do not hold all of them.
        remark: remark for people; empty without a remark.
    """

    reader: dict[str, Any]
    what: str
    splits: Sequence[str]
    num_queries: int | None = None
    remark: str = ""


def recognise(path: str) -> Recognised:
    """Recognise the format of a file or a folder.

    Args:
        path: file or folder, local or an fsspec URL.

    Raises:
        DataError: the format is unknown; the message has the folder's files and the known formats.
    """
    place = absolute(path)
    if exists(place):
        folder, name = place_of(place)
        return _pairs(folder.url, {"train": [name]}, [])
    names = shown_files(Folder(place))
    if not names:
        raise DataError(f"there is no file or folder with files at {place}")
    plain = {name.removesuffix(".gz") for name in names}
    texts = {part: f"{part}.jsonl" if f"{part}.jsonl" in plain else part for part in ("corpus", "queries")}
    if set(texts.values()) <= plain | {name.partition("/")[0] for name in names if format_of(name) == "parquet"}:
        return _beir(place, names, texts)
    if _matching(plain, r"(documents)/.*") and (splits := _matching(plain, r"mentions/([^/]+)\.json")):
        what = f"Zeshel's files, mentions of {', '.join(splits)}"
        num_queries = _num_listed(place, names, "mentions/train.json", until="\n")
        return Recognised({"name": "zeshel", "path": place}, what, splits, num_queries)
    if plain & {"dataset_dict.json", "state.json"}:
        return _saved(place)
    if "collection.tsv" in plain and (splits := _matching(plain, r"queries\.([^/]+)\.tsv")):
        # Queries of a leader board, such as queries.eval.tsv, have no judgments.
        splits = [split for split in splits if f"qrels.{split}.tsv" in plain] or splits
        # Files triples.train.small.tsv and the like hold texts in place of ids.
        triples = {
            split: f"triples.{split}.tsv" for split in _matching(plain, r"triples\.([^/]+)\.tsv") if split in splits
        }
        reader = {"name": "msmarco", "path": place, "splits": splits} | ({"triples": triples} if triples else {})
        what = "MS MARCO's files" + (f", triples of ids for {', '.join(triples)}" if triples else "")
        return Recognised(reader, what, splits, _num_listed(place, names, "qrels.train.tsv"))
    return _folder(place, names)


def _beir(place: str, names: Sequence[str], texts: Mapping[str, str]) -> Recognised:
    """Recognise a data set in BEIR's format, from its authors or from the hub.

    Raises:
        DataError: the folder has no judgments.
    """
    for folder in ("qrels", "data", "default"):
        listed = qrels_files([name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")])
        if listed:
            break
    else:
        raise DataError(
            f"{place} holds passages and queries as BEIR does, and no judgments: put a file for each split into "
            f"{place}/qrels, such as test.tsv with query-id, corpus-id, score. On the hub BEIR's judgments are in "
            "data sets of their own, NAME-qrels"
        )
    places = {key: value for key, value in {**texts, "qrels": folder}.items() if value not in (f"{key}.jsonl", "qrels")}
    train = f"{folder}/{listed.get('train')}"
    if format_of(train) in ("jsonl", "parquet"):
        num_queries = _num_queries(_first_records(f"{place}/{train}"), "query-id")
    else:
        num_queries = _num_listed(place, names, train.removesuffix(".gz"))
    what = f"BEIR, judgments for {', '.join(listed)}"
    return Recognised({"name": "beir", "path": place, **places}, what, list(listed), num_queries)


def _folder(folder: str, names: Sequence[str]) -> Recognised:
    """Recognise files of pairs, or of DPR, in a folder."""
    tables = [name for name in names if format_of(name) in FORMATS and not name.endswith(_DESCRIPTIONS)]
    top = [name for name in tables if "/" not in name]
    judgments = next((name for name in names if re.search(r"(^|/)qrels[^/]*(/|$)", name)), "")
    if judgments and not any(map(split_in, top)):
        raise DataError(
            f"{folder} holds judgments ({judgments}), and passages or queries under names that raydr does not know. "
            "BEIR's are corpus.jsonl (_id, title, text), queries.jsonl (_id, text) and qrels/SPLIT.tsv; MS MARCO's are "
            "collection.tsv, queries.SPLIT.tsv and qrels.SPLIT.tsv. Write the files so"
        )
    inner = sorted({name.partition("/")[0] for name in tables})
    if all("/" in name for name in tables) and not all(map(split_in, inner)):
        # The hub has files in a folder, or in a folder for each configuration.
        if len(inner) == 1:
            return recognise(f"{folder}/{inner[0]}")
        raise DataError(
            f"{folder} holds several folders of data: {', '.join(inner[:10])}. Prepare one, such as {folder}/{inner[0]}"
        )
    tables = top or tables
    # Files that raydr clean wrote: dropped pairs stay out, and kept pairs do not count twice.
    tables = [name for name in tables if ".dropped." not in name]
    for kept, whole in ((name, name.replace(".kept.", ".")) for name in tables if ".kept." in name):
        if whole in tables:
            raise DataError(
                f"{folder} holds {whole} and the pairs of it that raydr clean kept, {kept}. Move {whole} away to use "
                "the kept pairs, or the kept pairs to use all"
            )
    passages = [name for name in tables if format_of(name) == "tsv" and _is_passages(f"{folder}/{name}")]
    tables = [name for name in tables if name not in passages]
    files: dict[str, list[str]] = {}
    for name in tables:
        if split := split_in(name) or ("train" if len(tables) == 1 else ""):
            files.setdefault(split, []).append(name)
    files |= _test_splits(files.pop("test", []))
    if "train" not in files:
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise DataError(f"{folder} holds {listed}, none of which has a known format and split. {_KNOWN}")
    recognised = _pairs(folder, files, passages)
    unread = ", ".join(sorted(set(tables) - set(chain.from_iterable(files.values()))))
    remark = f"{folder} also holds {unread}, without a split in the name, which is not read" if unread else ""
    return replace(recognised, remark=". ".join(filter(None, (recognised.remark, remark))))


def _test_splits(names: Sequence[str]) -> dict[str, list[str]]:
    """Return the splits of test files: files whose names differ by more than numbers are measured apart.

    >>> _test_splits(["test-0.jsonl", "test-1.jsonl", "test_human.jsonl"])
    {'test': ['test-0.jsonl', 'test-1.jsonl'], 'test_human': ['test_human.jsonl']}
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        words = [word for word in re.split(r"[^a-z]+", _stem(name).lower()) if word and word != "of"]
        groups.setdefault(tuple(words), []).append(name)
    return {
        "test" if len(groups) == 1 or words == ("test",) else _stem(files[0]): files for words, files in groups.items()
    }


def _stem(name: str) -> str:
    return re.sub(r"-\d+-of-\d+$", "", name.partition(".")[0])


def _pairs(folder: str, files: Mapping[str, list[str]], passages: Sequence[str]) -> Recognised:
    path = f"{folder}/{files['train'][0]}"
    records = _first_records(path)
    if set(records[0]) >= DPR:
        reader: dict[str, Any] = {"name": "dpr", "path": folder}
        if several := next((names for names in files.values() if len(names) > 1), []):
            raise DataError(
                f"{folder} has several files of DPR for one split: {', '.join(several)}. Join them "
                "(jq -s add a.json b.json), or write a config with reader: {name: dpr, biencoder: {SPLIT: FILE}}"
            )
        for split, [name] in files.items():
            kind = "retriever" if format_of(name) in ("csv", "tsv") else "biencoder"
            reader.setdefault(kind, {})[split] = name
        reader |= {"passages": passages[0]} if passages else {}
        return Recognised(reader, "DPR's biencoder files", list(files), _num_queries(records, "question"))
    others = {split: _first_records(f"{folder}/{names[0]}") for split, names in files.items() if split != "train"}
    reader = {"name": "pairs", "path": folder, "files": dict(files)}

    def everything() -> Iterator[Mapping[str, Any]]:
        for name in chain.from_iterable(files.values()):
            yield from (record for _, record in records_of(f"{folder}/{name}", BadRows(name)))

    recognised = _of_records(reader, list(files), {"train": records, **others}, path, everything)
    if format_of(path) == "parquet":
        with open_file(path) as file:
            check_classes(pq.read_schema(file), recognised.reader.get("columns", {}).get("label", ""), path)
    return recognised


def _first_records(path: str) -> list[Mapping[str, Any]]:
    if format_of(path) not in FORMATS:
        raise DataError(f"{path} is none of the formats {', '.join(f'.{end}' for end in FORMATS)}[.gz]. {_KNOWN}")
    bad_rows = BadRows(path)
    records = [record for _, record in islice(records_of(path, bad_rows), LOOKED_AT)]
    if not records:
        first = f": {bad_rows.kept[0]}" if bad_rows.kept else ""
        raise DataError(f"{path} holds no record{first}")
    return records


def _saved(folder: str) -> Recognised:
    """Recognise a data set that ``save_to_disk`` wrote."""
    from datasets import DatasetDict, load_from_disk

    loaded = load_from_disk(folder)
    tables = dict(loaded) if isinstance(loaded, DatasetDict) else {"train": loaded}
    splits: dict[str, str] = {}
    for name in sorted(tables, key=lambda name: name not in _SPLITS):
        # Of several splits with the same word the others keep their names.
        word = split_in(name)
        splits[name if not word or word in splits else word] = name
    heads = {
        split: list(islice(tables[name], LOOKED_AT))
        for split, name in sorted(splits.items(), key=lambda item: item[0] != "train")
    }
    reader = {"name": "huggingface", "path": folder, "splits": splits}
    recognised = _of_records(reader, list(splits), heads, folder, lambda: chain.from_iterable(tables.values()))
    label = recognised.reader.get("columns", {}).get("label", "")
    # Which number is the relevant class differs between data sets.
    names = check_classes(next(iter(tables.values())).features.arrow_schema, label, folder)
    if not names:
        return recognised
    shown = ", ".join(f"{at} {name!r}" for at, name in enumerate(names[:10]))
    return replace(recognised, what=f"{recognised.what} ({shown})")


def _of_records(
    reader: dict[str, Any],
    splits: list[str],
    heads: Mapping[str, Sequence[Mapping[str, Any]]],
    where: str,
    everything: Callable[[], Iterable[Mapping[str, Any]]],
) -> Recognised:
    """Complete a reader's settings by the shape of the first records, which may have a column of splits.

    Args:
        reader: settings so far.
        splits: all splits.
        heads: first records of each split; the first split decides.
        where: name of their source, for messages.
        everything: function that reads all records; called only for a column of splits, by which files are often
            sorted.

    Raises:
        DataError: some splits have judgments and others lack them, so that all pairs of these would be relevant.
    """
    records, *others = heads.values()
    shape = pair_shape(records, where, others=[record for head in others for record in head])
    columns = shape.settings.get("columns", {})
    column, label = columns.get("split"), columns.get("label")
    judged = [split for split, head in heads.items() if any(label in record for record in head)]
    unjudged = next((split for split, head in heads.items() if head and split not in judged), "")
    if label and unjudged:
        raise DataError(
            f"the pairs of split {judged[0]!r} have judgments in {label!r}, and those of {unjudged!r} have no such "
            "column. Add it to them (1 where each pair is relevant), or remove it from the others"
        )
    if column:
        splits = sorted({record[column] for record in everything() if isinstance(record.get(column), str)})
    return Recognised(reader | shape.settings, shape.what, splits, _num_queries(records, shape.query), shape.remark)


def _num_queries(records: Sequence[Mapping[str, Any]], column: str) -> int | None:
    return len({str(record.get(column)) for record in records}) if len(records) < LOOKED_AT else None


def _num_listed(folder: str, names: Iterable[str], file: str, until: str = r"\s") -> int | None:
    """Count the different first words of a file's lines, its queries; None without a file, or if it is too long."""
    path = next((f"{folder}/{name}" for name in names if name.removesuffix(".gz") == file), "")
    lines = [line for _, line in islice(read_lines(path, BadRows(path)), LOOKED_AT)] if path else []
    return len({re.split(until, line)[0] for line in lines} - {"query-id"}) if 0 < len(lines) < LOOKED_AT else None


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    return [match.group(1) for name in sorted(names) if (match := re.fullmatch(pattern, name))]


def _is_passages(path: str) -> bool:
    """Return whether a TSV has the header of DPR's passages."""
    return next((line for _, line in read_lines(path, BadRows(path))), "") == "id\ttext\ttitle"


def split_in(name: str) -> str:
    """Return raydr's name of the split in a file's name; empty if it has none.

    >>> split_in("nq-train.jsonl.gz"), split_in("validation"), split_in("pairs.csv")
    ('train', 'dev', '')
    """
    words = re.split(r"[^a-z]+", name.lower())
    return next((_SPLITS[word] for word in words if word in _SPLITS), "")
