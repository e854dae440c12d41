"""Rates of a worker, as if they had been measured."""

from __future__ import annotations

from raydr.ops.plan.rates import EncodingRates, PairRates, RunRates, SearchRates, TextSample, TrainingRates

PASSAGES = TextSample(mean_tokens=100, padded_tokens=125)
QUERIES = TextSample(mean_tokens=10, padded_tokens=12.5)
ENCODING = EncodingRates(
    passages=PASSAGES, queries=QUERIES, dim=64, num_parameters=1000, num_learning=1000, tokens_per_second=12_500,
    texts_per_second=1000, load_seconds=7, peak_bytes=10**9, device="cpu",
)  # fmt: skip
RATES = RunRates(ENCODING, TrainingRates(0.5, 10**9), SearchRates(1e9, 1e8))
READING = PairRates(
    mean_tokens=80, padded_tokens=100, longest_tokens=150, num_parameters=1000, tokens_per_second=15_000,
    load_seconds=7, peak_bytes=10**9,
)  # fmt: skip
