"""KILT's files: pages of Wikipedia, and tasks whose outputs name pages, such as mentions of AIDA."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import Field

from raydr.data.inputs import find_input
from raydr.data.lines import read_json_lines
from raydr.data.readers.base import Reader, Row, Source, read_rows
from raydr.data.rows import BadRows, MentionConfig, RowError, id_field, list_of, text_field
from raydr.store.identity import fingerprint_of

_START, _END = "[START_ENT]", "[END_ENT]"


class KiltReader(Reader):
    """Pages and tasks of KILT (Petroni et al., NAACL 2021), plain or gzipped.

    The knowledge source has a page a line: ``wikipedia_id``, ``wikipedia_title``, ``text`` (a list of paragraphs, of
    which the first is the title). A task has ``id``, ``input`` and ``output``, whose ``provenance`` names pages by
    ``wikipedia_id``: the judgments; a test file without outputs gives queries alone. Where the input marks a mention by
    ``[START_ENT]`` and ``[END_ENT]`` (AIDA and other entity linking), the query is made of the mention and its context;
    otherwise the input is the query.
    """

    identifying: ClassVar[frozenset[str]] = frozenset({"name"})

    name: Literal["kilt"] = "kilt"
    path: str
    """Folder of the files, local or an fsspec URL."""

    pages: list[str] = Field(default=["kilt_knowledgesource.json"], min_length=1)
    """Files of the pages."""

    tasks: dict[str, str] = {"train": "aidayago2-train-kilt.jsonl", "dev": "aidayago2-dev-kilt.jsonl"}
    """File of each split."""

    num_paragraphs: int = Field(default=2, ge=1)
    """Number of paragraphs after the title that are the text of a page."""

    mention: MentionConfig = MentionConfig()
    """Settings that turn a mention into a query."""

    def sources(self) -> list[Source]:
        pages = [
            Source(find_input(self.path, name, "pages"), "pages", tables=("passages",), divided="lines")
            for name in self.pages
        ]
        return pages + [
            Source(find_input(self.path, name, f"queries of split {split}"), "task", split, ("queries", "qrels"))
            for split, name in self.tasks.items()
        ]

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        records = read_json_lines(source.path, bad_rows, source.lines)
        if source.has_only_passages:
            return read_rows(records, bad_rows, self._page)
        return read_rows(records, bad_rows, lambda record, line: self._query(source.split, record, line))

    def checksum(self, source: Source) -> str:
        """Return the identity of the file, with the settings that its rows depend on."""
        settings = self.num_paragraphs if source.has_only_passages else self.mention.model_dump(mode="json")
        return fingerprint_of([super().checksum(source), settings])

    def _page(self, record: dict[str, Any], line: int) -> Iterator[Row]:
        title = text_field(record, "wikipedia_title")
        paragraphs = list_of(str, record.get("text"), "'text' must be a list of paragraphs")
        texts = [paragraph.strip() for paragraph in paragraphs]
        texts = [text for text in (texts[1:] if texts[:1] == [title.strip()] else texts) if text]
        # A page without a text may still be the entity of a mention.
        text = " ".join(texts[: self.num_paragraphs]) or title
        yield Row.passage(id_field(record, "wikipedia_id"), title, text, line)

    def _query(self, split: str, record: dict[str, Any], line: int) -> Iterator[Row]:
        query_id, text = id_field(record, "id"), text_field(record, "input")
        yield Row.query(split, query_id, self._in_context(query_id, text), line)
        outputs = list_of(dict, record.get("output") or [], "'output' must be a list of objects")
        named = [page for output in outputs for page in output.get("provenance") or []]
        for page_id in dict.fromkeys(id_field(page, "wikipedia_id") for page in named):
            yield Row.judgment(split, query_id, page_id, line)

    def _in_context(self, query_id: str, text: str) -> str:
        """Return the query of an input.

        Raises:
            RowError: the input does not mark exactly one mention.
        """
        if _START not in text and _END not in text:
            return text
        before, start, rest = text.partition(_START)
        mention, end, after = rest.partition(_END)
        if not (start and end and mention.strip()) or _START in rest or _END in after:
            raise RowError(f"query {query_id!r}: expected one mention between {_START} and {_END}, found {text!r:.80}")
        return self.mention.text(before.split(), mention.split(), after.split())
