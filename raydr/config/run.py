"""Config of a run, a strict, typed tree.

A single YAML file describes a run; ``--set train.num_epochs=5`` overrides single values. Unknown keys, wrong types
and values out of range are errors with the key, the value and the allowed values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from pydantic import Field, ValidationError, model_validator

from raydr.component import Config, explain, findings
from raydr.config.files import (
    CONFIGS,
    anchored,
    apply_override,
    located,
    merged,
    read_mapping,
    refuse_data,
    with_anchored_checkpoints,
)
from raydr.config.secrets import refuse_credentials, refuse_unwritable
from raydr.config.sections import JudgeConfig, PlanConfig, RefreshConfig
from raydr.data.config import DataConfig, NoiseInjectionConfig
from raydr.data.inputs import absolute
from raydr.data.parts import PartitionConfig, Scope
from raydr.distributed.cluster import RayConfig
from raydr.errors import ConfigError
from raydr.evaluation.comparison import BenchmarkConfig
from raydr.evaluation.config import FUSED, EvaluateConfig, FuseConfig
from raydr.indexing.config import IndexConfig, RerankConfig, SearchConfig
from raydr.indexing.faiss_backend import check_factory
from raydr.models.config import ModelConfig
from raydr.models.encode_config import EncodeConfig
from raydr.negatives.config import BM25Config, NegativesConfig
from raydr.noise.judges.people import DecisionsReader
from raydr.noise.margins import CrossFitConfig
from raydr.store.identity import flatten
from raydr.tracking.tracker import TrackingConfig
from raydr.training.config import TrainConfig
from raydr.training.ranker_config import RankerConfig

#: Allowed names of runs, variants and systems.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
#: Systems and miners of every run, whose names no variant may take.
_OWN = ("bm25", "source", "trained", "untrained", FUSED)
#: Name of the run's cross-encoder; names of others begin with it.
RANKER = "ranker"


def is_ranker(name: str) -> bool:
    """Return whether a model of this name is a cross-encoder.

    >>> [is_ranker(name) for name in ("ranker", "ranker-bce", "rankers")]
    [True, True, False]
    """
    return name == RANKER or name.startswith(f"{RANKER}-")


def check_retriever(name: str) -> None:
    """Check that a model is not a cross-encoder, which cannot encode single texts.

    Raises:
        ConfigError: the model is a cross-encoder.
    """
    if is_ranker(name):
        raise ConfigError(
            f"{name} is a cross-encoder; expected a retriever: trained, untrained, a variant, or another model's name"
        )


def check_name(name: str, what: str) -> None:
    """Check that a name is a valid file name on any system, within its folder.

    Raises:
        ConfigError: the name is invalid.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r} is no name: expected letters, digits, '.', '_' and '-', beginning with a letter or digit"
        )


#: Config argument of the verbs of the Python API.
AnyConfig: TypeAlias = "RunConfig | str | Path | Mapping[str, Any]"


