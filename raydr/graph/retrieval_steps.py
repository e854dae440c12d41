"""The steps from a trained model to what it retrieves: passage vectors, index, queries, run, evaluation.

Every pipeline that trains several models and compares them is made of these, whoever trains them and why.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from raydr.config.run import RunConfig
from raydr.data.growing_embeddings import GrowingEmbeddings
from raydr.errors import ConfigError
from raydr.graph import stage_calls
from raydr.graph.steps import Resources, Step
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

#: Settings of ``encode``, ``search`` and ``index`` that results depend on.
_ENCODING = {"dtype", "token_budget", "device", "batching"}
_SEARCHING = {"top_k", "nprobe", "ef_search", "refine_factor", "batch_queries"}
_INDEXING = {"factory", "shard_rows", "train_rows"}

#: Makes an artefact in a folder from the folders of what it needs, by role.
Make = Callable[[Folder, dict[str, Folder]], Artifact]


def count_shards(config: RunConfig, corpus: Artifact) -> int:
    """Shards of an index over the corpus."""
    return max(1, math.ceil(corpus.rows("passages") / config.index.shard_rows))


@dataclass
class StepBook:
    """Steps over one data set and its corpus; equal ones are there once.

    Args:
        root: the folder below which they lie.
        dataset: queries and judgments.
        corpus: the passages.
        steps: by key, in an order in which they could run.
    """

    root: Folder
    dataset: Artifact
    corpus: Artifact
    steps: dict[str, Step] = field(default_factory=dict)

    def add(
        self,
        label: str,
        kind: str,
        settings: dict[str, Any],
        needs: dict[str, Step],
        make: Make,
        demand: Resources | None = None,
        **more: Any,
    ) -> Step:
        """The step of these settings, new or there already; ``more`` are fields of :class:`Step`."""
        inputs = {"dataset": self.dataset.fingerprint, "corpus": self.corpus.fingerprint}
        step = Step(label, self.root, kind, {"inputs": inputs, **settings}, needs, make, demand or {"CPU": 1.0}, **more)
        return self.steps.setdefault(step.key, step)

    def index(self, place: str, config: RunConfig, model: Step, prefix: str = "") -> tuple[Step, Step]:
        """The passage vectors of a model, and the index over them.

        Args:
            place: beginning of the labels, for example ``round-1``.
            config: how it is encoded and indexed.
            model: the trained model.
            prefix: put before the names, where several models share the place.
        """
        growing = GrowingEmbeddings()
        passages = self.add(
            f"{place}/{prefix}passages",
            "embeddings",
            encoding(config),
            {"model": model},
            partial(stage_calls.encode_passages, config, self.corpus.folder, growing),
            encoders(config),
            work=self.num_passages(),
            group=model.group,
            temporary=True,
            feed=growing,
        )
        index = self.add(
            f"{place}/{prefix}index",
            "index",
            config.index.fingerprint_settings(include=_INDEXING),
            {"passages": passages},
            partial(stage_calls.index, config, growing),
            {"CPU": float(config.index.cpus_per_task)},
            work=self.num_passages(),
            group=model.group,
            temporary=True,
            follows=frozenset({"passages"}),
        )
        return passages, index

    def queries(self, place: str, split: str, config: RunConfig, model: Step, prefix: str = "") -> Step:
        """The query vectors of a split."""
        return self.add(
            f"{place}/{prefix}queries-{split}",
            "embeddings",
            {"split": split, **encoding(config)},
            {"model": model},
            partial(stage_calls.encode_queries, config, split, self.dataset.folder),
            encoders(config),
            work=self.num_queries(split),
            group=model.group,
            temporary=True,
        )

    def search(self, place: str, split: str, config: RunConfig, index: Step, queries: Step, group: int = 0) -> Step:
        """The run of a split over an index."""
        return self.add(
            f"{place}/run-{split}",
            "run",
            {"split": split, **config.search.fingerprint_settings(include=_SEARCHING)},
            {"index": index, "queries": queries},
            partial(stage_calls.search, config, place),
            self._searchers(config),
            work=self.num_queries(split),
            group=group,
        )

    def _searchers(self, config: RunConfig) -> Resources:
        """All search actors, which must fit at a time: each shard has one. By default they take all CPUs."""
        num_shards = min(count_shards(config, self.corpus), config.search.max_actors or 10**9)
        cpus = config.search.cpus_per_actor
        demand = {"CPU": 1e9 if cpus is None else float(cpus * num_shards)}
        return demand if config.search.device == "cpu" else demand | {"GPU": float(num_shards)}

    def evaluate(
        self, label: str, split: str, config: RunConfig, runs: dict[str, Step], group: int = 0, tables: bool = True
    ) -> Step:
        """The evaluation of runs, by the name of the system."""
        return self.add(
            label,
            "evaluation",
            # The first is what the others are compared with.
            {
                "split": split,
                "seed": config.seed,
                **({"systems": list(runs)} if len(runs) > 1 else {}),
                **config.evaluate.fingerprint_settings(),
            },
            dict(runs),
            partial(stage_calls.evaluate, config, split, self.dataset.folder, self.corpus.folder, tables),
            work=self.num_queries(split),
            group=group,
        )

    def num_passages(self) -> str:
        """In words."""
        return f"{self.corpus.rows('passages'):,} passages"

    def num_queries(self, split: str) -> str:
        """In words.

        Raises:
            ConfigError: the data set has none of that split.
        """
        rows = self.dataset.rows(f"queries/{split}")
        if not rows:
            splits = sorted({name.split("/")[1] for name in self.dataset.parts("queries")})
            raise ConfigError(
                f"the data set at {self.dataset.folder} has no queries of split {split!r}; it has {', '.join(splits)}"
            )
        return f"{rows:,} queries"


def encoding(config: RunConfig) -> dict[str, Any]:
    """The settings that vectors and scores depend on."""
    return config.encode.fingerprint_settings(include=_ENCODING)


def encoders(config: RunConfig) -> Resources:
    """What encoding and judging cannot do without."""
    settings = config.encode
    return {
        "CPU": settings.min_actors * settings.cpus_per_actor + settings.cpus_per_tokenizer,
        "GPU": settings.min_actors * settings.gpus_per_actor,
    }


def trainers(config: RunConfig) -> Resources:
    """What training cannot do without."""
    settings = config.train
    fewest = settings.fewest_workers
    return {"CPU": fewest * settings.cpus_per_worker, "GPU": float(fewest if settings.use_gpu else 0)}
