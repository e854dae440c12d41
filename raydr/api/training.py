"""Training and evaluation of a retriever in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from raydr.api.calls import call_config, call_session, is_config, refuse_options, refuse_pair_options
from raydr.artefacts.declaration import Existing
from raydr.artefacts.evaluation import show
from raydr.artefacts.places import BM25, TRAINED, UNTRAINED, Places
from raydr.config.run import AnyConfig, RunConfig
from raydr.console import only_warnings
from raydr.data.dataset import Dataset
from raydr.data.pairs_in_memory import Pairs
from raydr.errors import ConfigError
from raydr.ops.export import export_model
from raydr.pipeline.session import Session
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder
from raydr.verbs import evaluation as evaluate_verb
from raydr.verbs import training as train_verb
from raydr.verbs.evaluation import Evaluations

if TYPE_CHECKING:
    import pandas as pd
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Model:
    """A trained retriever.

    Args:
        config: config of its run; ``config.to_yaml()`` repeats it on the command line.
        artifact: files of the model.
        name: name of the model in the working folder.
    """

    config: RunConfig = field(repr=False)
    artifact: Artifact = field(repr=False)
    name: str = TRAINED

    @property
    def folder(self) -> str:
        """Local folder of the model's files, which sentence-transformers opens."""
        return str(self.artifact.local_folder())

    def __fspath__(self) -> str:
        """Return the folder: functions that take a checkpoint take the model."""
        return self.folder

    def sentence_transformer(self) -> SentenceTransformer:
        """Return the model as a ``SentenceTransformer``.

        Raises:
            ConfigError: the model is a ranker.
        """
        self._check_retriever()
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(self.folder)

    def save(self, folder: str | Path) -> str:
        """Write the model into a folder, with a card of its training and measures.

        Returns:
            Path of the folder.

        Raises:
            ConfigError: the model is a ranker.
        """
        self._check_retriever()
        places = Places.of(self.config.workdir)
        places.point(f"models/{self.name}", self.artifact.manifest.identity.kind, self.artifact.fingerprint)
        with only_warnings():
            return str(export_model(places, self.name, Folder(str(folder)).absolute(), again=True).folder)

    def evaluate(
        self, pairs: Pairs | None = None, *, workdir: str | Path | None = None, verbose: bool = False
    ) -> pd.DataFrame:
        """Evaluate BM25 and the model, with intervals; without ``pairs`` the untrained checkpoint too.

        Args:
            pairs: queries and passages, as in :func:`evaluate`. None: the held-out split, searched in the whole
                training corpus.
            workdir, verbose: arguments of :func:`evaluate`.

        Returns:
            A row for each split, system and measure: ``mean``, interval ``low`` and ``high``, and ``num_queries``.

        Raises:
            ConfigError: the model is a ranker, or no split was held out.
        """
        self._check_retriever()
        if pairs is not None:
            measured = evaluate(pairs, model=self.folder, workdir=workdir, verbose=verbose)
            return measured.replace({"system": {UNTRAINED: self.name}})
        with call_session(self.config, verbose) as session:
            recipe, name, splits = session.recipe, f"models/{self.name}", self.config.data.test_splits
            dataset, existing = recipe.dataset(), session.inventory
            if existing.manifest(dataset) and not {*splits} & {*Dataset(existing.open(dataset)).splits}:
                raise ConfigError("no test split was held out: train on more pairs, or evaluate on pairs that you pass")
            # The files of this model: options of the training may differ from the config.
            recipe.trainings[self.name] = recipe.named(name, Existing.of(self.artifact, self.name))
            return _measured(session, splits, [BM25, UNTRAINED, self.name])

    def _check_retriever(self) -> None:
        if self.artifact.kind != "model":
            raise ConfigError(
                f"{self.name} is a ranker, no retriever: open {self.artifact.folder} as a CrossEncoder of "
                "sentence_transformers; raydr.rerank and raydr.evaluate use it in its run"
            )


