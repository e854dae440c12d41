"""Data: the corpus, the data set, and the data set with noise on purpose."""

from __future__ import annotations

from functools import partial
from typing import Any

from raydr.stages.context import Declaring, of_data
from raydr.stages.declaration import Node, stage
from raydr.stages.inject_noise import inject_noise
from raydr.stages.prepare import VERSION, prepare_corpus, prepare_dataset


@of_data
def corpus(run: Declaring) -> Node:
    """The passages of the reader's files."""
    data = run.of_data.data
    sources, checksums = run.facts.sources(data.reader)
    return Node(
        "corpus",
        "corpus",
        stage(partial(prepare_corpus, reader=data.reader, sources=sources, data=data)),
        {
            "reader": run.facts.content_key(data.reader),
            "part_rows": data.part_rows,
            "sources": sources.by_role("corpus", checksums),
        },
        num_rows=lambda inputs: sources.num_rows(),
    )


@of_data
def prepared(run: Declaring) -> Node:
    """Queries, judgments and the source's own negatives, of all splits."""
    config, data = run.of_data, run.of_data.data
    sources, checksums = run.facts.sources(data.reader)
    subset: dict[str, Any] = {"max_queries": dict(data.max_queries), "seed": config.seed} if data.max_queries else {}
    if data.hold_out:
        subset |= {"hold_out": dict(data.hold_out), "of": data.train_split, "seed": config.seed}
    if data.leaked_queries == "leave_out":
        subset |= {"left_out_of": data.train_split, "queries_of": data.held_out_splits}
    if data.skip_own_id:
        subset["skip_own_id"] = True
    return Node(
        "dataset",
        "dataset",
        stage(partial(prepare_dataset, reader=data.reader, sources=sources, data=data, seed=config.seed), "corpus"),
        {
            "reader": run.facts.content_key(data.reader),
            "part_rows": data.part_rows,
            "sources": sources.by_role("dataset", checksums),
            **subset,
        },
        {"corpus": corpus(run)},
        VERSION,
        num_rows=lambda inputs: sources.num_rows(),
    )


@of_data
def dataset(run: Declaring) -> Node:
    """What is trained on and evaluated: the prepared data set, made noisy on purpose if the config says so."""
    settings = run.of_data.inject_noise
    if settings is None:
        return prepared(run)

    split, seed = run.of_data.data.train_split, run.of_data.seed
    return Node(
        "dataset",
        "inject-noise",
        stage(partial(inject_noise, settings=settings, split=split, seed=seed), "dataset", "corpus"),
        {"noise": settings.model_dump(mode="json"), "split": split, "seed": seed},
        {"dataset": prepared(run), "corpus": corpus(run)},
        num_rows=lambda inputs: inputs["dataset"].rows(f"qrels/{split}"),
    )
