"""``raydr clean``: write files of pairs without the mismatched pairs."""

from __future__ import annotations

import codecs
import csv
import filecmp
import gzip
import io
import json
import os
import shutil
import tempfile
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer

from raydr.config.files import apply_override, is_data
from raydr.config.first_config import first_config
from raydr.config.run import RunConfig
from raydr.console import counted, prose, say
from raydr.data.inputs import place_of
from raydr.data.lines import open_text
from raydr.data.pairs import pair_ids, without_flagged
from raydr.data.readers.pairs import PairsReader, format_of, records_of
from raydr.data.rows import BadRows
from raydr.errors import ConfigError
from raydr.pipeline.findings import find_mismatched
from raydr.pipeline.session import open_session
from raydr.store.filesystems import writing
from raydr.verbs.command import DryRun, Overrides, Yes, overrides, takes_config

if TYPE_CHECKING:
    from raydr.pipeline.findings import Noise

#: Infixes of the names of written files, for kept and dropped rows.
KEPT, DROPPED = "kept", "dropped"
#: Additional column of dropped rows.
P_WRONG = "p_wrong"
_Rows = list[dict[str, Any]]


@takes_config
def clean(config: RunConfig, split: str = "", dry_run: bool = False) -> Noise | None:
    """Detect mismatched pairs in files; write each file without them, and the dropped rows beside it.

    ``pairs.csv`` yields ``pairs.kept.csv``, in the format of the input, and ``pairs.dropped.csv`` with each dropped
    pair's probability of being wrong. The config's judge ``npc`` and section ``cross_fit`` apply.

    Returns:
        The detected noise; None in a dry run.

    Raises:
        ConfigError: the data are not local files of pairs.
    """
    reader, split = config.data.reader, split or config.data.train_split
    if not isinstance(reader, PairsReader) or "://" in reader.path:
        raise ConfigError(
            f"clean reads local files of pairs, but data.reader is {reader.name!r}: use raydr judge --judge npc, which "
            "makes a data set, and raydr export"
        )
    with open_session(config, dry_run=dry_run) as session:
        if dry_run:
            session.make(session.recipe.verdicts(session.config.judge.judge("npc"), split))
            return None
        noise = find_mismatched(session, split)
    prose(noise.summary().partition("\nNext:")[0])
    for source in reader.sources():
        if reader.columns.split or source.split == split:
            _clean_file(source.path, noise, reader, split)
    return noise


