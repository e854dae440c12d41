"""Training and measuring a retriever from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from raydr.api.calls import call_config, is_config, refuse_options
from raydr.artefacts.places import BM25, TRAINED, UNTRAINED, Places
from raydr.config.run import RunConfig
from raydr.data.pairs_in_memory import Pairs
from raydr.ops.export import export_model
from raydr.pipeline.session import Session, open_session
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
        config: of its run; ``config.to_yaml()`` is the same run for the command line.
        artifact: its files.
    """

    config: RunConfig
    artifact: Artifact = field(repr=False)

    @property
    def folder(self) -> str:
        """A local folder with the model's files, which sentence-transformers opens."""
        return str(self.artifact.local_folder())

    def sentence_transformer(self) -> SentenceTransformer:
        """The model as a ``SentenceTransformer``."""
        from sentence_transformers import SentenceTransformer

        return SentenceTransformer(self.folder)

    def save(self, folder: str | Path) -> str:
        """Write the model into a folder, with a card that says how it was trained and what it reaches.

        Returns:
            The folder.
        """
        places = Places.of(self.config.workdir)
        places.point(f"models/{TRAINED}", self.artifact.manifest.identity.kind, self.artifact.fingerprint)
        return str(export_model(places, TRAINED, Folder(str(folder)).absolute(), again=True).folder)

    def evaluate(self, pairs: Pairs | None = None, *, workdir: str | Path | None = None) -> pd.DataFrame:
        """Measures of BM25, the checkpoint before training and the model, with intervals.

        Args:
            pairs: what is searched for, and where: as :func:`evaluate` takes them. None: the split that the training
                has held out, beside the whole corpus of the training.
            workdir: as in :func:`evaluate`.

        Returns:
            A row for each split, system and measure: ``mean``, the ends ``low`` and ``high`` of its interval, and
            ``num_queries``.
        """
        if pairs is not None:
            return evaluate(pairs, model=self.folder, workdir=workdir)
        with open_session(self.config) as session:
            return _measured(session, self.config.data.test_splits, [BM25, UNTRAINED, TRAINED])


@overload
def train(pairs: RunConfig, /, *arguments: Any, **options: Any) -> list[Artifact]: ...
@overload
def train(
    pairs: Pairs,
    *,
    loss: str | Mapping[str, Any] = ...,
    model: str | Path | None = ...,
    num_epochs: int | None = ...,
    batch_size: int | None = ...,
    learning_rate: float | None = ...,
    seed: int = ...,
    workdir: str | Path | None = ...,
    settings: Mapping[str, Any] | None = ...,
) -> Model: ...
def train(
    pairs: Pairs | RunConfig,
    *arguments: Any,
    loss: str | Mapping[str, Any] = "npc",
    model: str | Path | None = None,
    num_epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> Model | list[Artifact]:
    """Train a retriever on pairs, through their noise.

    Args:
        pairs: as in :func:`find_noise`; of several splits as a mapping (``train``, ``dev``, ``test``) or a
            ``datasets.DatasetDict``. What is missing of dev and test, a tenth of the queries each, is held out. Or a
            :class:`RunConfig`: then this is ``raydr train``, with its options.
        loss: ``npc`` finds mismatched pairs first and corrects them; ``nce`` trusts all; others, with their settings as
            a mapping, are in docs/methods.md.
        model: that is gone on from, as in :func:`find_noise`.
        num_epochs, batch_size, learning_rate: of the training; those of ``raydr prepare FILE`` if None.
        seed, workdir, settings: as in :func:`find_noise`.

    Raises:
        DataError: a row or a column cannot be used; names both.
        ConfigError: a setting is wrong.
    """
    if is_config(pairs):
        return train_verb.train(pairs, *arguments, **options)
    refuse_options("train", arguments, options)
    changed = {"num_epochs": num_epochs, "batch_size": batch_size}
    section: dict[str, Any] = {"loss": loss, **{key: value for key, value in changed.items() if value is not None}}
    if learning_rate is not None:
        section["optimizer"] = {"learning_rate": learning_rate}
    sections = {"train": section}
    common = {"model": model, "seed": seed, "workdir": workdir, "settings": settings}
    config = call_config(cast("Pairs", pairs), sections=sections, hold_out=True, **common)  # type: ignore[arg-type]
    with open_session(config) as session:
        [made] = session.make(session.recipe.trained(), moving=True)
        return Model(config, made)


@overload
def evaluate(pairs: RunConfig, /, *arguments: Any, **options: Any) -> Evaluations: ...
@overload
def evaluate(
    pairs: Pairs,
    *,
    model: str | Path | None = ...,
    seed: int = ...,
    workdir: str | Path | None = ...,
    settings: Mapping[str, Any] | None = ...,
) -> pd.DataFrame: ...
def evaluate(
    pairs: Pairs | RunConfig,
    *arguments: Any,
    model: str | Path | None = None,
    seed: int = 0,
    workdir: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    **options: Any,
) -> pd.DataFrame | Evaluations:
    """Measure a model, as it is, beside BM25: each query is searched among the passages of all pairs.

    Args:
        pairs: as in :func:`find_noise`. Or a :class:`RunConfig`: then this is ``raydr evaluate``, with its options.
        model: as in :func:`find_noise`.
        seed, workdir, settings: as in :func:`find_noise`.

    Returns:
        As :meth:`Model.evaluate`; the model is the system ``untrained``.
    """
    if is_config(pairs):
        return evaluate_verb.evaluate(pairs, *arguments, **options)
    refuse_options("evaluate", arguments, options)
    config = call_config(cast("Pairs", pairs), model=model, seed=seed, workdir=workdir, settings=settings)
    with open_session(config) as session:
        return _measured(session, [config.data.train_split], [BM25, UNTRAINED])


def _measured(session: Session, splits: Sequence[str], systems: Sequence[str]) -> pd.DataFrame:
    """A row for each split, system and measure."""
    recipe = session.recipe
    targets = [recipe.evaluation(split, systems) for split in splits]
    return Evaluations(session.make(*targets, moving=True)).to_pandas()
