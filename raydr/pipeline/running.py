"""Run nodes: open inputs, make the artefact, record its time, track and name it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

from raydr.artefacts.declaration import Node, NodeWork, Resources
from raydr.artefacts.places import Places, Pointer
from raydr.component import Config
from raydr.config.run import RunConfig
from raydr.console import duration, say, warn
from raydr.data import Dataset
from raydr.distributed.choose_pool import choose_pool
from raydr.distributed.cluster import give_back_memory
from raydr.distributed.pool import Pool
from raydr.errors import ArtifactError, BusyError, ConfigError
from raydr.pipeline.planning import Inventory, run_nodes
from raydr.store import Artifact, Building, Folder
from raydr.store.building import begin
from raydr.store.identity import MANIFEST
from raydr.tracking.tracker import Tracker

#: Serialises work in this process: the thread counts of PyTorch and FAISS are global.
_here = threading.Lock()
#: Shortest duration, in seconds, that is reported.
_WORTH_TELLING_S = 1.0
#: Seconds between two checks of a node that another process makes.
_LOOK_S = 0.5
#: Parts whose checksums a call reads: each Ray task costs memory in this process.
_READ_AT_ONCE = 64
#: Sections logged as MLflow parameters of a training, where they differ from the defaults.
_OF_A_MODEL = ("seed", "model", "train")


@dataclass(frozen=True)
class Runner:
    """The maker of a run's nodes.

    Args:
        inventory: existing artefacts.
        tracker: MLflow run; each node is a step of it.
        run_config: stored in manifests for information.
        capacity: resources shared by the nodes.
        names: names that point to nodes as soon as they are complete.
        planned: targets of names when the nodes were planned; these names must not have moved since.
        pool: pool for all nodes; None: chosen for each node by its size.
    """

    inventory: Inventory
    tracker: Tracker
    run_config: Mapping[str, Any]
    capacity: Resources
    names: Mapping[str, Node]
    planned: Mapping[str, Pointer | None] = field(default_factory=dict)
    pool: Pool | None = None

    @property
    def places(self) -> Places:
        return self.inventory.places

    def make(self, nodes: Sequence[Node]) -> None:
        """Make the nodes; artefacts of them that the plan knew are set aside.

        Those that another process has completed since are taken.

        Args:
            nodes: nodes in a valid order; their other inputs exist.
        """
        # Checks precede any change.
        for node in nodes:
            node.check()
        for node in nodes:
            if self.inventory.existed(node) and self.inventory.folder(node).exists(MANIFEST):
                self.inventory.folder(node).set_aside()
                self.inventory.forget(node)

        def make(node: Node) -> None:
            self._make(node)
            if node.kind == "dataset":
                users = [user for user in nodes if node.key in {used.key for used in user.inputs.values()}]
                check_splits(self.inventory, users)

        run_nodes(nodes, self.capacity, make)

    def _make(self, node: Node) -> None:
        inputs = {role: self.inventory.open(input_node) for role, input_node in node.inputs.items()}
        pool = self.pool or choose_pool(node.num_rows(inputs), node.demand.get("GPU", 0.0), node.asks_model)
        num_parts = self.inventory.num_parts_done(node)
        with (
            _here if pool.here else nullcontext(),
            self.tracker.stage(node.label, {"raydr.key": node.key}) as tracker,
            ExitStack() as stack,
        ):
            # After the lock: waiting for another stage of this process does not count.
            started = time.monotonic()
            making = self._begin(node, stack)
            if isinstance(making, Building):
                say(f"== {node.label} -> {str(making.folder).removeprefix(f'{self.places.root}/')}")
                info = node.make(NodeWork(making, pool, inputs, tracker))
                made = making.finish(info, dict(self.run_config), self.inventory.made_from(node))
                log_made(tracker, made)
                # Rounds, trials and arms have their own pages.
                if "/" not in node.label:
                    self._log_for_comparison(node, made, inputs, tracker)
            if pool.here:
                give_back_memory()
        if isinstance(making, Building):
            seconds = time.monotonic() - started
            taken = StageTime(stage=node.label, seconds=seconds, num_parts_before=num_parts, key=node.key)
            self.places.root.write_sealed(_name(node.label, node.key), taken.model_dump())
            if seconds >= _WORTH_TELLING_S:
                say(f"{node.label} took {duration(seconds)}")
        self.point(node)

    def _log_for_comparison(self, node: Node, made: Artifact, inputs: Mapping[str, Artifact], tracker: Tracker) -> None:
        """Log measures, data and model, by which users compare runs in MLflow."""
        context = {"model": "training", "evaluation": "evaluation"}.get(node.kind)
        data = inputs.get("dataset")
        if context is not None and data is not None:
            for recorder in (tracker, self.tracker):
                recorder.log_dataset(
                    f"{self.run_config.get('name', '')} {data.kind}", data.fingerprint, str(data.folder), context
                )
        if node.kind == "evaluation":
            self.tracker.log_metrics(means(made))
            for system, measures in made.info["means"].items():
                if (model := self.names.get(f"models/{system}")) is not None:
                    split = made.info["split"]
                    self.tracker.log_measures(
                        model.key, {f"{split}/{measure}": value for measure, value in measures.items()}
                    )
        # Models of cross-fitting folds are not served.
        if data is not None and node.label.startswith("train-") and node.kind == "model":
            name = node.label.removeprefix("train-")
            config = RunConfig.parse(dict(self.run_config)).variant(name)
            changed = config.changed_settings().items()
            tracker.log_params({key: value for key, value in changed if key.partition(".")[0] in _OF_A_MODEL})
            if config.tracking.log_models:
                tracker.log_model(made.folder, f"{config.name}-{name}", config.tracking.registered_model)

    def _begin(self, node: Node, stack: ExitStack) -> Artifact | Building:
        """Return the node's place once no other process makes it; hold it until the stack ends."""
        waiting = False
        while True:
            try:
                return stack.enter_context(begin(self.inventory.folder(node), node.identity))
            except BusyError as error:
                if not waiting:
                    say(f"{node.label}: {error}; waiting for it")
                waiting = True
                time.sleep(_LOOK_S)

    def point(self, node: Node) -> None:
        """Point the names of a complete node to it."""
        for name, named in self.names.items():
            if named.key == node.key:
                self.places.point(name, node.kind, node.key, self.planned)


