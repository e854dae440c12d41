"""Rates of a worker, as if they had been measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from raydr.models.config import ModelConfig
from raydr.ops.plan.probes import ModelRates, SearchRates, StepRates, TextRates
from raydr.training.config import TrainConfig

#: A hundredth of a second a passage, a thousandth a query; a tokenising task prepares a thousand a second.
PASSAGES, QUERIES = TextRates(0.01, 0.01, 0.001), TextRates(0.001, 0.001, 0.001)
MODEL = ModelRates({"passage": PASSAGES, "query": QUERIES}, 64, 1000, 1000, "cpu", 10**9, load_seconds=7)
RANKER = ModelRates({"pair": TextRates(1 / 150, 1 / 150, 0.0)}, 1, 1000, 1000, "cpu", 10**9, load_seconds=7)
STEP, RANKER_STEP = StepRates(0.5, 10**9), StepRates(0.25, 2 * 10**9)


@dataclass
class MadeRates:
    """In the place of trials; keeps what it was asked about."""

    model: ModelRates = MODEL
    steps: StepRates = STEP
    ranker_steps: StepRates = RANKER_STEP
    asked: list[tuple[ModelConfig, TrainConfig]] = field(default_factory=list)

    def retriever(self, model: ModelConfig) -> ModelRates:
        return self.model

    def ranker(self) -> ModelRates:
        return RANKER

    def step(self, model: ModelConfig, train: TrainConfig) -> StepRates:
        self.asked.append((model, train))
        return self.steps

    def ranker_step(self) -> StepRates:
        return self.ranker_steps

    def search(self, dim: int) -> SearchRates:
        return SearchRates(1e9, 1e8)

    def with_texts(self, **changed: TextRates) -> MadeRates:
        """With other texts of some kinds."""
        return replace(self, model=replace(self.model, texts=self.model.texts | changed))
