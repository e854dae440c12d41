"""``raydr export``: the data set in the formats of other trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from raydr.config.run import RunConfig
    from raydr.store.artifact import Artifact


def export(
    config: RunConfig,
    output: Annotated[str, typer.Argument(help="Folder or file to write.")],
    format: Annotated[Literal["dpr", "beir", "triples"], typer.Option("--format", help="Format to write.")] = "beir",
    negatives: Annotated[
        str, typer.Option("--negatives", help="Folder of a negatives artefact; the data set's own if left out.")
    ] = "",
    fold_whitespace: Annotated[
        bool, typer.Option("--fold-whitespace", help="Turn line breaks and tabs in texts into spaces (dpr, triples).")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Replace what was exported with other settings.")] = False,
) -> Artifact:
    """Write the data set, with mined and judged negatives, as DPR JSON, BEIR or triples."""
    from raydr.component import build
    from raydr.data.writers.base import Writer
    from raydr.graph.places import Places
    from raydr.runtime.cluster import ray_session
    from raydr.runtime.console import say
    from raydr.stages.choose_pool import choose_pool
    from raydr.stages.export import export as write
    from raydr.store.artifact import Artifact, Building, Identity, begin
    from raydr.store.folder import Folder

    places = Places.of(config.workdir)
    noisy = config.inject_noise is not None
    dataset, corpus = places.open("dataset-noisy" if noisy else "dataset", "dataset"), places.open("corpus", "corpus")
    mined = Artifact.open(Folder(negatives).absolute(), "negatives") if negatives else None
    settings: dict[str, object] = {"name": format} | ({"fold_whitespace": True} if fold_whitespace else {})
    writer = build(Writer, settings)
    inputs = {"corpus": corpus.fingerprint, "dataset": dataset.fingerprint}
    inputs |= {"negatives": mined.fingerprint} if mined is not None else {}
    identity = Identity(kind="export", config=writer.model_dump(mode="json"), inputs=inputs)
    target = Folder(output).absolute()
    with ray_session(config.ray), begin(target, identity, again) as making:
        if not isinstance(making, Building):
            say(f"export {target}: already there")
            return making
        pool = choose_pool(dataset.rows() + corpus.rows("passages"))
        return making.finish(write(making, pool, corpus, dataset, mined, writer=writer), config.model_dump(mode="json"))
