"""A JSON array read item by item, so that a file of many GB needs the memory of its largest item."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

from raydr.data.lines import open_chunks
from raydr.data.quarantine import BadRows
from raydr.errors import DataError

#: An error this near to the end of what was read may be cured by reading on.
_MARGIN = 16
_SPACE = " \t\r\n"


def read_json_array(path: str, bad_rows: BadRows) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Items of the array with the line each starts on, from 1, and its record number, from 1.

    An item that is not an object or holds bytes that are not UTF-8 is a bad row.

    Raises:
        DataError: the file is empty, is not a JSON array, is broken or ends too early; names the line and the
            last good record.
    """
    stream = _Stream(path)
    if stream.peek() == "":
        raise DataError(f"{path} is empty: expected a JSON array. Fetch the file again, or leave it out.")
    if stream.peek() != "[":
        raise stream.error(f"expected a JSON array, found {stream.peek()!r}")
    stream.skip()
    if stream.peek() == "]":
        return
    record = 0
    while True:
        stream.peek()
        line = stream.line
        text, item = stream.decode()
        record = stream.record = record + 1
        if not isinstance(item, dict):
            bad_rows.add(line, f"record {record}: expected a JSON object, found {type(item).__name__}", text)
        elif _is_utf8(text):
            yield line, record, item
        else:
            bad_rows.add(line, f"record {record}: not valid UTF-8", text.encode("utf-8", "replace").decode())
        separator = stream.peek()
        if separator not in (",", "]"):
            found = repr(separator) if separator else "the end of the file"
            raise stream.error(f"expected ',' or ']' after a record, found {found}")
        stream.skip()
        if separator == "]":
            return


def _is_utf8(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


class _Stream:
    """A window over the file's text: what is decoded is dropped, more is read when an item does not end."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line = 1
        self.record = 0
        self._buffer = ""
        self._at = 0
        self._ended = False
        self._chunks = self._texts()
        self._json = json.JSONDecoder()

    def error(self, found: str) -> DataError:
        return DataError(
            f"{self.path}:{self.line}: {found}; the last good record is number {self.record}. Mend or fetch the file."
        )

    def peek(self) -> str:
        """The next character that is not white space, empty at the end of the file."""
        while True:
            while self._at < len(self._buffer):
                character = self._buffer[self._at]
                if character not in _SPACE:
                    return character
                self.line += character == "\n"
                self._at += 1
            if not self._read_on():
                return ""

    def skip(self) -> None:
        self._at += 1

    def decode(self) -> tuple[str, Any]:
        """The next value, and its text."""
        wanted = 0
        while True:
            try:
                value, end = self._json.raw_decode(self._buffer, self._at)
            except json.JSONDecodeError as error:
                curable = error.msg.startswith("Unterminated string") or error.pos >= len(self._buffer) - _MARGIN
                # Doubling keeps the repeated attempts at a large item linear in its size.
                wanted = max(2 * (len(self._buffer) - self._at), wanted)
                if curable and self._read_on(wanted):
                    continue
                line = self.line + self._buffer.count("\n", self._at, error.pos)
                raise self.error(f"record {self.record + 1}: broken JSON in line {line}: {error.msg}") from None
            text = self._buffer[self._at : end]
            self.line += text.count("\n")
            self._at = end
            return text, value

    def _read_on(self, wanted: int = 0) -> bool:
        """Read at least one chunk, and until the window has ``wanted`` characters; False at the end of the file."""
        if self._ended:
            return False
        window = [self._buffer[self._at :]]
        self._at, size = 0, len(window[0])
        while True:
            text = next(self._chunks, "")
            self._ended = not text
            window.append(text)
            size += len(text)
            if self._ended or size >= wanted:
                break
        self._buffer = "".join(window)
        return len(window) > 2 or not self._ended

    def _texts(self) -> Iterator[str]:
        # Bytes that are not UTF-8 become lone surrogates here, and the item that holds them a bad row.
        decoder = codecs.getincrementaldecoder("utf-8-sig")("surrogateescape")
        with open_chunks(self.path) as next_chunk:
            try:
                while chunk := next_chunk():
                    if text := decoder.decode(chunk):
                        yield text
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise self.error(f"the file is truncated or damaged ({error})") from None
        if text := decoder.decode(b"", final=True):
            yield text
