"""Writing a data set with its judged and mined negatives in a format that other trainers read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.writers.base import LEFT_OUT, Exported, OutputFile, Writer
from raydr.errors import DataError
from raydr.runtime.console import show_summary
from raydr.stages.parts import make_parts, total_counts
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact, Building, record_part
from raydr.store.folder import Folder, write_part
from raydr.store.manifest import Part


def export(
    making: Building, pool: Pool, corpus: Artifact, dataset: Artifact, negatives: Artifact | None, *, writer: Writer
) -> dict[str, Any]:
    """Write the files of one format, each by a task of its own; ``manifest.json`` is put beside them.

    What a format cannot hold is left out and counted in the summary, and in the artefact's info.

    Args:
        making: the artefact.
        pool: where files are written.
        corpus: the passages.
        dataset: queries, judgments and the data set's own negatives.
        negatives: mined or judged negatives, which go before the data set's own; may be None.
        writer: of the format.

    Raises:
        DataError: the inputs were not made for each other, the format cannot hold a text as it is, or no row of them.
    """
    exported = Exported(Corpus(corpus), Dataset(dataset), negatives)
    exported.dataset.require_corpus(corpus)
    # What judges have left of a data set goes with what was mined for the whole.
    fitting = (dataset.fingerprint, dataset.manifest.identity.inputs.get("dataset"))
    if negatives and negatives.manifest.identity.inputs.get("dataset", dataset.fingerprint) not in fitting:
        raise DataError(
            f"the negatives at {negatives.folder} were not made for the data set at {dataset.folder}: give those that "
            "were"
        )
    files = {file.name: (writer, file, exported) for file in writer.files(exported)}
    make_parts(making, pool, _write_file, files, f"export: {writer.name}")
    totals = +total_counts(making, files)
    facts = {what: f"{count:,}" for what, count in totals.items()}
    show_summary(f"exported as {writer.name}", {**facts, "files": ", ".join(sorted(files)), "at": str(making.folder)})
    if not any(making.done[name].bytes for name in files):
        raise DataError(
            f"not one row could be written to {making.folder} as {writer.name}, see what was left out above: raydr "
            "mine finds negatives where rows need some (then --negatives NAME), and --shape pairs needs none"
        )
    return {"format": writer.name, **totals}


def _write_file(folder: Folder, name: str, writer: Writer, file: OutputFile, exported: Exported) -> Mapping[str, Part]:
    counts: Counter[str] = Counter()

    def write(path: str) -> None:
        with open(path, "w", encoding="utf-8", newline="") as out:
            writer.write(file, exported, out, counts)

    made = write_part(folder, name, 0, write)
    rows = sum(count for what, count in counts.items() if not what.startswith(LEFT_OUT))
    part = Part.model_validate({**made, "rows": rows, "counts": counts})
    record_part(folder, name, part)
    return {name: part}