@overload
def train(
    pairs: AnyConfig, *, name: str = ..., negatives: str = ..., dataset: str = ..., again: bool = ...
) -> Model: ...
@overload
def train(
    pairs: AnyConfig, *, name: str = ..., negatives: str = ..., dataset: str = ..., again: bool = ..., dry_run: bool
) -> Model | None: ...
@overload
def train(
    pairs: Pairs,
    *,
    loss: str | Mapping[str, Any] = ...,
    model: str | PathLike[str] | None = ...,
    num_epochs: int | None = ...,
    batch_size: int | None = ...,
    learning_rate: float | None = ...,
    seed: int = ...,
    workdir: str | Path | None = ...,
    settings: Mapping[str, Any] | None = ...,
    verbose: bool = ...,
) -> Model: ...
def train(
    pairs: Pairs | AnyConfig,
    *,
    loss: str | Mapping[str, Any] = "npc",
    model: str | PathLike[str] | None = None,
    num_epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    verbose: bool = False,
    **options: Any,
) -> Model | None:
    """Train a retriever on noisy pairs, or the model of a config.

    Args:
        pairs: pairs as in :func:`find_noise`; several splits as a mapping (``train``, ``dev``, ``test``) or
            ``datasets.DatasetDict``. Missing dev and test splits are held out, a tenth of the queries each. A config
            (a :class:`RunConfig`, its path or its content) runs ``raydr train`` with its options, for example
            ``name="ranker"``, and prints what the command prints.
        loss: ``npc`` detects and corrects mismatched pairs; ``nce`` trusts all; for others, with settings as a mapping,
            see docs/methods.md.
        model: checkpoint to start from, as in :func:`find_noise`.
        num_epochs, batch_size, learning_rate: training settings; None: those of ``raydr prepare FILE``.
        seed, workdir, settings, verbose: arguments of :func:`find_noise`.

    Returns:
        The model; None in a dry run of a config.

    Raises:
        DataError: a row or column is invalid; the message names it.
        ConfigError: a setting is invalid, or an option is of pairs alone, or of configs alone.
    """
    changed = {"num_epochs": num_epochs, "batch_size": batch_size}
    common = {"model": model, "seed": seed, "workdir": workdir, "settings": settings}
    if is_config(pairs):
        refuse_pair_options("train", {"loss": loss, "learning_rate": learning_rate, **changed, **common})
        config = RunConfig.of(pairs).from_anywhere()
        made = train_verb.train(config, **options)
        return Model(config, made[0], str(options.get("name", TRAINED))) if made else None
    refuse_options("train", options)
    section: dict[str, Any] = {"loss": loss, **{key: value for key, value in changed.items() if value is not None}}
    if learning_rate is not None:
        section["optimizer"] = {"learning_rate": learning_rate}
    sections = {"train": section}
    config = call_config(cast("Pairs", pairs), sections=sections, hold_out=True, **common)  # type: ignore[arg-type]
    with call_session(config, verbose, cast("Pairs", pairs)) as session:
        [trained] = session.make(session.recipe.trained(), moving=True)
        return Model(session.config, trained)


@overload
def evaluate(pairs: RunConfig, /, *arguments: Any, **options: Any) -> Evaluations: ...
@overload
def evaluate(
    pairs: Pairs,
    *,
    model: str | PathLike[str] | None = ...,
    seed: int = ...,
    workdir: str | Path | None = ...,
    settings: Mapping[str, Any] | None = ...,
    verbose: bool = ...,
) -> pd.DataFrame: ...
def evaluate(
    pairs: Pairs | RunConfig,
    *arguments: Any,
    model: str | PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    verbose: bool = False,
    **options: Any,
) -> pd.DataFrame | Evaluations:
    """Evaluate an untrained model and BM25: each query is searched among the passages of all pairs.

    Args:
        pairs: pairs as in :func:`find_noise`; of data with test splits, these are measured. A :class:`RunConfig` runs
            ``raydr evaluate`` with its options.
        model: model as in :func:`find_noise`.
        seed, workdir, settings, verbose: arguments of :func:`find_noise`.

    Returns:
        As in :meth:`Model.evaluate`; the model is the system ``untrained``.
    """
    if is_config(pairs):
        refuse_pair_options("evaluate", {"model": model, "seed": seed, "workdir": workdir, "settings": settings})
        return evaluate_verb.evaluate(pairs, *arguments, **options)
    refuse_options("evaluate", options, arguments)
    config = call_config(
        cast("Pairs", pairs), model=model, seed=seed, workdir=workdir, settings=settings, on_tests=True
    )
    with call_session(config, verbose, cast("Pairs", pairs)) as session:
        return _measured(session, config.data.test_splits or [config.data.train_split], [BM25, UNTRAINED])


def _measured(session: Session, splits: Sequence[str], systems: Sequence[str]) -> pd.DataFrame:
    """Return a row for each split, system and measure; print tables and warnings as the command line does."""
    recipe = session.recipe
    made = session.make(*(recipe.evaluation(split, systems) for split in splits), moving=True)
    for evaluation in made:
        show(evaluation)
    return Evaluations(made).to_pandas()
