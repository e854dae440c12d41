"""Pairs per second of gradient caching, relative to its ideal cost and to sentence-transformers' cached loss.

The ideal is a step of the whole batch plus a forward pass without activations: each text is encoded once for the scores
and once for the gradients. Timing covers forward pass, loss, backward pass and optimiser, but not tokenising.

    python -m benchmarks.gradient_cache --batch-size 512 --layers 2 --cache-tokens 8192
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from functools import partial

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch

from benchmarks.texts import load_texts
from benchmarks.timing import interleave, print_rates, timed, write_report
from benchmarks.train_step import Step, TheirStep
from raydr.models.config import ModelConfig, Side, SideConfig
from raydr.models.dual_encoder import build_tokenizers
from raydr.models.precision import resolve_dtype
from raydr.models.tokens import Tokens
from raydr.training.config import TrainConfig


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
    steps: dict[str, Callable[[], object]] = {}
    for name, cache_tokens in (("whole batch", None), ("cached", arguments.cache_tokens)):
        train = TrainConfig(batch_size=len(queries), cache_tokens=cache_tokens)
        step = Step(config, train, dtype, arguments.device, tokenizers["passage"].pad_id)
        batch = step.pad(tokens)
        steps[name] = partial(step, batch)
        steps.setdefault("forward alone", partial(step.forward, batch))
    theirs = TheirStep(config, arguments.device, arguments.cache_tokens)
    steps["sentence-transformers, cached"] = partial(theirs, theirs.tokenize(queries, passages))
    for take in steps.values():
        take()
    rates = interleave({name: rate(take, len(queries)) for name, take in steps.items()}, arguments.repeats)
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


if __name__ == "__main__":
    main()
