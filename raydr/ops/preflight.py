"""What a run reads, looked at before it is begun: is it there, and does it look as it should?

Needs neither Ray nor a GPU, and reads a few rows at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from raydr.artefacts.places import Places
from raydr.config.run import RunConfig
from raydr.data.config import DataConfig
from raydr.data.inputs import Input, exists, looking_for_inputs
from raydr.data.quarantine import BadRows
from raydr.data.readers.base import Source
from raydr.errors import ArtifactError, DataError, ModelError
from raydr.models.checkpoint import resolve_checkpoint

#: Rows of a raw file that are read to see whether its format is the expected one.
_ROWS = 20


@dataclass(frozen=True)
class Need:
    """One thing that a run reads; ``problem`` is empty if it is there and looks right."""

    what: str
    where: str
    problem: str = ""


def check_inputs(config: RunConfig) -> list[Need]:
    """What a run reads that it cannot make: raw files, unless they were prepared before, and checkpoints.

    Raises:
        ArtifactError: the working folder is of a kind that cannot be looked into.
    """
    places = Places.of(config.workdir)
    prepared = all(places.pointer(name) is not None for name in ("corpus", "dataset"))
    return [*([] if prepared else raw_inputs(config.data)), *_checkpoints(config)]


def _checkpoints(config: RunConfig) -> list[Need]:
    names = {"checkpoint": config.model.checkpoint}
    if config.model.towers == "two" and config.model.passage_checkpoint:
        names["passage checkpoint"] = config.model.passage_checkpoint
    needs = []
    for what, name in names.items():
        try:
            resolved = resolve_checkpoint(name)
        except ModelError as error:
            needs.append(Need(what, name, str(error)))
        else:
            needs.append(
                Need(what, resolved if resolved.startswith("/") else f"{name} (a name on the hub, not checked)")
            )
    return needs


def raw_inputs(config: DataConfig) -> list[Need]:
    """The reader's files, and whether their first rows can be read."""
    problem, sources = "", list[Source]()
    with looking_for_inputs() as inputs:
        try:
            sources = config.reader.sources()
        except (DataError, ArtifactError) as error:
            problem = str(error)
    roles = {source.path: source for source in sources}
    needs = [Need(source.what, source.path, _wrong(config, source, roles.get(source.path))) for source in inputs]
    if problem:
        needs.append(Need("data", str(config.reader.model_dump().get("path") or config.reader.name), problem))
    if not needs:
        needs = [Need(source.role, source.path) for source in sources]
    return needs


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