def clean_command(
    config: Annotated[str, typer.Argument(metavar="DATA|CONFIG")],
    split: str = "",
    quick: bool = False,
    set_: Overrides = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Detect mismatched pairs, and write the file without them: FILE.kept.csv, with FILE.dropped.csv beside it.

    Args:
        config: file of pairs, or YAML file of a run.
        split: split of a config whose files are cleaned; default: the training split.
        quick: measure pairs with the checkpoint, without short trainings that have not seen them.
    """
    # A set value of the same setting prevails.
    settings = [*(["cross_fit.num_epochs=0"] if quick else []), *overrides(set_, yes)]
    if not is_data(config):
        clean(RunConfig.load(config, settings), split, dry_run)
        return
    first = first_config(config)
    say(f"{config} is {first.what}")
    # No pair is held out, so that all are judged; `raydr prepare` of the same file uses another folder.
    data = {key: first.raw["data"][key] for key in ("reader", "train_split") if key in first.raw["data"]}
    raw = first.raw | {"variants": {}, "data": data | {"dev_split": "", "test_splits": []}}
    raw["workdir"] = f"{first.raw['workdir']}-clean"
    for override in settings:
        apply_override(raw, override)
    clean(RunConfig.parse(raw), split, dry_run)


def _clean_file(path: str, noise: Noise, reader: PairsReader, split: str) -> None:
    """Write the kept and dropped rows of a file; rows of other splits are kept."""
    wrong = dict(zip(noise.pair_ids, noise.table[P_WRONG], strict=True))
    flagged = {ids for ids, is_flagged in zip(noise.pair_ids, noise.table["flagged"], strict=True) if is_flagged}
    kept: _Rows = []
    dropped: _Rows = []
    columns: dict[str, None] = {}
    bad_rows, num_unjudged = BadRows(path), 0
    for _, record in records_of(path, bad_rows):
        columns |= dict.fromkeys(record)
        is_ours = not reader.columns.split or record.get(reader.columns.split) == split
        judged = wrong.keys() & (pair_ids(record, reader.layout, reader.columns) if is_ours else ())
        num_unjudged += not judged
        left = without_flagged(record, flagged & judged, reader.layout, reader.columns)
        if left is not None:
            kept.append(left)
        if left != record:
            p = max(wrong[ids] for ids in flagged & judged)
            dropped.append({**record, P_WRONG: round(float(p), 4)})
    dropped.sort(key=lambda row: -float(row[P_WRONG]))
    tables = {KEPT: (kept, [*columns]), DROPPED: (dropped, [*dict.fromkeys([*columns, P_WRONG])])}
    places = {word: _beside(path, word) for word in tables}
    with tempfile.TemporaryDirectory() as scratch:
        for word, (rows, header) in tables.items():
            begun = f"{scratch}/{word}"
            with writing(begun):
                _write(rows, header, begun, path)
        for word, place in places.items():
            if os.path.exists(place) and not filecmp.cmp(f"{scratch}/{word}", place, shallow=False):
                raise ConfigError(f"{place} exists already and has other content: move it away, and run this again")
        for word, place in places.items():
            folder, name = place_of(place)
            with folder.publish(name) as target:
                shutil.copyfile(f"{scratch}/{word}", target)
    for word, place in places.items():
        say(f"{word}: {counted(len(tables[word][0]), 'row')} -> {place}")
    if num_unjudged:
        why = "of another split (raydr clean FILE holds no pairs out), labelled not relevant, or unusable"
        say(f"kept without a verdict: {counted(num_unjudged, 'row')}, {why}")
    if bad_rows.count:
        say(f"in neither: {counted(bad_rows.count, 'row')} that cannot be read, the first is {bad_rows.kept[0]}")


def _beside(path: str, word: str) -> str:
    """
    >>> _beside("data/pairs.csv", "kept"), _beside("pairs.jsonl.gz", "dropped")
    ('data/pairs.kept.csv', 'pairs.dropped.jsonl.gz')
    """
    packed = ".gz" if path.endswith(".gz") else ""
    stem, _, end = path.removesuffix(".gz").rpartition(".")
    return f"{stem}.{word}.{end}{packed}"


def _write(rows: _Rows, columns: list[str], path: str, like: str) -> None:
    """Write rows in the format of the file ``like``, with its byte order mark and line ends; tables have a header."""
    kind = format_of(like)
    if kind == "parquet":
        schema = pq.read_schema(like)
        further = [] if set(columns) <= set(schema.names) else [pa.field(P_WRONG, pa.float64())]
        schema = pa.schema([*schema, *further], schema.metadata)
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
        return
    with open_text(like) as file:
        first = file.readline()
    encoding = "utf-8-sig" if first.startswith(codecs.BOM_UTF8) else "utf-8"
    line_end = "\r\n" if first.endswith(b"\r\n") else "\n"
    with ExitStack() as stack:
        content: Any = stack.enter_context(open(path, "wb"))
        if like.endswith(".gz"):
            # Equal rows give equal bytes.
            content = stack.enter_context(gzip.GzipFile("", "wb", fileobj=content, mtime=0))
        # Half surrogates, which only JSON holds, are escaped again.
        text = stack.enter_context(io.TextIOWrapper(content, encoding, "backslashreplace", newline=""))
        if kind in ("csv", "tsv"):
            delimiter = "," if kind == "csv" else "\t"
            table = csv.DictWriter(text, columns, delimiter=delimiter, lineterminator=line_end)
            table.writeheader()
            table.writerows(rows)
        elif kind == "json":
            text.write((json.dumps(rows, ensure_ascii=False, indent=1) + "\n").replace("\n", line_end))
        else:
            text.writelines(json.dumps(row, ensure_ascii=False) + line_end for row in rows)
