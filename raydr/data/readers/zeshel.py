"""Zeshel (Logeswaran et al., ACL 2019): worlds with pages of entities, and mentions of these in other pages."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatch
from typing import Any, ClassVar, Literal

from raydr.data.inputs import find_input, join, shown_files
from raydr.data.lines import read_json_lines
from raydr.data.readers.base import Reader, Row, Source, read_rows
from raydr.data.rows import BadRows, MentionConfig, RowError, id_field, passage_field, text_field
from raydr.errors import DataError
from raydr.store import Folder
from raydr.store.identity import fingerprint_of

_ENDS = (".json", ".json.gz")


class ZeshelReader(Reader):
    """Entity linking in Zeshel's files, plain or gzipped.

    ``documents/WORLD.json`` holds a world's pages (``document_id``, ``title``, ``text``): the passages, whose partition
    is the world. ``mentions/SPLIT.json`` holds mentions (``mention_id``, ``context_document_id``, ``corpus``,
    ``start_index`` and ``end_index``, words of the context split at white space, from 0, both included; ``text``,
    ``label_document_id``, ``category``): the queries, whose partition is ``corpus``. A context may be any document. The
    text of a page stays as it is: in Zeshel it begins with the title.
    """

    identifying: ClassVar[frozenset[str]] = frozenset({"name"})

    name: Literal["zeshel"] = "zeshel"
    path: str
    """Folder of the data set, local or an fsspec URL."""

    documents: str = "documents"
    """Folder of the pages."""

    contexts: str = "contexts_*"
    """Shell pattern of the files in ``documents``, without suffix, that hold contexts of mentions and are no world."""

    mentions: str = "mentions"
    """Folder with a file of mentions for each split."""

    worlds: list[str] = []
    """Worlds to read, with their mentions, for small trials; all if empty."""

    splits: list[str] = []
    """Splits to read; all files of the mentions' folder if empty."""

    shared_worlds: list[str] = ["heldout_train_seen", "heldout_train_unseen"]
    """Splits that may share worlds with other splits; a world that two other splits share is an error."""

    mention: MentionConfig = MentionConfig()
    """Settings that turn a mention into a query."""

    def sources(self) -> list[Source]:
        pages, mentions = self._pages(), self._mentions()
        also = tuple(sorted([*pages.values(), *mentions.values()]))
        return [
            *(
                Source(pages[world], f"world/{world}", tables=("passages",), divided="lines")
                for world in self._worlds(pages)
            ),
            *(Source(path, "mentions", split, ("queries", "qrels"), also) for split, path in mentions.items()),
        ]

    def read(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        if source.has_only_passages:
            world = source.role.partition("/")[2]
            return read_rows(
                read_json_lines(source.path, bad_rows, source.lines), bad_rows, lambda *row: _passage(world, *row)
            )
        return self._read_mentions(source, bad_rows)

    def checksum(self, source: Source) -> str:
        """Return the identity of the file; for mentions, with the settings that make their queries."""
        own = super().checksum(source)
        if source.has_only_passages:
            return own
        settings = self.model_dump(mode="json", include={"contexts", "worlds", "shared_worlds", "mention"})
        return fingerprint_of([own, settings])

    def _pages(self) -> dict[str, str]:
        """Return the files of pages, by world or name."""
        return self._files(self.documents, "WORLD")

    def _worlds(self, pages: Collection[str]) -> list[str]:
        """Return the worlds to read, in the order of the files.

        Raises:
            DataError: a world of the setting ``worlds`` does not exist.
        """
        worlds = [world for world in pages if not fnmatch(world, self.contexts)]
        missing = [world for world in self.worlds if world not in worlds]
        if missing and pages:
            raise DataError(
                f"data.reader.worlds names {missing[0]!r}; {join(self.path, self.documents)} has {', '.join(worlds)}"
            )
        return [world for world in worlds if not self.worlds or world in self.worlds]

    def _mentions(self) -> dict[str, str]:
        """Return the files of mentions, by split."""
        if not self.splits:
            return self._files(self.mentions, "SPLIT")
        return {
            split: find_input(self.path, f"{self.mentions}/{split}.json", f"mentions of {split}")
            for split in self.splits
        }

    def _files(self, folder: str, each: str) -> dict[str, str]:
        """Return the files of a folder by their names without suffixes."""
        place = Folder(join(self.path, folder))
        files = {name.split(".json")[0]: join(place.url, name) for name in shown_files(place) if name.endswith(_ENDS)}
        if not files:
            find_input(self.path, f"{folder}/{each}.json", f"{folder}, one file a {each.lower()}")
        return files

    def _read_mentions(self, source: Source, bad_rows: BadRows) -> Iterator[Row]:
        pages = self._pages()
        worlds = self._worlds(pages)
        left_out = {world for world in pages if not fnmatch(world, self.contexts)} - set(worlds)
        mentions = [row for row in read_json_lines(source.path, bad_rows) if str(row[1].get("corpus")) not in left_out]
        self._refuse_worlds_of_others(source, {str(record.get("corpus")) for _, record in mentions})
        # Only the contexts of mentions are kept.
        context_ids = {str(record.get("context_document_id")) for _, record in mentions}
        contexts: dict[str, str] = {}
        for path in pages.values():
            # Bad pages are reported when they are read as passages.
            for _, record in read_json_lines(path, BadRows(path)):
                page_id, text = str(record.get("document_id")), record.get("text")
                if page_id in context_ids and isinstance(text, str):
                    contexts[page_id] = text

        def rows(record: dict[str, Any], line: int) -> Iterator[Row]:
            world, mention_id = id_field(record, "corpus"), id_field(record, "mention_id")
            if world not in worlds:
                raise RowError(f"mention {mention_id!r}: there is no world {world!r} among {', '.join(sorted(worlds))}")
            text = self._query(record, contexts)
            category = text_field(record, "category", default="") or None
            yield Row.query(source.split, mention_id, text, line, partition=world, category=category)
            yield Row.judgment(source.split, mention_id, id_field(record, "label_document_id"), line)

        yield from read_rows(mentions, bad_rows, rows)

    def _query(self, record: dict[str, Any], contexts: Mapping[str, str]) -> str:
        """Return the mention in its context.

        Raises:
            RowError: the context does not exist, or does not have the mention at its place.
        """
        mention_id, context_id = id_field(record, "mention_id"), id_field(record, "context_document_id")
        if context_id not in contexts:
            raise RowError(f"mention {mention_id!r}: no file of {self.documents} has the document {context_id!r}")
        words, mention = contexts[context_id].split(), text_field(record, "text")
        start, end = _place(record, "start_index"), _place(record, "end_index") + 1
        words_at_place = " ".join(words[start:end])
        if not words_at_place or words_at_place != " ".join(mention.split()):
            raise RowError(
                f"mention {mention_id!r}: words {start} to {end - 1} of document {context_id!r}, which has "
                f"{len(words)}, are {words_at_place!r:.80}, not {mention!r:.80}"
            )
        return self.mention.text(words[:start], words[start:end], words[end:])

    def _refuse_worlds_of_others(self, source: Source, worlds: set[Any]) -> None:
        """Raise an error if another split has a world too, unless ``shared_worlds`` names a split of both."""
        if source.split in self.shared_worlds:
            return
        for split, path in self._mentions().items():
            # Each pair of splits is compared once.
            if split >= source.split or split in self.shared_worlds:
                continue
            for line, record in read_json_lines(path, BadRows(path)):
                if str(record.get("corpus")) in worlds:
                    raise DataError(
                        f"{path}:{line}: world {record['corpus']!r} is one of split {split!r} and of {source.split!r} "
                        f"({source.path}), and worlds of different splits must differ: move its mentions to one of "
                        "them, leave a split out (data.reader.splits), or name one in data.reader.shared_worlds"
                    )


def _passage(world: str, record: dict[str, Any], line: int) -> Iterator[Row]:
    yield Row.passage(id_field(record, "document_id"), *passage_field(record), line, partition=world)


def _place(record: Mapping[str, Any], key: str) -> int:
    value = record.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise RowError(f"{key!r} must be the number of a word, from 0; found {value!r:.80}")
    return value
