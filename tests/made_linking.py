"""Entities and mentions in worlds, in Zeshel's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import make_sentence

#: Pages of a world.
NUM_PAGES = 30


def make_worlds(folder: Path, splits: dict[str, str], mentions: int, worlds: str = "abc") -> Path:
    """Worlds of 30 pages, called by a letter, and mentions: the third words of their worlds' first pages.

    Args:
        folder: gets the folders ``documents`` and ``mentions``.
        splits: the worlds of each split, last one first in its file.
        mentions: of each world.
        worlds: all worlds.
    """
    pages = {
        world: [
            {"document_id": f"{world}{at}", "title": "", "text": make_sentence(100 * number + at, 12)}
            for at in range(NUM_PAGES)
        ]
        for number, world in enumerate(worlds)
    }
    _write(folder / "documents", pages)
    _write(
        folder / "mentions",
        {
            split: [_mention(world, at, pages[world][at]) for at in range(mentions) for world in reversed(those)]
            for split, those in splits.items()
        },
    )
    return folder


def _mention(world: str, at: int, page: dict[str, Any]) -> dict[str, Any]:
    return {
        "mention_id": f"m-{world}{at}", "context_document_id": f"{world}{at}", "corpus": world, "start_index": 2,
        "end_index": 2, "text": page["text"].split()[2], "label_document_id": f"{world}{at}",
        "category": "LOW_OVERLAP",
    }  # fmt: skip


def _write(folder: Path, files: dict[str, list[dict[str, Any]]]) -> None:
    folder.mkdir()
    for name, rows in files.items():
        (folder / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
