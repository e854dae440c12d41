"""``raydr export``: the data set in the formats of other trainers, or a model with its card."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from raydr.component import build
from raydr.config.run import RunConfig
from raydr.data.writers.base import Writer
from raydr.errors import ConfigError
from raydr.ops.model_export import export_model
from raydr.runtime.cluster import ray_session
from raydr.runtime.console import say
from raydr.stages.choose_pool import choose_pool
from raydr.stages.export import export as write
from raydr.stages.places import Places
from raydr.store.artifact import Artifact, Building, begin
from raydr.store.folder import Folder
from raydr.store.identity import Identity
from raydr.store.manifest import MANIFEST
from raydr.verbs.command import takes_config


@takes_config
def export(
    config: RunConfig,
    output: Annotated[str, typer.Argument()],
    format: Literal["dpr", "beir", "triples", "sentence-transformers"] = "beir",
    negatives: str = "",
    dataset: str = "",
    fold_whitespace: bool = False,
    shape: Literal["auto", "pairs", "triplets", "lists", "labelled"] | None = None,
    num_negatives: Annotated[int | None, typer.Option(min=1)] = None,
    model: str = "",
    again: bool = False,
) -> Artifact:
    """Write the data set, with mined and judged negatives, for other trainers; or a model, ready for the hub.

    Args:
        output: folder or file to write.
        format: format to write.
        negatives: name or folder of mined or judged negatives; the data set's own if left out.
        dataset: name or folder of a data set in place of the run's, e.g. dataset-npc, which raydr judge has made.
        fold_whitespace: turn line breaks and tabs in texts into spaces (dpr, triples).
        shape: what a row of sentence-transformers is; triplets where there are negatives, else pairs, if left out.
        num_negatives: columns of negatives in a row of lists; 1 if left out.
        model: a model of the run in place of the data set, with a model card.
        again: replace what was exported with other settings.
    """
    places = Places.of(config.workdir)
    if model:
        if negatives or dataset or shape or num_negatives or fold_whitespace:
            raise ConfigError("export --model writes a model: the options of data sets do not go with it")
        return export_model(places, model, Folder(output).absolute(), again)
    noisy = config.inject_noise is not None
    corpus = places.open("corpus", "corpus")
    own = "dataset-noisy" if noisy else "dataset"
    data = _open(places, dataset or own, "dataset")
    mined = _open(places, negatives, "negatives") if negatives else None
    given = {"fold_whitespace": fold_whitespace or None, "shape": shape, "num_negatives": num_negatives}
    writer = build(Writer, {"name": format, **{key: value for key, value in given.items() if value is not None}})
    inputs = {"corpus": corpus.fingerprint, "dataset": data.fingerprint}
    inputs |= {"negatives": mined.fingerprint} if mined is not None else {}
    identity = Identity(kind="export", config=writer.model_dump(mode="json"), inputs=inputs)
    target = Folder(output).absolute()
    with ray_session(config.ray), begin(target, identity, again) as making:
        if not isinstance(making, Building):
            say(f"export {target}: already there")
            return making
        pool = choose_pool(data.rows() + corpus.rows("passages"))
        return making.finish(write(making, pool, corpus, data, mined, writer=writer), config.model_dump(mode="json"))


def _open(places: Places, given: str, kind: str) -> Artifact:
    """An artefact by its name in the working folder, or by its own folder."""
    folder = Folder(given).absolute()
    if places.pointer(given) is None and folder.exists(MANIFEST):
        return Artifact.open(folder, kind)
    return places.open(given, kind)
