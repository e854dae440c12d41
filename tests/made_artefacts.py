"""Small corpora and data sets made by hand, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raydr.artefacts.dataset import finish_corpus
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.lookup import Unfinished
from raydr.data.staging import STAGING
from raydr.data.tables import to_table, write_arrow
from raydr.distributed.pool import ThisProcess
from raydr.store.building import Building, begin
from raydr.store.folder import Folder, write_part
from raydr.store.identity import Identity, Part


def make_corpus(
    path: Path | Folder, passages: list[dict[str, Any]], part_rows: int = 50, partitions: Sequence[str] = ()
) -> Corpus:
    """A ``corpus`` artefact of the given passages (passage_id, title, text); each part may have a partition."""
    folder = path if isinstance(path, Folder) else Folder(str(path))
    with begin(folder, Identity(kind="corpus", inputs={"rows": str(len(passages))})) as making:
        assert isinstance(making, Building)
        for at, start in enumerate(range(0, len(passages), part_rows)):
            table = to_table("passages", passages[start : start + part_rows])
            name = "/".join(["passages", *partitions[at : at + 1], f"part-0000-{at:05d}.arrow"])
            part = write_part(making.folder, name, table.num_rows, lambda p, t=table: write_arrow(t, p))
            making.done[name] = Part.model_validate(part)
        corpus = Unfinished.of(making.folder, making.done, group_rows=100)
        making.done.update(finish_corpus(ThisProcess(), corpus, making.done, False, {}).parts)
        making.folder.remove(STAGING)
        return Corpus(making.finish({"num_passages": len(passages)}))


def make_dataset(path: Path | Folder, corpus: Corpus, tables: dict[str, dict[str, list[dict[str, Any]]]]) -> Dataset:
    """A ``dataset`` artefact; ``tables`` maps table name → split → rows."""
    folder = path if isinstance(path, Folder) else Folder(str(path))
    with begin(folder, Identity(kind="dataset", inputs={"corpus": corpus.fingerprint})) as making:
        assert isinstance(making, Building)
        for table_name, splits in tables.items():
            for split, rows in splits.items():
                table = to_table(table_name, rows)
                name = f"{table_name}/{split}/part-0000-00000.arrow"
                part = write_part(making.folder, name, table.num_rows, lambda p, t=table: write_arrow(t, p))
                making.done[name] = Part.model_validate(part)
        return Dataset(making.finish())
