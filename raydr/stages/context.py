"""What the declarations of nodes are made with: a config, the facts, and how labels begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import wraps

from raydr.config.run import RunConfig
from raydr.stages.declaration import Node, Resources
from raydr.stages.facts import Facts
from raydr.training.training import Training


@dataclass(frozen=True)
class Declaring:
    """One config whose nodes are declared.

    Args:
        config: the run, or a variant, a round or a trial of it.
        facts: of its working folder.
        of_data: the run whose data they all share.
        place: how labels begin, for example ``round-2/``.
    """

    config: RunConfig
    facts: Facts
    of_data: RunConfig
    place: str = ""
    #: Nodes of the data alone, by what declares them.
    data_nodes: dict[str, Node] = field(default_factory=dict, compare=False, repr=False)

    def of(self, config: RunConfig, place: str | None = None) -> Declaring:
        """The same data with another config."""
        return replace(self, config=config, place=self.place if place is None else place)

    def training(self) -> Training:
        """What a training of the config depends on, its arithmetic resolved."""
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

    def label(self, what: str, *of: str) -> str:
        """What a node is called in lists and in MLflow; empty parts are left out."""
        return self.place + "-".join([what, *filter(None, of)])


def of_data(declare: Callable[[Declaring], Node]) -> Callable[[Declaring], Node]:
    """A node of the data alone is declared once, however many others of whichever config are made from it."""

    @wraps(declare)
    def once(run: Declaring) -> Node:
        if declare.__name__ not in run.data_nodes:
            run.data_nodes[declare.__name__] = declare(run)
        return run.data_nodes[declare.__name__]

    return once


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
