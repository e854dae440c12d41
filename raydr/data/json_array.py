"""A JSON array read item by item, so that a file of many GB needs the memory of its largest item."""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from typing import Any

import ijson

from raydr.data.lines import open_chunks
from raydr.data.quarantine import BadRows
from raydr.errors import DataError

_UNDECODED = re.compile("[\udc80-\udcff]")
#: Stands for a byte that is not UTF-8: a code point that Unicode keeps out of texts.
_NOT_UTF8 = "\ufdd0"


def read_json_array(path: str, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield items of the array with their record numbers, from 1.

    An item that is not an object or holds bytes that are not UTF-8 is a bad row; its line is its record number.

    Raises:
        DataError: the file is empty, is not a JSON array, is broken or ends too early; names the last good record.
    """
    record, is_damaged = 0, False

    def valid_chunks() -> Iterator[bytes]:
        nonlocal is_damaged
        for text in _texts(path):
            try:
                yield text.encode()
            except UnicodeEncodeError:
                is_damaged = True
                yield _UNDECODED.sub(_NOT_UTF8, text).encode()

    try:
        items = ijson.items(ijson.from_iter(valid_chunks()), "item", use_float=True)
        for record, item in enumerate(items, start=1):
            if not isinstance(item, dict):
                bad_rows.add(record, f"record {record}: expected a JSON object, found {type(item).__name__}", item)
            elif is_damaged and _NOT_UTF8 in json.dumps(item, ensure_ascii=False):
                bad_rows.add(record, f"record {record}: not valid UTF-8", item)
            else:
                yield record, item
    except (ijson.JSONError, UnicodeDecodeError) as error:
        problem = f"record {record + 1}: broken JSON: {str(error).splitlines()[0]}"
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = f"the file is truncated or damaged ({error})"
    else:
        return
    raise DataError(f"{path}: {problem}; the last good record is number {record}. Mend or fetch the file.")


def _texts(path: str) -> Iterator[str]:
    """Yield the file chunk by chunk; bytes that are not UTF-8 become lone surrogates.

    Raises:
        DataError: the file is empty, or its first character does not begin an array.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
    has_begun = False
    with open_chunks(path) as next_chunk:
        while chunk := next_chunk():
            text = decoder.decode(chunk)
            if not has_begun and (start := text.lstrip()[:1]):
                has_begun = True
                if start != "[":
                    raise DataError(f"{path}: expected a JSON array, found {start!r}. Mend or fetch the file.")
            if text:
                yield text
    if not has_begun:
        raise DataError(f"{path} is empty: expected a JSON array. Fetch the file again, or leave it out.")
    if rest := decoder.decode(b"", final=True):
        yield rest
