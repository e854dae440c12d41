"""What the declarations of nodes are made with: a config, the facts, and how labels begin."""

from __future__ import annotations

from dataclasses import dataclass, replace

from raydr.config.run import RunConfig
from raydr.graph.facts import Facts
from raydr.graph.node import Resources


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

    def of(self, config: RunConfig, place: str | None = None) -> Declaring:
        """The same data with another config."""
        return replace(self, config=config, place=self.place if place is None else place)

    def label(self, what: str, *of: str) -> str:
        """What a node is called in lists and in MLflow; empty parts are left out."""
        return self.place + "-".join([what, *filter(None, of)])


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
