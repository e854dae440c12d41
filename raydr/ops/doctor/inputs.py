"""What a run reads, looked at before it is begun: is it there, and does it look as it should?

Needs neither Ray nor a GPU, and reads a few rows at most.
"""

from __future__ import annotations

from itertools import islice

from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.data.config import DataConfig
from raydr.data.inputs import Input, exists, looking_for_inputs
from raydr.data.quarantine import BadRows
from raydr.data.readers.base import Source
from raydr.errors import ArtifactError, DataError, ModelError
from raydr.models.checkpoint import resolve_checkpoint
from raydr.ops.doctor.machine import Finding

#: Rows of a raw file that are read to see whether its format is the expected one.
_ROWS = 20


def check_inputs(config: RunConfig) -> list[Finding]:
    """What a run reads that it cannot make: raw files, unless they were prepared before, and checkpoints.

    Raises:
        ArtifactError: the working folder is of a kind that cannot be looked into.
    """
    places = Places.of(config.workdir)
    prepared = all(places.pointer(name) is not None for name in ("corpus", "dataset"))
    return [*([] if prepared else _raw_inputs(config.data)), *_checkpoints(config)]


def _checkpoints(config: RunConfig) -> list[Finding]:
    names = {"checkpoint": config.model.checkpoint}
    if config.model.towers == "two" and config.model.passage_checkpoint:
        names["passage checkpoint"] = config.model.passage_checkpoint
    findings = []
    for what, name in names.items():
        try:
            resolved = resolve_checkpoint(name)
        except ModelError as error:
            findings.append(Finding(what, "broken", str(error), "correct section model"))
        else:
            local = resolved.startswith("/")
            findings.append(Finding(what, "ok", resolved if local else f"{name} (a name on the hub, not checked)"))
    return findings


def _raw_inputs(config: DataConfig) -> list[Finding]:
    """The reader's files, and whether their first rows can be read."""
    problem, sources = "", list[Source]()
    with looking_for_inputs() as inputs:
        try:
            sources = config.reader.sources()
        except (DataError, ArtifactError) as error:
            problem = str(error)
    roles = {source.path: source for source in sources}
    wrong = [(source.what, source.path, _wrong(config, source, roles.get(source.path))) for source in inputs]
    wrong += [("data", "", problem)] if problem else []
    return [
        Finding(what, "broken", why, "raydr prepare reads it: correct data.reader")
        if why
        else Finding(what, "ok", path)
        for what, path, why in wrong or [(source.role, source.path, "") for source in sources]
    ]


def _wrong(config: DataConfig, looked_for: Input, source: Source | None) -> str:
    """What is wrong with a file, looking at its first rows; one that only others need is read with those."""
    if not looked_for.exists:
        return f"{looked_for.path} is missing, also as .gz"
    if source is None or not all(exists(path) for path in source.also):
        return ""
    bad_rows = _FirstBadRows(source.path, at_most=max(_ROWS, config.max_bad_rows))
    try:
        rows = list(islice(config.reader.read(source, bad_rows), _ROWS))
    except DataError as error:
        return f"{source.path}: {error}"
    if bad_rows.count > config.max_bad_rows:
        return f"the first bad row is {bad_rows.kept[0]}"
    return "" if rows else f"{source.path} has no rows"


class _FirstBadRows(BadRows):
    """Ends reading at so many bad rows: a file of another format is not read to its end."""

    def __init__(self, file: str, at_most: int) -> None:
        super().__init__(file)
        self.at_most = at_most

    def add(self, line: int, reason: str, content: object = "") -> None:
        super().add(line, reason, content)
        if self.count > self.at_most:
            raise DataError(f"its first {self.count} rows are bad, the first is {self.kept[0]}")
