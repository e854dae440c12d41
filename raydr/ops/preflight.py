"""What a stage reads, looked at before the stage is run: is it there, and does it look as it should?

Needs neither Ray nor a GPU, and reads a few rows at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Literal, get_args

from raydr.config.run import RunConfig
from raydr.data.config import DataConfig
from raydr.data.inputs import Input, exists, looking_for_inputs
from raydr.data.quarantine import BadRows
from raydr.data.readers.base import Source
from raydr.errors import ArtifactError, DataError, ModelError
from raydr.graph.workspace import TRAINED, Workspace
from raydr.models.checkpoint import resolve_checkpoint
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

#: What can be looked at, in the order of a run.
Stage = Literal["prepare", "train", "encode", "index", "refresh", "tune", "evaluate"]
STAGES: tuple[Stage, ...] = get_args(Stage)

#: Rows of a raw file that are read to see whether its format is the expected one.
_ROWS = 20


@dataclass(frozen=True)
class Need:
    """One thing that a stage reads; ``problem`` is empty if it is there and looks right."""

    what: str
    where: str
    problem: str = ""


def check_inputs(config: RunConfig, stage: Stage, model: str = TRAINED) -> list[Need]:
    """Everything that a stage of a run reads, with what is wrong with it.

    Args:
        config: the run.
        stage: of it.
        model: name of the model in the working folder that it reads.

    Raises:
        ArtifactError: the working folder is of a kind that cannot be looked into.
    """
    if stage == "prepare":
        return _raw(config.data)
    place = Workspace(Folder(config.workdir).absolute())
    dataset = place.noisy_dataset if config.inject_noise is not None else place.dataset
    corpus = place.corpus
    prepared = [
        _artifact("data set", dataset, "dataset", "jobs/prepare.py"),
        _artifact("corpus", corpus, "corpus", "jobs/prepare.py"),
    ]
    match stage:
        case "refresh" | "tune":
            # They prepare what is not prepared.
            raw = [] if not any(need.problem for need in prepared) else _raw(config.data)
            return [*raw, *_checkpoints(config)]
        case "train":
            return [*prepared, *_negatives(config, place), *_checkpoints(config)]
        case "encode":
            return [_artifact("model", place.model(model), "model", "jobs/train.py"), prepared[1]]
        case "index":
            return [_artifact("passage vectors", place.passages(model), "embeddings", "jobs/encode.py")]
        case "evaluate":
            return [
                *prepared,
                _artifact("model", place.model(model), "model", "jobs/train.py"),
                _artifact("index", place.index(model), "index", "jobs/index.py"),
            ]


def _artifact(what: str, folder: Folder, kind: str, made_by: str) -> Need:
    try:
        Artifact.open(folder, kind)
    except ArtifactError as error:
        return Need(what, folder.url, f"{error} ({made_by} makes it)")
    return Need(what, str(folder))


def _negatives(config: RunConfig, place: Workspace) -> list[Need]:
    """The mined candidates that training draws from, if it draws any and does not take those of the data."""
    settings = config.negatives
    if settings is None or not config.some_training_draws_candidates:
        return []
    source = TRAINED if settings.miner == "run" else settings.miner
    folder = place.negatives(f"{source}-{config.data.train_split}")
    # What a model has found is mined when there is a model.
    made_by = "jobs/prepare.py" if source != TRAINED else "raydr mine, after a search of the training split,"
    return [_artifact(f"candidates by {source}", folder, "negatives", made_by)]


def _checkpoints(config: RunConfig) -> list[Need]:
    names = {"checkpoint": config.model.checkpoint}
    if config.model.towers == "two" and config.model.passage_checkpoint:
        names["passage checkpoint"] = config.model.passage_checkpoint
    found = []
    for what, name in names.items():
        try:
            resolved = resolve_checkpoint(name)
        except ModelError as error:
            found.append(Need(what, name, str(error)))
        else:
            found.append(
                Need(what, resolved if resolved.startswith("/") else f"{name} (a name on the hub, not checked)")
            )
    return found


def _raw(config: DataConfig) -> list[Need]:
    """The reader's files, and whether their first rows can be read."""
    problem, sources = "", list[Source]()
    with looking_for_inputs() as inputs:
        try:
            sources = config.reader.sources()
        except (DataError, ArtifactError) as error:
            problem = str(error)
    roles = {source.path: source for source in sources}
    needs = [Need(one.what, one.path, _wrong(config, one, roles.get(one.path))) for one in inputs]
    if problem:
        needs.append(Need("data", str(config.reader.model_dump().get("path") or config.reader.name), problem))
    if not needs:
        needs = [Need(source.role, source.path) for source in sources]
    return needs


def _wrong(config: DataConfig, looked_for: Input, source: Source | None) -> str:
    """What is wrong with a file, looking at its first rows; one that only others need is read with those."""
    if not looked_for.found:
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
