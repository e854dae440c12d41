"""Dev retrieval on an actor of its own, beside training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raydr.models.config import ModelConfig
from raydr.training.config import TrainConfig

if TYPE_CHECKING:
    from raydr.data.schema import SplitTables
    from raydr.training.trainer import State


@dataclass(frozen=True)
class DevJob:
    """What the actor needs to measure weights; picklable.

    Args:
        config: settings of training.
        model: where the network's shape and its tokenizers come from.
        corpus: folder of the corpus.
        dev: tables of the dev split.
        dtype: arithmetic of the encoder.
        seed: of the run; chooses the dev queries.
    """

    config: TrainConfig
    model: ModelConfig
    corpus: str
    dev: SplitTables
    dtype: str
    seed: int


class DevActor:
    """Holds a network that takes on the weights that are to be measured; a Ray actor."""

    def __init__(self, job: DevJob) -> None:
        import torch

        from raydr.data.corpus import Corpus
        from raydr.models.attention import choose_attention
        from raydr.models.dual_encoder import DualEncoder, build_tokenizers
        from raydr.models.precision import torch_dtype
        from raydr.training.dev import DevRetrieval

        device = torch.device("cuda" if job.config.use_gpu else "cpu")
        if device.type == "cpu":
            torch.set_num_threads(max(1, int(job.config.cpus_per_worker)))
        corpus = Corpus.open(job.corpus)
        self.dtype = torch_dtype(job.dtype)
        self.model = DualEncoder.from_config(job.model, job.seed).to(device)
        choose_attention(self.model, device.type, self.dtype)
        self.dev = DevRetrieval(job.dev, corpus, build_tokenizers(job.model), job.config.dev, job.seed)

    def ready(self) -> bool:
        """Answers once the actor runs."""
        return True

    def measure(self, states: list[State]) -> list[float]:
        """The dev measure of each network's weights."""
        values = []
        for state in states:
            self.model.load_state_dict(state)
            values.append(self.dev.measure(self.model, self.dtype))
        return values


class RayValidator:
    """Measures on a Ray actor that training's first process starts; see ``BesideValidator``."""

    def __init__(self, job: DevJob, is_first: bool) -> None:
        import ray

        self.pending: Any = None
        if not is_first:
            return
        needs = {"num_cpus": job.config.cpus_per_worker, "num_gpus": 1 if job.config.use_gpu else 0}
        self.actor: Any = ray.remote(**needs)(DevActor).remote(job)
        self.started = self.actor.ready.remote()

    def ready(self) -> bool:
        """Whether the actor has got its resources and runs; if not, nobody waits for it."""
        import ray

        return bool(ray.wait([self.started], timeout=0)[0])

    def submit(self, states: list[State]) -> None:
        self.pending = self.actor.measure.remote(states)

    def result(self) -> list[float]:
        import ray

        values: list[float] = ray.get(self.pending)
        return values