def check_splits(inventory: Inventory, nodes: Sequence[Node]) -> None:
    """Check before any work that existing data sets have the splits that nodes need.

    Raises:
        ConfigError: a split is missing.
    """
    for node in nodes:
        for dataset in node.inputs.values():
            split = node.arguments.get("split")
            if split is None or dataset.kind != "dataset" or inventory.manifest(dataset) is None:
                continue
            check_split(inventory.open(dataset), split, node.label)


def check_split(dataset: Artifact, split: str, label: str) -> None:
    """Check that a data set has a split, without reading it.

    Args:
        dataset: the data set.
        split: name of the split.
        label: label of the node that needs the split.

    Raises:
        ConfigError: the split is missing.
    """
    splits = Dataset(dataset).splits
    if split not in splits:
        raise ConfigError(
            f"{label}: the data set at {dataset.folder} has no split {split!r}; it has {', '.join(splits)}: name one "
            "of these with --split, or in data.train_split, data.dev_split ('' for none) and data.test_splits"
        )


def log_made(tracker: Tracker, artifact: Artifact) -> None:
    """Log the key, place and counters of an artefact."""
    kind = artifact.manifest.identity.kind
    tracker.set_tags({f"raydr.{kind}": artifact.fingerprint, f"raydr.{kind}.path": str(artifact.folder)})
    numbers: dict[str, Any] = {key: value for key, value in artifact.info.items() if isinstance(value, int | float)}
    tracker.log_metrics({f"{kind}/{key}": float(value) for key, value in numbers.items()} | means(artifact))


def means(artifact: Artifact) -> dict[str, float]:
    """Return the means of an evaluation as ``SPLIT/SYSTEM/MEASURE``; empty for other artefacts."""
    return {
        f"{artifact.info['split']}/{system}/{measure}": value
        for system, measures in artifact.info.get("means", {}).items()
        for measure, value in measures.items()
    }


def read_by(nodes: Sequence[Node]) -> list[Node]:
    """Return the inputs of nodes that are not among them."""
    made = {node.key for node in nodes}
    inputs = {input_node.key: input_node for node in nodes for input_node in node.inputs.values()}
    return [node for key, node in inputs.items() if key not in made]


def repair(inventory: Inventory, nodes: Sequence[Node], checksums: bool = True) -> list[Node]:
    """Set aside finished artefacts with a part that was changed or truncated.

    Args:
        inventory: existing artefacts.
        nodes: finished nodes.
        checksums: read all parts; if False, only parts whose version on the object store changed.

    Returns:
        Nodes to make again.
    """
    damaged: dict[str, str] = {}
    calls: list[tuple[Artifact, list[str], str]] = []
    num_rows = 0
    for node in nodes:
        try:
            artifact = inventory.open(node)
            names = artifact.doubtful(checksums)
        except ArtifactError as error:
            damaged[node.key] = str(error)
            continue
        num_rows += sum(artifact.manifest.parts[name].rows for name in names)
        for at in range(0, len(names), _READ_AT_ONCE):
            calls.append((artifact, names[at : at + _READ_AT_ONCE], node.key))
    if calls:
        damaged |= dict(
            damage for damage in choose_pool(num_rows).map(_damage, calls, "checksums") if damage is not None
        )
    for node in nodes:
        if node.key in damaged:
            warn(f"{damaged[node.key]}; {node.label} is made again")
            inventory.folder(node).set_aside()
            inventory.forget(node)
    return [node for node in nodes if node.key in damaged]


def _damage(artifact: Artifact, names: list[str], key: str) -> tuple[str, str] | None:
    """Return the key and the first fault of the parts; None without faults."""
    try:
        artifact.verify(names)
    except ArtifactError as error:
        return key, str(error)
    return None


#: Folder of the files.
TIMES = "times"


class StageTime(Config):
    """Duration of a stage."""

    stage: str
    """Name of the stage."""

    seconds: float
    """Duration of the attempt that finished it."""

    num_parts_before: int = 0
    """Parts of earlier, interrupted attempts, whose duration is unknown."""

    key: str = ""
    """Key that distinguishes stages of the same name."""


def time_of(root: Folder, stage: str, key: str = "") -> StageTime | None:
    """Return the duration of a stage; None if it never finished."""
    name = _name(stage, key)
    return root.read_record(name, StageTime) if root.exists(name) else None


def read_times(root: Folder) -> list[StageTime]:
    """Return the durations of all stages of a folder, by name."""
    return [root.read_record(name, StageTime) for name in root.files(TIMES)]


def _name(stage: str, key: str) -> str:
    return f"{TIMES}/{stage.replace('/', '-')}{'-' + key if key else ''}.json"
