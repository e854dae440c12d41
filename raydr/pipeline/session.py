"""A run of a verb: its config, nodes and resources. Ray and MLflow start only when there is work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from raydr.artefacts import Context, Node
from raydr.artefacts.context import Facts
from raydr.artefacts.places import Places, Pointer
from raydr.config.run import RunConfig
from raydr.console import counted, say
from raydr.distributed.arithmetic import check_encoders
from raydr.distributed.cluster import local_session, ray_session
from raydr.distributed.resources import cluster_capacity
from raydr.pipeline.forecast import check_confirmed, read_forecast
from raydr.pipeline.garbage import Claims, open_claims, remove_unclaimed
from raydr.pipeline.planning import Inventory, check_names, reason, required
from raydr.pipeline.recipe import Recipe
from raydr.pipeline.running import Runner, check_splits, read_by, repair
from raydr.store import Artifact
from raydr.store.building import remove_remains
from raydr.store.identity import fingerprint_of
from raydr.tracking.tracker import NullTracker, Tracker, open_run

#: Resolved config of the last run in a working folder.
CONFIG_FILE = "config.yaml"
#: Kinds that the workers of the section ``encode`` make, if a model is used.
_ENCODED = ("embeddings", "verdicts", "diagnosis", "run", "ranker_scores")
#: Kinds that a command makes without a run in MLflow, whose start takes longer than the work on few rows.
_UNTRACKED = {"corpus", "dataset"}


@dataclass
class Session:
    """The state of a running verb.

    Args:
        config: config of the run.
        again: make the targets again, or move their names.
        dry_run: only list what would be made.
    """

    config: RunConfig
    again: bool = False
    dry_run: bool = False
    _stack: ExitStack = field(default_factory=ExitStack)
    #: Keys made in this session, which are not made twice.
    _made_now: set[str] = field(default_factory=set)
    _idle_gpus_reported: bool = False

    @cached_property
    def places(self) -> Places:
        return Places.of(self.config.workdir)

    @cached_property
    def inventory(self) -> Inventory:
        return Inventory(self.places)

    @cached_property
    def recipe(self) -> Recipe:
        return Recipe(Context(self.config, Facts(self.places), self.config))

    @cached_property
    def _claims(self) -> Claims:
        return self._stack.enter_context(open_claims(self.places))

    @cached_property
    def tracker(self) -> Tracker:
        """MLflow run; starts at first use."""
        config = self.config
        name = f"{config.name}, seed {config.seed}"
        tags = {"raydr.config": fingerprint_of(config.model_dump(mode="json"))}
        tracker = self._stack.enter_context(open_run(config.tracking, name, self.places.root, tags))
        tracker.log_params(config.changed_settings())
        tracker.log_text(config.to_yaml(), CONFIG_FILE)
        return tracker

    def make(
        self, *targets: Node, anew: Sequence[Node] | None = None, moving: bool = False, verified: bool = False
    ) -> list[Artifact]:
        """Make the targets and their missing inputs, after listing them with reasons.

        Args:
            targets: requested nodes.
            anew: nodes that ``again`` makes again; None: the targets.
            moving: names move without a check, since they only show existing artefacts.
            verified: check inputs by their checksums first, and make damaged ones again.

        Returns:
            Artefacts of the targets; empty in a dry run.

        Raises:
            FingerprintError: a name points to another artefact than the requested one.
        """
        wanted = {key: node for target in targets for key, node in {**target.ancestors(), target.key: target}.items()}
        names = {name: node for name, node in self.recipe.names.items() if node.key in wanted}
        if not self.dry_run:
            self._claim(list(wanted.values()))
        planned: dict[str, Pointer | None] = {}
        if not (self.again or self.dry_run or moving):
            planned = check_names(self.places, names)
        again = self._anew(targets if anew is None else anew, names) - self._made_now
        todo = required(self.inventory, targets, again)
        if verified and todo and not self.dry_run:
            checksums = self.config.refresh.check == "checksums"
            if repair(self.inventory, read_by(todo), checksums):
                todo = required(self.inventory, targets, again)
        check_splits(self.inventory, todo)
        self._announce(todo, names, again)
        if self.dry_run:
            return []
        with self.places.root.publish(CONFIG_FILE) as path:
            Path(path).write_text(self.config.to_yaml(), encoding="utf-8")
        if any(node.asks_model and node.kind in _ENCODED for node in todo):
            check_encoders(self.config.encode)
        if todo:
            capacity = cluster_capacity()
            if capacity["GPU"] and local_session() is not None and any(node.asks_model for node in todo):
                self._report_idle_gpus(int(capacity["GPU"]))
            settings = self.config.model_dump(mode="json")
            tracker = NullTracker() if {node.kind for node in todo} <= _UNTRACKED else self.tracker
            Runner(self.inventory, tracker, settings, capacity, names, planned).make(todo)
            self._made_now |= {node.key for node in todo}
        for name, node in names.items():
            if self.inventory.manifest(node) is not None:
                self.places.point(name, node.kind, node.key, planned)
        return [self.inventory.open(target) for target in targets]

    def _claim(self, nodes: Sequence[Node]) -> None:
        """Protect inputs and outputs from garbage collection until the session ends."""
        new = self._claims.add(map(self.inventory.folder, nodes))
        for node in nodes:
            if self.inventory.folder(node) in new:
                remove_remains(self.inventory.folder(node), node.kind)
                self.inventory.forget(node)

    def prune(self, nodes: Iterable[Node]) -> None:
        """Remove artefacts that only other nodes needed, that have no name, and that no other process uses."""
        named = self.places.named_keys()
        old = {
            self.inventory.folder(node): node
            for node in nodes
            if node.temporary and node.key not in named and self.inventory.manifest(node) is not None
        }
        for folder in remove_unclaimed(self.places, old):
            self.inventory.forget(old[folder])
            say(f"removed {old[folder].label} ({folder})")

    def _report_idle_gpus(self, num_gpus: int) -> None:
        config = self.config
        if self._idle_gpus_reported or asks_for_gpus(config) or config.search.device == "cpu":
            return
        self._idle_gpus_reported = True
        wanted = {"train.use_gpu": "true", "encode.gpus_per_actor": "1"}
        # More workers than GPUs would wait forever.
        num_needed = {"train.num_workers": config.train.fewest_workers, "encode.min_actors": config.encode.min_actors}
        wanted |= {name: str(num_gpus) for name, num in num_needed.items() if num > num_gpus}
        options = " ".join(f"--set {name}={value}" for name, value in wanted.items())
        pronoun = "it" if num_gpus == 1 else "them"
        say(f"{counted(num_gpus, 'GPU')} here, but no model runs on {pronoun}: {options}")

    def _anew(self, nodes: Sequence[Node], names: dict[str, Node]) -> set[str]:
        """Return keys of existing artefacts that are made again: none if names move to other settings."""
        existing = {name: pointer for name in names if self.again and (pointer := self.places.pointer(name))}
        if any(pointer.key != names[name].key for name, pointer in existing.items()):
            return set()
        return {node.key for node in nodes} & {pointer.key for pointer in existing.values()}

    def _announce(self, todo: Sequence[Node], names: dict[str, Node], again: set[str]) -> None:
        if todo:
            say(f"working folder: {self.places.root}")
            say(f"{counted(len(todo), 'artefact')} to make:")
        for node in todo:
            # A narrow terminal would cut long reasons in a table.
            say(f"  {node.label}: {reason(self.inventory, node, names, again)}")
        if not todo:
            say("nothing to make: all artefacts exist")
        forecast = read_forecast(self.places.root) if todo else None
        if forecast is not None and not forecast.scaled and (known := forecast.of(todo)).stages:
            say(f"forecast of {len(known.stages)} of them, made from scratch: {known.words()}")
            if not self.dry_run:
                check_confirmed(known, self.config.plan.confirm_above)


def asks_for_gpus(config: RunConfig) -> bool:
    """Return whether a config requests GPUs."""
    return config.train.use_gpu or config.encode.gpus_per_actor > 0 or config.search.device == "cuda"


@contextmanager
def open_session(
    config: RunConfig, again: bool = False, dry_run: bool = False, dashboard: bool = False
) -> Iterator[Session]:
    """Open a session for the duration of the block.

    Args:
        config: config of the run.
        again: make the targets again, or move their names.
        dry_run: only list what would be made.
        dashboard: start a local Ray with its dashboard.
    """
    with ray_session(config.ray, dashboard), ExitStack() as stack:
        # Ray's trainers and trials change the working directory.
        yield Session(config.from_anywhere(), again, dry_run, stack)
