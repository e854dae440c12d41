"""Writing a data set with its judged and mined negatives in a format that other trainers read."""

from __future__ import annotations

from collections import Counter

from raydr.component import build
from raydr.config.run import RunConfig
from raydr.data.corpus import Corpus
from raydr.data.dataset import Dataset
from raydr.data.writers.base import LEFT_OUT, Exported, OutputFile, Writer
from raydr.errors import DataError
from raydr.runtime.console import say, show_summary
from raydr.stages.tasks import results
from raydr.store.artifact import Artifact, Identity, Part, begin, record_part
from raydr.store.folder import Folder, write_part


def export(
    config: RunConfig,
    corpus: Folder,
    dataset: Folder,
    negatives: Folder | None,
    format: str | Writer,
    output: Folder,
    overwrite: bool = False,
) -> Artifact:
    """Write the files of one format, each by a task of its own; ``manifest.json`` is put beside them.

    What a format cannot hold is left out and counted in the summary, and in the artefact's info.

    Args:
        config: kept in the manifest.
        corpus: the passages.
        dataset: queries, judgments and the data set's own negatives.
        negatives: mined or judged negatives, which go before the data set's own; may be None.
        format: ``dpr``, ``beir`` or ``triples``, or a writer with settings of its own.
        output: where the files go.
        overwrite: replace what is at ``output``.

    Raises:
        ConfigError: there is no such format.
        DataError: the inputs were not made for each other, or the format cannot hold a text as it is.
    """
    import ray

    writer = build(Writer, format) if isinstance(format, str) else format
    exported = _open(corpus, dataset, negatives)
    inputs = {"corpus": exported.corpus.fingerprint, "dataset": exported.dataset.fingerprint}
    if exported.negatives is not None:
        inputs["negatives"] = exported.negatives.fingerprint
    identity = Identity(kind="export", config=writer.fingerprint_settings(), inputs=inputs)
    with begin(output, identity, overwrite) as state:
        if isinstance(state, Artifact):
            say(f"export {output}: already there with the same fingerprint, reused")
            return state
        write_file = ray.remote(num_cpus=1)(_write_file)
        # Counts are not stored with the files, so a resumed export writes its files again.
        pending = [
            write_file.remote(writer, file, corpus, dataset, negatives, output) for file in writer.files(exported)
        ]
        totals: Counter[str] = Counter()
        for name, part, counts in results(pending, f"export: {writer.name}", "files"):
            state.done[name] = Part.model_validate(part)
            totals.update(counts)
        totals = +totals
        made = state.finish({"format": writer.name, **totals}, run_config=config.model_dump(mode="json"))
    facts = {what: f"{count:,}" for what, count in totals.items()}
    show_summary(f"exported as {writer.name}", {**facts, "files": ", ".join(made.parts()), "at": str(output)})
    return made


def _open(corpus: Folder, dataset: Folder, negatives: Folder | None) -> Exported:
    passages, data = Corpus.open(corpus), Dataset.open(dataset)
    data.require_corpus(passages.artifact)
    if negatives is None:
        return Exported(passages, data, None)
    mined = Artifact.open(negatives, "negatives")
    if mined.manifest.identity.inputs.get("dataset", data.fingerprint) != data.fingerprint:
        raise DataError(
            f"the negatives at {negatives} were not made for the data set at {dataset}: give those that were"
        )
    return Exported(passages, data, mined)


def _write_file(
    writer: Writer, file: OutputFile, corpus: Folder, dataset: Folder, negatives: Folder | None, output: Folder
) -> tuple[str, dict[str, int | str], Counter[str]]:
    counts: Counter[str] = Counter()

    def write(path: str) -> None:
        with open(path, "w", encoding="utf-8", newline="") as out:
            counts.update(writer.write(file, _open(corpus, dataset, negatives), out))

    part = write_part(output, file.name, 0, write)
    part["rows"] = sum(count for what, count in counts.items() if not what.startswith(LEFT_OUT))
    record_part(output, file.name, part)
    return file.name, part, counts
