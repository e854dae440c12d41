"""The context in which nodes are declared: a config, the facts of a working folder, and the prefix of labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

from raydr.artefacts.declaration import Node, Resources
from raydr.artefacts.places import Places
from raydr.artefacts.sources import Sources, find_sources, source_checksums
from raydr.config.run import RunConfig
from raydr.console import warn
from raydr.data.readers.base import Reader
from raydr.distributed.arithmetic import Arithmetic, choose_device, resolve_arithmetic, resolve_training_dtype
from raydr.distributed.choose_pool import choose_pool
from raydr.errors import DamagedError
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.models.config import CrossEncoderConfig, Dtype, ModelConfig
from raydr.models.encode_config import EncodeConfig
from raydr.noise.decisions import Decisions, Label
from raydr.noise.judges.people import DecisionsReader
from raydr.store.identity import fingerprint_of
from raydr.training.config import TrainConfig
from raydr.training.training import Training


@dataclass(frozen=True)
class Context:
    """A config, with the other inputs of the declarations of nodes.

    Args:
        config: config of the run, or of a variant, a round or a trial.
        facts: facts of its working folder.
        of_data: config of the run, whose data its variants, rounds and trials share.
        place: prefix of labels, for example ``round-2/``.
    """

    config: RunConfig
    facts: Facts
    of_data: RunConfig
    place: str = ""
    #: Nodes of the data, by the name of the function that declares them.
    data_nodes: dict[str, Node] = field(default_factory=dict, compare=False, repr=False)

    def of(self, config: RunConfig, place: str | None = None) -> Context:
        """Return a context with the same data and another config."""
        return replace(self, config=config, place=self.place if place is None else place)

    def training(self) -> Training:
        """Return the training of the config, with its resolved dtype."""
        config = self.config
        dtype = self.facts.training_dtype(config.train, config.train.dtype)
        return Training(
            model=config.model,
            train=config.train.resolved().model_copy(update={"dtype": dtype}),
            train_split=config.data.train_split,
            dev_split=config.data.dev_split,
            seed=config.seed,
            scope=config.partition.negatives,
        )

    def scoring(self) -> dict[str, Any]:
        """Return the arguments of nodes whose workers score with a model."""
        settings = self.config.encode
        return {"settings": settings, "arithmetic": self.facts.encoding(settings), "demand": encoders(self.config)}

    def label(self, what: str, *of: str) -> str:
        """Return the display name of a node; empty parts are left out."""
        return self.place + "-".join([what, *filter(None, of)])


def of_data(declare: Callable[[Context], Node]) -> Callable[[Context], Node]:
    """Decorate a declaration that depends on the data alone: all configs of a run share its node."""

    @wraps(declare)
    def once(context: Context) -> Node:
        if declare.__name__ not in context.data_nodes:
            context.data_nodes[declare.__name__] = declare(context)
        return context.data_nodes[declare.__name__]

    return once


def encoders(config: RunConfig) -> Resources:
    """Return the minimum of resources for encoding and judging."""
    settings = config.encode
    return {
        "CPU": settings.min_actors * settings.cpus_per_actor + settings.cpus_per_tokenizer,
        "GPU": settings.min_actors * settings.gpus_per_actor,
    }


def trainers(config: RunConfig) -> Resources:
    """Return the minimum of resources for training."""
    settings = config.train
    fewest = settings.fewest_workers
    return {"CPU": fewest * settings.cpus_per_worker, "GPU": float(fewest if settings.use_gpu else 0)}


_FACTS = "facts"
T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """Facts of a working folder, such as checksums of files; each is computed once per session.

    Args:
        places: folder that stores them.
    """

    places: Places
    _known: dict[str, Any] = field(default_factory=dict)

    def checkpoint(self, model: ModelConfig | CrossEncoderConfig) -> str:
        """Return the hash of a checkpoint's weights and tokenizer."""
        return self._once(model.model_dump_json(), lambda: checkpoint_fingerprint(model))

    def _once(self, key: str, find: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = find()
        fact: T = self._known[key]
        return fact

    def sources(self, reader: Reader) -> tuple[Sources, list[str]]:
        """Return the sources of a reader and their checksums.

        Files with unchanged size and time of change are not read again.
        """

        def find() -> tuple[Sources, list[str]]:
            sources = find_sources(reader)
            facts = self._find(
                "sources",
                {"reader": reader.model_dump(mode="json"), "versions": sources.versions()},
                lambda: {"checksums": source_checksums(choose_pool(sources.num_rows()), reader, sources)},
            )
            return sources, list(facts["checksums"])

        return self._once(reader.model_dump_json(), find)

    def content_key(self, reader: Reader) -> dict[str, Any]:
        """Return the settings of a reader that determine its rows."""
        return self._once(f"content {reader.model_dump_json()}", reader.content_key) | reader.own_code

    def settled(self, judge: DecisionsReader, split: str) -> dict[Label, bool]:
        """Return the decisions of people on labels of a split: whether each label is wrong.

        Raises:
            DataError: a line of the file is no decision.
        """
        file = judge.decisions(self.places.root.url)
        decisions = self._once(f"decisions {file}", lambda: Decisions.read(file))
        if decisions.is_torn:
            warn(f"the last line of {file} has no end and is no decision")
        return judge.settled(decisions, split)

    def encoding(self, settings: EncodeConfig) -> Arithmetic:
        """Return device and dtype of encoding and scoring."""
        device = choose_device(settings)
        facts = self._find(
            "encoding",
            {"dtype": settings.dtype, "device": device, "token_budget": settings.token_budget},
            lambda: asdict(resolve_arithmetic(settings, choose_pool(0, settings.gpus_per_actor))),
        )
        return Arithmetic(**facts)

    def training_dtype(self, workers: TrainConfig, dtype: Dtype) -> str:
        """Return the dtype of a training."""

        def find() -> dict[str, Any]:
            resolved, reason = resolve_training_dtype(choose_pool(0, float(workers.use_gpu)), workers, dtype)
            return {"dtype": resolved, "reason": reason}

        facts = self._find("training", {"dtype": dtype, "use_gpu": workers.use_gpu}, find)
        return str(facts["dtype"])

    def _find(self, what: str, depends_on: Mapping[str, Any], find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        name = f"{_FACTS}/{what}-{fingerprint_of(depends_on)[:16]}.json"

        def look() -> dict[str, Any]:
            root = self.places.root
            if root.exists(name):
                try:
                    return dict(root.read_sealed(name)["value"])
                except DamagedError as error:
                    warn(f"{error}; it is found out anew")
            root.write_sealed(name, {"value": find(), "depends_on": depends_on})
            return dict(root.read_sealed(name)["value"])

        return self._once(name, look)
