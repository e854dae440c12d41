"""A JSON array read item by item, so that a file of many GB needs the memory of its largest item."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import ijson

from raydr.data.lines import CHUNK, open_text
from raydr.data.rows import BadRows
from raydr.errors import DataError

#: Replacement of bytes that are not UTF-8: a code point that no text may have.
_NOT_UTF8 = "\ufdd0"
#: Maximum of brackets that a chunk opens and does not close.
_DEEPEST = 1000
_MARK = "raydr.mark"
codecs.register_error(_MARK, lambda error: (_NOT_UTF8, error.end) if isinstance(error, UnicodeDecodeError) else ("", 0))


def read_json_array(path: str, bad_rows: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield items of the array with their record numbers, from 1.

    An item that is not an object or holds bytes that are not UTF-8 is a bad row; its line is its record number.

    Raises:
        DataError: the file is empty, is not a JSON array, is broken or too deep, or ends too early; the message has the
            last good record.
    """
    record, is_damaged = 0, False

    def chunks() -> Iterator[bytes]:
        nonlocal is_damaged
        in_text, cut = False, ""
        for text in _texts(path):
            is_damaged = is_damaged or _NOT_UTF8 in text
            # Without escapes, each quote begins or ends a text.
            plain = (cut + text).replace("\\\\", "").replace('\\"', "")
            cut = "\\" if plain.endswith("\\") else ""
            # The parser's memory grows with the square of the depth.
            if _opened(text) > _DEEPEST and _opened("".join(plain.split('"')[in_text::2])) > _DEEPEST:
                raise DataError(f"{path} is nested too deeply, after record {record}: expected an array of objects.")
            in_text ^= plain.count('"') % 2 == 1
            yield text.encode()

    try:
        for record, parsed in enumerate(ijson.items(ijson.from_iter(chunks()), "item"), start=1):
            try:
                item = _with_floats(parsed)
            except RecursionError:
                bad_rows.add(record, f"record {record}: nested too deeply")
                continue
            if not isinstance(item, dict):
                bad_rows.add(record, f"record {record}: expected a JSON object, found {type(item).__name__}", item)
            elif is_damaged and _NOT_UTF8 in json.dumps(item, ensure_ascii=False):
                bad_rows.add(record, f"record {record}: not valid UTF-8", item)
            else:
                yield record, item
        return
    # Python converts integers of at most 4,300 digits.
    except (ijson.JSONError, ValueError) as error:
        problem = f"record {record + 1}: broken JSON: {str(error).splitlines()[0]}"
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = f"the file is truncated or damaged ({error})"
    raise DataError(f"{path}: {problem}; the last good record is number {record}. Mend or fetch the file.")


def _with_floats(value: Any) -> Any:
    """Return the value as :mod:`json` reads it; ijson's own option for floats limits integers to 64 bits."""
    if isinstance(value, dict):
        return {key: _with_floats(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_floats(entry) for entry in value]
    return float(value) if isinstance(value, Decimal) else value


def _opened(text: str) -> int:
    return sum(map(text.count, "[{")) - sum(map(text.count, "]}"))


def _texts(path: str) -> Iterator[str]:
    """Yield the file chunk by chunk; bytes that are not UTF-8 become :data:`_NOT_UTF8`.

    Raises:
        DataError: the file is empty, or its first character does not begin an array.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(_MARK)
    start = ""
    with open_text(path) as stream:
        while chunk := stream.read1(CHUNK):
            text = decoder.decode(chunk)
            start = start or text.lstrip()[:1]
            if start and start != "[":
                remedy = "Mend or fetch the file."
                if start == "{":
                    remedy = (
                        "Let its name end in .jsonl if each line holds an object. Files of SQuAD, LlamaIndex and "
                        "pandas hold a single object: convert it into an array of objects with query and positive."
                    )
                raise DataError(f"{path}: expected a JSON array, found {start!r}. {remedy}")
            if text:
                yield text
    if not start:
        raise DataError(f"{path} is empty: expected a JSON array. Fetch the file again, or leave it out.")
    yield decoder.decode(b"", final=True)