class RunConfig(Config):
    """Config of a run: its data, models, trainings, evaluation and working folder."""

    name: str = Field(default="raydr", pattern=rf"^{NAME.pattern}$")
    """Name of the run, in MLflow and on pages."""

    workdir: str = "work"
    """Folder of the artefacts, local or an fsspec URL."""

    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of all random draws: splits, noise, batches, negatives, dropout, intervals."""

    data: DataConfig
    inject_noise: NoiseInjectionConfig | None = None
    """Noise to inject into the training split, with the truth kept; none if null."""

    negatives: NegativesConfig | None = None
    """Mining of candidate hard negatives. If null, trainings take the negatives that came with the data."""

    partition: PartitionConfig = PartitionConfig()
    bm25: BM25Config = BM25Config()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    ranker: RankerConfig = RankerConfig()
    encode: EncodeConfig = EncodeConfig()
    index: IndexConfig = IndexConfig()
    search: SearchConfig = SearchConfig()
    rerank: RerankConfig = RerankConfig()
    fuse: FuseConfig | None = None
    """Fusion of runs into the system ``fused``, which ``raydr evaluate`` compares with the others; none if null."""

    evaluate: EvaluateConfig = EvaluateConfig()
    benchmark: BenchmarkConfig = BenchmarkConfig()
    cross_fit: CrossFitConfig = CrossFitConfig()
    judge: JudgeConfig = JudgeConfig()
    refresh: RefreshConfig = RefreshConfig()
    plan: PlanConfig = PlanConfig()
    tracking: TrackingConfig = TrackingConfig()
    ray: RayConfig = RayConfig()
    variants: dict[str, dict[str, Any]] = {}
    """Further trainings to compare: changes to the section ``train``, by name."""

    @model_validator(mode="before")
    @classmethod
    def _no_credentials(cls, settings: Any) -> Any:
        if isinstance(settings, dict):
            refuse_credentials(
                {key: value.model_dump() if isinstance(value, Config) else value for key, value in settings.items()}
            )
        return settings

    @model_validator(mode="after")
    def _two_networks_differ(self) -> RunConfig:
        if self.train.coteaching is not None and self.model.dropout == 0:
            raise ValueError(
                "train.coteaching: the two networks start alike and would stay so with model.dropout 0; set it higher"
            )
        return self

    @model_validator(mode="after")
    def _index_finds_the_best_scores(self) -> RunConfig:
        try:
            check_factory(self.index, self.model.score)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    @model_validator(mode="after")
    def _variants_are_valid(self) -> RunConfig:
        for name in self.variants:
            _check_key("variants", name)
            if is_ranker(name) or name in _OWN:
                taken = f"one of {', '.join(_OWN)}" if name in _OWN else "a cross-encoder (section ranker)"
                raise ValueError(f"variants: {name!r} would be {taken}: take another name")
            with _place(f"variants.{name}"):
                self.variant(name)
        return self

    def variant(self, name: str) -> RunConfig:
        """Return the run with a variant's training; the run itself for any other name."""
        changes = self.variants.get(name)
        if changes is None:
            return self
        train = merged(self.train.model_dump(), changes)
        return self.model_copy(update={"train": TrainConfig.model_validate(train)})

    def scope(self, split: str) -> Scope:
        """Return the scope of searches for a split; for the training split, the scope of its negatives."""
        return self.partition.negatives if split == self.data.train_split else self.partition.search

    @property
    def draws_candidates(self) -> bool:
        """Whether the training draws hard negatives from mined candidates."""
        return self.negatives is not None and self.train.num_hard_negatives > 0

    @property
    def some_training_draws_candidates(self) -> bool:
        """Whether the run's training or a variant draws hard negatives from mined candidates."""
        return any(self.variant(name).draws_candidates for name in ("", *self.variants))

    @model_validator(mode="after")
    def _refresh_is_valid(self) -> RunConfig:
        for name, arm in self.refresh_arms().items():
            for number in range(1, arm.num_rounds + 1):
                with _place(f"refresh, {name}, round {number}"):
                    self.refresh_round(arm, number)
        return self

    def refresh_arms(self) -> dict[str, RefreshConfig]:
        """Return the refreshes by name: the arms of the section, or the section itself as ``refresh``."""
        base = self.refresh.model_dump(exclude={"arms"})
        if not self.refresh.arms:
            return {"refresh": self.refresh}
        arms = {}
        for name, changes in self.refresh.arms.items():
            _check_key("refresh.arms", name)
            with _place(f"refresh.arms.{name}"):
                arms[name] = RefreshConfig.model_validate(merged(base, changes))
        return arms

    def refresh_round(self, arm: RefreshConfig, number: int) -> RunConfig:
        """Return the run of a round, with the round's training and mining.

        Args:
            arm: refresh from :meth:`refresh_arms`.
            number: number of the round, from 1.

        Raises:
            ValueError: the round's changes are no valid settings.
        """
        changes = arm.at(number)
        negatives = merged((self.negatives or NegativesConfig()).model_dump(), changes.negatives)
        train = self.train.model_dump()
        train["num_hard_negatives"] = train["num_hard_negatives"] or arm.num_hard_negatives
        changed = {
            "negatives": NegativesConfig.model_validate(negatives),
            "train": TrainConfig.model_validate(merged(train, changes.train)),
            "ranker": RankerConfig.model_validate(merged(self.ranker.model_dump(), changes.ranker)),
        }
        return self.model_copy(update={**changed, "variants": {}})

    @classmethod
    def of(cls, config: AnyConfig) -> RunConfig:
        """Return the config from a config, a YAML file, the name of a config that comes with raydr, or a nested dict.

        Raises:
            ConfigError: the value is none of these, or the config is wrong.
        """
        if isinstance(config, RunConfig):
            return config
        if isinstance(config, str | Path):
            return cls.load(config)
        if isinstance(config, Mapping):
            return cls.parse(dict(config))
        raise ConfigError(
            f"the config is a {type(config).__name__}; expected a RunConfig, the path of a YAML file, the name of a "
            "config that comes with raydr, or a nested dict"
        )

    @classmethod
    def load(cls, path: str | Path, overrides: list[str] | None = None) -> RunConfig:
        """Read a YAML file, or a config that comes with raydr (``so-codenn``), and apply overrides.

        Args:
            path: local path, or name of a config that comes with raydr.
            overrides: overrides ``key.path=value``; the values are YAML.

        Raises:
            ConfigError: the config is wrong; the message has the file, the key, the value and the allowed values.
        """
        refuse_unwritable(str(path), "the config file", named=True)
        file = located(path, CONFIGS, "config file")
        refuse_data(file)
        raw = read_mapping(file, "config file", "of sections (data, model, train, ...)")
        for override in overrides or []:
            apply_override(raw, override)
        return cls.parse(raw, str(path))

    @classmethod
    def parse(cls, raw: dict[str, Any], where: str = "config") -> RunConfig:
        """Validate a nested dict.

        Raises:
            ConfigError: a setting is wrong; the message has every wrong key with its value.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            raise ConfigError(explain(error, where, cls)) from None

    def from_anywhere(self) -> RunConfig:
        """Return the run with absolute paths, which hold in any folder."""
        settings, reader = with_anchored_checkpoints(self), self.data.reader
        path = getattr(reader, "path", None)
        if path is not None:
            # A reader without a folder reads files of the current folder.
            reader = reader.model_copy(update={"path": anchored(path) if path else absolute("")})
        judges = [
            judge.model_copy(update={"file": absolute(judge.file)})
            if isinstance(judge, DecisionsReader) and judge.file
            else judge
            for judge in settings.judge.judges
        ]
        return settings.model_copy(
            update={
                "workdir": absolute(self.workdir),
                "data": self.data.model_copy(update={"reader": reader}),
                "judge": settings.judge.model_copy(update={"judges": judges}),
            }
        )

    def changed_settings(self) -> dict[str, Any]:
        """Return the settings that differ from their defaults, by dotted key, and all settings of the reader."""
        default = RunConfig.parse({"data": {"reader": self.data.reader}})
        mine, theirs = (flatten(config.model_dump(mode="json")) for config in (self, default))
        absent = object()
        return {
            key: value
            for key, value in mine.items()
            if theirs.get(key, absent) != value or key.startswith("data.reader.")
        }

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _check_key(section: str, name: str) -> None:
    if not NAME.fullmatch(name):
        raise ValueError(f"{section}: {name!r} is not a name of letters, digits, '.', '_' and '-'")


@contextmanager
def _place(where: str) -> Iterator[None]:
    """Add the place of wrong changes to their error, since pydantic knows only the section that they change."""
    try:
        yield
    except ValidationError as error:
        raise ValueError(f"{where}: {'; '.join(findings(error))}") from None
