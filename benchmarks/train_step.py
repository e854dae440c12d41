"""Pairs per second of a training step, and of sentence-transformers' MultipleNegativesRankingLoss, in one process.

Model, batch, lengths and optimiser are the same; timing covers tokenising, forward pass, loss, backward pass and
optimiser. ``one group`` pads all passages to the longest, as sentence-transformers does; the other rows pad in groups
of similar length, as raydr does. The benchmark also compares raydr's losses, and prints their share of a step's time.

    python -m benchmarks.train_step --json train_step.json
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
from raydr.losses.base import Candidates, Loss
from raydr.losses.nce import NCE
from raydr.losses.npc import NPC
from raydr.losses.rcl import RCL
from raydr.models.backbone import choose_attention
from raydr.models.batching import pad_in_groups
from raydr.models.config import ModelConfig, Side, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.models.tokens import Tokens
from raydr.training.batches import GROUP_OVERHEAD, Batch
from raydr.training.config import TrainConfig
from raydr.training.learner import Learner
from raydr.training.metrics import StepClock
from raydr.training.scoring import loss_in_tiles

#: An overhead so large that all texts form one group, padded to the longest.
ONE_GROUP = 10**9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="", help="BEIR corpus.jsonl[.gz]; made texts if left out")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--query-length", type=int, default=32)
    parser.add_argument("--passage-length", type=int, default=128)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", default="")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    passages = load_texts(arguments.corpus, arguments.batch_size)
    queries = [" ".join(text.split()[:10]) for text in passages]
    candidates: dict[str, Callable[[], float]] = {}
    chosen, _ = resolve_dtype("auto", arguments.device)
    config = ModelConfig(
        num_layers=arguments.layers,
        dropout=arguments.dropout,
        query=SideConfig(max_length=arguments.query_length),
        passage=SideConfig(max_length=arguments.passage_length),
    )

    def rate(step: Callable[[], object]) -> Callable[[], float]:
        step()
        return lambda: len(queries) / timed(step)

    theirs, tokenizers = TheirStep(config, arguments.device), build_tokenizers(config)
    candidates["sentence-transformers"] = rate(lambda: theirs(theirs.tokenize(queries, passages)))
    rcl = RCL.model_validate({"beta": {"final": 0.5, "start_epoch": 0}})
    losses: dict[str, Loss] = {"NCE": NCE(), "RCL": rcl, "NPC": NPC(warmup_epochs=0)}

    def add(name: str, dtype: str, overhead: int | None = None, label: str = "") -> None:
        train = TrainConfig(batch_size=len(queries), loss=losses[name])
        step = Step(config, train, dtype, arguments.device, tokenizers["passage"].pad_id, overhead)

        def take() -> None:
            step(
                step.pad(
                    {"query": tokenizers["query"](None, queries), "passage": tokenizers["passage"](None, passages)}
                )
            )

        candidates[f"raydr {name} {dtype}{label}"] = rate(take)

    add("NCE", "float32", ONE_GROUP, ", one group")
    add("NCE", "float32")
    for name in losses if chosen != "float32" else [name for name in losses if name != "NCE"]:
        add(name, chosen)
    figures = interleave(candidates, arguments.repeats)
    print(
        f"batch {len(queries)}, {arguments.layers} layers, {arguments.threads} threads on {arguments.device}, "
        f"medians of {arguments.repeats} interleaved rounds"
    )
    print_rates(figures, "pairs", "sentence-transformers")
    seconds = len(queries) / statistics.median(figures[f"raydr NCE {chosen}"])
    alone = loss_seconds(losses, len(queries), arguments.repeats)
    npc_step = len(queries) / statistics.median(figures[f"raydr NPC {chosen}"])
    shares = {"RCL": (alone["RCL"] - alone["NCE"]) / seconds, "teacher": npc_step / seconds - 1}
    print(f"CCR on top of NCE, the losses timed alone: {shares['RCL']:.3%} of a step of {seconds * 1000:,.0f} ms")
    print(f"NPC's teacher and consistency term: {shares['teacher']:.0%} of a step")
    write_report(
        arguments.json, "train_step", vars(arguments), {"pairs_per_second": figures, "loss_seconds": alone} | shares
    )


class Step:
    """raydr's training step: scores, loss, backward pass and AdamW, for a whole batch or in pieces.

    Args:
        config: of the model.
        train: batch size, loss and pieces.
        dtype: of the forward pass.
        device: of the model.
        pad_id: of the model's tokenizer.
        overhead: cost of a group of texts of similar length, in tokens; by default that of the device.
    """

    def __init__(
        self,
        config: ModelConfig,
        train: TrainConfig,
        dtype: str,
        device: str,
        pad_id: int = 0,
        overhead: int | None = None,
    ) -> None:
        self.device = torch.device(device)
        model = DualEncoder.from_config(config).to(device).train()
        choose_attention(model, self.device.type, torch_dtype(dtype))
        self.train, self.pad_id = train, pad_id
        self.overhead = GROUP_OVERHEAD[self.device.type] if overhead is None else overhead
        self.learner = Learner(model, model, train, torch_dtype(dtype), 1000, StepClock(torch.device("cpu")))
        if train.loss.needs_teacher:
            self.learner.start_teacher()

    def pad(self, tokens: Mapping[Side, Tokens]) -> Batch:
        """Return the padded batch of equally many queries and passages, on the device."""
        padded = {
            side: pad_in_groups(texts, self.pad_id, self.overhead, self.train.cache_tokens)
            for side, texts in tokens.items()
        }
        rows = torch.arange(tokens["query"].num_rows)
        hashes = rows + 1
        batch = Batch(rows.numpy(), padded["query"], padded["passage"], hashes, hashes[:, None], 0)
        return batch.to(self.device)

    def __call__(self, batch: Batch) -> float:
        """Run a step and return the loss before it."""
        view = self.learner.encode(batch)
        tile = self.train.tile_queries
        loss = loss_in_tiles(view, self.train.loss, 0, len(batch.query_rows), tile).per_query_Q.mean()
        self.learner.optimization.backward(loss)
        self.learner.optimization.clip()
        self.learner.step()
        # Wait for the device.
        return float(loss.detach())

    @torch.no_grad()
    def forward(self, batch: Batch) -> None:
        """Encode without activations."""
        dtype = self.learner.dtype
        with torch.autocast(self.device.type, dtype=dtype, enabled=dtype != torch.float32):
            self.learner.model(batch.queries, batch.passages)


class TheirStep:
    """The same step with sentence-transformers' model and loss.

    Args:
        config: of the model.
        device: of the model.
        cache_tokens: tokens of a piece, for the cached loss; None for the plain loss.
    """

    def __init__(self, config: ModelConfig, device: str, cache_tokens: int | None = None) -> None:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer import losses

        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            DualEncoder.from_config(config).save(Path(folder), build_tokenizers(config))
            self.model = SentenceTransformer(folder, device=device)
        self.model.train()
        self.lengths, self.device = (config.query.max_length, config.passage.max_length), device
        if cache_tokens is None:
            self.loss = losses.MultipleNegativesRankingLoss(self.model, scale=config.scale)
        else:
            size = max(1, cache_tokens // config.passage.max_length)
            cached = losses.CachedMultipleNegativesRankingLoss
            self.loss = cached(self.model, scale=config.scale, mini_batch_size=size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)

    def tokenize(self, queries: list[str], passages: list[str]) -> list[dict[str, Any]]:
        features: list[dict[str, Any]] = []
        for texts, length in zip((queries, passages), self.lengths, strict=True):
            self.model.max_seq_length = length
            tokens = self.model.tokenize(texts)
            features.append(
                {key: value.to(self.device) if hasattr(value, "to") else value for key, value in tokens.items()}
            )
        return features

    def __call__(self, features: list[dict[str, Any]]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(features, None).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def loss_seconds(losses: dict[str, Loss], batch_size: int, repeats: int) -> dict[str, float]:
    """Return the median seconds of forward and backward pass of NCE and RCL on a matrix of scores."""
    scores = torch.randn(batch_size, batch_size)
    positive = torch.arange(batch_size)
    excluded = torch.zeros(batch_size, batch_size, dtype=torch.bool)

    def compute(loss: Loss) -> Callable[[], float]:
        def fifty_times() -> None:
            for _ in range(50):
                candidates = Candidates(scores.clone().requires_grad_(), positive, excluded)
                loss.compute(candidates, 0).per_query_Q.mean().backward()  # type: ignore[no-untyped-call]

        return lambda: timed(fifty_times) / 50

    chosen = {name: compute(losses[name]) for name in ("NCE", "RCL")}
    return {name: statistics.median(times) for name, times in interleave(chosen, repeats).items()}


if __name__ == "__main__":
    main()
