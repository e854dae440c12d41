"""Gradient caching against its ideal cost, and against sentence-transformers' cached loss: pairs a second.

The ideal is a step of the whole batch and one more forward pass without activations: every text is encoded once for the
scores and once for the gradients. Tokenising is left out; the clock covers forward, loss, backward and the optimiser.

    python -m benchmarks.gradient_cache --batch-size 512 --layers 2 --cache-tokens 8192
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from benchmarks.texts import load_texts
from benchmarks.timing import interleave, print_rates, timed, write_report
from raydr.models.backbone import choose_attention
from raydr.models.batching import pad_in_groups
from raydr.models.config import ModelConfig, Side, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.models.tokens import Tokens
from raydr.training.batches import GROUP_OVERHEAD, Batch
from raydr.training.config import TrainConfig
from raydr.training.learner import Learner
from raydr.training.step_clock import StepClock
from raydr.training.tiles import loss_in_tiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="BEIR corpus.jsonl[.gz]; made texts if left out")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--cache-tokens", type=int, default=8192)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--query-length", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=128)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    passages = load_texts(arguments.corpus, arguments.batch_size)
    queries = [" ".join(text.split()[:10]) for text in passages]
    dtype, _ = resolve_dtype(arguments.dtype, arguments.device)
    config = ModelConfig(
        num_layers=arguments.layers,
        dropout=0.0,
        query=SideConfig(max_length=arguments.query_length),
        passage=SideConfig(max_length=arguments.passage_length),
    )
    tokenizers = build_tokenizers(config)
    tokens: dict[Side, Tokens] = {
        "query": tokenizers["query"](None, queries), "passage": tokenizers["passage"](None, passages)
    }  # fmt: skip
    plain = TrainConfig(batch_size=len(queries))
    whole, cached = (
        Step(config, tokens, tokenizers["passage"].pad_id, dtype, arguments.device, train)
        for train in (plain, plain.model_copy(update={"cache_tokens": arguments.cache_tokens}))
    )
    steps: dict[str, Callable[[], object]] = {"whole batch": whole, "cached": cached, "forward alone": whole.forward}
    theirs = cached_sentence_transformers_step(config, queries, passages, arguments.device, arguments.cache_tokens)
    steps["sentence-transformers, cached"] = theirs
    for step in steps.values():
        step()
    rates = interleave({name: rate(step, len(queries)) for name, step in steps.items()}, arguments.repeats)
    print(
        f"batch {len(queries)}, {arguments.layers} layers, {dtype} (sentence-transformers: float32), "
        f"{arguments.threads} threads on {arguments.device}, pieces of {arguments.cache_tokens:,} tokens, "
        f"medians of {arguments.repeats} interleaved rounds"
    )
    print_rates(rates, "pairs", "whole batch")
    seconds = {name: len(queries) / statistics.median(values) for name, values in rates.items()}
    ideal = seconds["whole batch"] + seconds["forward alone"]
    print(f"cached: {seconds['cached']:.2f} s, {seconds['cached'] / ideal:.2f}x the ideal of {ideal:.2f} s")
    write_report(
        arguments.json, "gradient_cache", {**vars(arguments), "resolved_dtype": dtype},
        {"pairs_per_second": rates, "over_ideal": seconds["cached"] / ideal},
    )  # fmt: skip


def rate(step: Callable[[], object], num_pairs: int) -> Callable[[], float]:
    return lambda: num_pairs / timed(step)


class Step:
    """raydr's step on one batch, whole or in pieces.

    Args:
        config: of the model.
        tokens: of as many queries as passages.
        pad_id: of its tokenizer.
        dtype: of the forward pass.
        device: where it is.
        train: batch size, loss and pieces.
    """

    def __init__(
        self,
        config: ModelConfig,
        tokens: Mapping[Side, Tokens],
        pad_id: int,
        dtype: str,
        device: str,
        train: TrainConfig,
    ) -> None:
        model = DualEncoder.from_config(config).to(device).train()
        choose_attention(model, torch.device(device).type, torch_dtype(dtype))
        self.train = train
        self.learner = Learner(model, model, self.train, torch_dtype(dtype), 1000, StepClock(torch.device("cpu")))
        if train.loss.needs_teacher:
            self.learner.start_teacher()
        overhead = GROUP_OVERHEAD[torch.device(device).type]
        padded = {side: pad_in_groups(one, pad_id, overhead, train.cache_tokens) for side, one in tokens.items()}
        rows = torch.arange(tokens["query"].num_rows)
        hashes = rows + 1
        batch = Batch(rows.numpy(), padded["query"], padded["passage"], hashes, hashes[:, None], None, 0)
        self.batch = batch.to(torch.device(device))

    def __call__(self) -> float:
        """Take a step; the loss before it."""
        view = self.learner.encode(self.batch)
        tile = self.train.tile_queries
        loss = loss_in_tiles(view, self.train.loss, 0, len(self.batch.query_rows), tile).per_query_Q.mean()
        self.learner.backward(loss, quiet=False)
        self.learner.optimization.clip()
        self.learner.step()
        # Waits for the device.
        return float(loss)

    @torch.no_grad()
    def forward(self) -> None:
        """Encode without activations."""
        dtype = self.learner.dtype
        with torch.autocast(self.learner.device.type, dtype=dtype, enabled=dtype != torch.float32):
            self.learner.model(self.batch.queries, self.batch.passages)


def cached_sentence_transformers_step(
    config: ModelConfig, queries: list[str], passages: list[str], device: str, cache_tokens: int
) -> Callable[[], None]:
    """The same step with sentence-transformers' CachedMultipleNegativesRankingLoss, pieces of as many texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        DualEncoder.from_config(config).save(Path(folder), build_tokenizers(config))
        model = SentenceTransformer(folder, device=device)
    model.train()
    size = max(1, cache_tokens // config.passage.max_length)
    loss = CachedMultipleNegativesRankingLoss(model, scale=config.scale, mini_batch_size=size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, fused=True)
    features: list[dict[str, Any]] = []
    for texts, length in ((queries, config.query.max_length), (passages, config.passage.max_length)):
        model.max_seq_length = length
        found = model.tokenize(texts)
        features.append({key: value.to(device) if hasattr(value, "to") else value for key, value in found.items()})

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(features, None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
