"""Rates of a worker, as if they had been measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raydr.models.config import ModelConfig
from raydr.ops.plan.trials import Rates, Reading, SearchRates, Steps, TermRates
from raydr.training.config import TrainConfig

#: A hundredth of a second a passage, a thousandth a query; a tokenising task prepares a thousand a second.
PASSAGES, QUERIES = Reading(0.001, 0.01), Reading(0.001, 0.001)
MODEL = Rates({"passage": PASSAGES, "query": QUERIES}, 64, 1000, 1000, "cpu", 10**9, load_seconds=7)
RANKER = Rates({"pair": Reading(0.0, 1 / 150, longest=2.0)}, 1, 1000, 1000, "cpu", 10**9, load_seconds=7)
STEP = Steps(0.5, 10**9)


@dataclass
class MadeRates:
    """In the place of trials; keeps what it was asked about."""

    model: Rates = MODEL
    asked: list[tuple[ModelConfig, TrainConfig]] = field(default_factory=list)

    def retriever(self, model: ModelConfig) -> Rates:
        return self.model

    def ranker(self) -> Rates:
        return RANKER

    def steps(self, model: ModelConfig, train: TrainConfig) -> Steps:
        self.asked.append((model, train))
        return STEP

    def search(self, dim: int) -> SearchRates:
        return SearchRates(1e9, 1e8)

    def terms(self) -> TermRates:
        return TermRates(cut_seconds=1e-4, index_seconds=2e-4, term_bytes=320.0)

    def with_texts(self, **changed: Reading) -> MadeRates:
        """With other texts of some kinds."""
        return replace(self, model=replace(self.model, texts=self.model.texts | changed))
