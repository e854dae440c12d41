"""Data: the corpus, the data set, and the data set with noise on purpose."""

from __future__ import annotations

from raydr.graph.declaring import Declaring
from raydr.graph.node import Node


def corpus(run: Declaring) -> Node:
    """The passages of the reader's files."""
    from raydr.stages.prepare import prepare_corpus

    data = run.of_data.data
    sources, checksums = run.facts.sources(data.reader)
    return Node(
        "corpus",
        "corpus",
        lambda work: prepare_corpus(work.making, work.pool, reader=data.reader, sources=sources, data=data),
        {
            "reader": data.reader.content_key(),
            "part_rows": data.part_rows,
            "sources": sources.by_role("corpus", checksums),
        },
        num_rows=lambda inputs: sources.num_rows(),
        unit="rows",
    )


def prepared(run: Declaring) -> Node:
    """Queries, judgments and the source's own negatives, of all splits."""
    from raydr.stages.prepare import prepare_dataset

    config, data = run.of_data, run.of_data.data
    sources, checksums = run.facts.sources(data.reader)
    subset = {"max_queries": dict(data.max_queries), "seed": config.seed} if data.max_queries else {}
    return Node(
        "dataset",
        "dataset",
        lambda work: prepare_dataset(
            work.making,
            work.pool,
            work["corpus"],
            reader=data.reader,
            sources=sources,
            data=data,
            seed=config.seed,
        ),
        {
            "reader": data.reader.content_key(),
            "part_rows": data.part_rows,
            "sources": sources.by_role("dataset", checksums),
            **subset,
        },
        {"corpus": corpus(run)},
        num_rows=lambda inputs: sources.num_rows(),
        unit="rows",
    )


def dataset(run: Declaring) -> Node:
    """What is trained on and evaluated: the prepared data set, made noisy on purpose if the config says so."""
    settings = run.of_data.inject_noise
    if settings is None:
        return prepared(run)
    from raydr.stages.inject_noise import inject_noise

    config = run.of_data
    return Node(
        "dataset",
        "inject-noise",
        lambda work: inject_noise(
            work.making,
            work.pool,
            work["dataset"],
            work["corpus"],
            settings=settings,
            split=config.data.train_split,
            seed=config.seed,
        ),
        {"noise": settings.model_dump(mode="json"), "split": config.data.train_split, "seed": config.seed},
        {"dataset": prepared(run), "corpus": corpus(run)},
        num_rows=lambda inputs: inputs["dataset"].rows(f"qrels/{config.data.train_split}"),
        unit="judgments",
    )
