"""Small corpora and data sets made by hand, without Ray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from raydr.data.corpus import Corpus, hash_content, hash_strings
from raydr.data.dataset import Dataset
from raydr.data.schema import to_table, write_arrow
from raydr.store.artifact import Building, begin
from raydr.store.folder import Folder, write_part
from raydr.store.identity import Identity


def make_corpus(path: Path, passages: list[dict[str, Any]], part_rows: int = 50) -> Corpus:
    """A ``corpus`` artefact of the given passages (passage_id, title, text)."""
    with begin(Folder(str(path)), Identity(kind="corpus", inputs={"rows": str(len(passages))})) as making:
        assert isinstance(making, Building)
        for at, start in enumerate(range(0, len(passages), part_rows)):
            table = to_table("passages", passages[start : start + part_rows])
            name = f"passages/part-0000-{at:05d}.arrow"
            making.record(name, write_part(making.folder, name, table.num_rows, lambda p, t=table: write_arrow(t, p)))
        table = to_table("passages", passages)
        id_hash = hash_strings(table["passage_id"])
        order = np.argsort(id_hash, kind="stable")
        arrays = {
            "id_hash": id_hash[order],
            "row": order.astype(np.int64),
            "content_hash": hash_content(table["title"], table["text"]),
        }
        for key, array in arrays.items():
            name = f"lookup/{key}.npy"

            def save(target: str, array: np.ndarray = array) -> None:
                with open(target, "wb") as file:
                    np.save(file, array, allow_pickle=False)

            making.record(name, write_part(making.folder, name, len(array), save))
        return Corpus(making.finish({"num_passages": len(passages)}))


def make_dataset(path: Path, corpus: Corpus, tables: dict[str, dict[str, list[dict[str, Any]]]]) -> Dataset:
    """A ``dataset`` artefact; ``tables`` maps table name → split → rows."""
    with begin(Folder(str(path)), Identity(kind="dataset", inputs={"corpus": corpus.fingerprint})) as making:
        assert isinstance(making, Building)
        for table_name, splits in tables.items():
            for split, rows in splits.items():
                table = to_table(table_name, rows)
                name = f"{table_name}/{split}/part-0000-00000.arrow"
                making.record(
                    name, write_part(making.folder, name, table.num_rows, lambda p, t=table: write_arrow(t, p))
                )
        return Dataset(making.finish())
