"""What a config leaves open and is found out once: which files a reader reads, with which arithmetic a device computes.

A fact is kept in the working folder under all that it depends on, so that every later command, worker and resume obeys
the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from raydr.data.readers.base import Reader
from raydr.errors import DamagedError
from raydr.models.checkpoint import checkpoint_fingerprint, cross_encoder_fingerprint
from raydr.models.config import Dtype, ModelConfig
from raydr.models.cross_encoder_config import CrossEncoderConfig
from raydr.models.encode_config import EncodeConfig
from raydr.noise.decisions import Decisions, Label
from raydr.noise.judges.people import DecisionsReader
from raydr.runtime.console import warn
from raydr.stages.arithmetic import Arithmetic, choose_device, resolve_arithmetic, resolve_training_dtype
from raydr.stages.choose_pool import choose_pool
from raydr.stages.places import Places
from raydr.stages.sources import Sources, find_sources, source_checksums
from raydr.store.identity import fingerprint_of
from raydr.training.config import TrainConfig

_FACTS = "facts"
T = TypeVar("T")


@dataclass(frozen=True)
class Facts:
    """The facts of a working folder; each is looked up once a session, however many nodes depend on it.

    Args:
        places: where they are kept.
    """

    places: Places
    _known: dict[str, Any] = field(default_factory=dict)

    def checkpoint(self, model: ModelConfig) -> str:
        """What a model starts from: hash of weights and tokenizer."""
        return self._once(model.model_dump_json(), lambda: checkpoint_fingerprint(model))

    def cross_encoder_checkpoint(self, model: CrossEncoderConfig) -> str:
        """As :meth:`checkpoint`, of a cross-encoder."""
        return self._once(model.model_dump_json(), lambda: cross_encoder_fingerprint(model))

    def _once(self, key: str, find: Callable[[], T]) -> T:
        if key not in self._known:
            self._known[key] = find()
        found: T = self._known[key]
        return found

    def sources(self, reader: Reader) -> tuple[Sources, list[str]]:
        """The files of a reader, and the checksum of each.

        A file that has the size and the time of last change that it had is not read again.
        """

        def find() -> tuple[Sources, list[str]]:
            sources = find_sources(reader)
            found = self._find(
                "sources",
                {"reader": reader.model_dump(mode="json"), "versions": sources.versions()},
                lambda: {"checksums": source_checksums(choose_pool(sources.num_rows()), reader, sources)},
            )
            return sources, list(found["checksums"])

        return self._once(reader.model_dump_json(), find)

    def content_key(self, reader: Reader) -> dict[str, Any]:
        """What decides a reader's rows, besides its files."""
        return self._once(f"content {reader.model_dump_json()}", reader.content_key)

    def settled(self, judge: DecisionsReader, split: str) -> dict[Label, bool]:
        """What people have decided of the pairs, or the candidates, of a split: whether each label is wrong.

        Raises:
            DataError: a line of the file is no decision.
        """
        file = judge.decisions(self.places.root.url)
        found = self._once(f"decisions {file}", lambda: Decisions.read(file))
        if found.is_torn:
            warn(f"the last line of {file} has no end and is no decision")
        return found.settled(judge.subject, split)

    def encoding(self, settings: EncodeConfig) -> Arithmetic:
        """How texts are encoded and pairs are scored."""
        device = choose_device(settings)
        found = self._find(
            "encoding",
            {"dtype": settings.dtype, "device": device, "token_budget": settings.token_budget},
            lambda: asdict(resolve_arithmetic(settings, choose_pool(0, settings.gpus_per_actor))),
        )
        return Arithmetic(**found)

    def training_dtype(self, workers: TrainConfig, dtype: Dtype) -> str:
        """The arithmetic of a training."""
        found = self._find(
            "training",
            {"dtype": dtype, "use_gpu": workers.use_gpu},
            lambda: dict(
                zip(
                    ("dtype", "reason"),
                    resolve_training_dtype(choose_pool(0, float(workers.use_gpu)), workers, dtype),
                    strict=True,
                )
            ),
        )
        return str(found["dtype"])

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
