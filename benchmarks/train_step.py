"""A training step against sentence-transformers' MultipleNegativesRankingLoss: pairs a second in one process.

The same model, batch, lengths and optimiser; the clock covers tokenising, forward, loss, backward and the optimiser.
``one group`` pads all passages to the longest, as sentence-transformers does; the other rows pad in groups of similar
length, as raydr trains.
raydr's losses are shown beside each other, and what a loss alone costs as a share of a step.

    python -m benchmarks.train_step --json train_step.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.texts import load_texts
from benchmarks.timing import interleave, print_rates, timed, write_report
from raydr.data.corpus import Corpus, Texts
from raydr.data.examples import Examples, Ragged
from raydr.data.partitions import RowPool
from raydr.losses.base import Candidates, Loss
from raydr.losses.nce import NCE
from raydr.losses.npc import NPC
from raydr.losses.rcl import RCL
from raydr.models.backbone import choose_attention
from raydr.models.batching import pad_in_groups
from raydr.models.config import ModelConfig, Side, SideConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.models.optimizer_config import OptimizerConfig
from raydr.models.precision import resolve_dtype, torch_dtype
from raydr.models.tokens import Tokens
from raydr.training.batches import GROUP_OVERHEAD, Batch
from raydr.training.config import PairDetectionConfig, TrainConfig
from raydr.training.detection import PairDetector
from raydr.training.optimization import build_optimizer
from raydr.training.scoring import BatchView, Encodings
from raydr.training.teacher import Teacher

#: An overhead that no group is worth: all texts are padded to the longest.
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

    candidates["sentence-transformers"] = rate(sentence_transformers_step(config, queries, passages, arguments.device))
    rcl = RCL.model_validate({"beta": {"final": 0.5, "start_epoch": 0}})
    losses: dict[str, Loss] = {"NCE": NCE(), "RCL": rcl, "NPC": NPC(warmup_epochs=0)}
    grouped = GROUP_OVERHEAD[torch.device(arguments.device).type]

    def add(name: str, dtype: str, overhead: int, label: str) -> None:
        step = Step(config, losses[name], dtype, queries, passages, arguments.device, overhead)
        candidates[f"raydr {name} {dtype}{label}"] = rate(step)

    add("NCE", "float32", ONE_GROUP, ", one group")
    add("NCE", "float32", grouped, "")
    for name in losses if chosen != "float32" else [name for name in losses if name != "NCE"]:
        add(name, chosen, grouped, "")
    figures = interleave(candidates, arguments.repeats)
    print(
        f"batch {len(queries)}, {arguments.layers} layers, {arguments.threads} threads on {arguments.device}, "
        f"medians of {arguments.repeats} interleaved rounds"
    )
    print_rates(figures, "pairs", "sentence-transformers")
    seconds = len(queries) / statistics.median(figures[f"raydr NCE {chosen}"])
    alone = loss_seconds(losses, len(queries), arguments.repeats)
    shares = {name: (alone[name] - alone["NCE"]) / seconds for name in ("RCL",)}
    npc_step = len(queries) / statistics.median(figures[f"raydr NPC {chosen}"])
    shares["teacher"] = npc_step / seconds - 1
    detecting = Step(config, losses["NCE"], chosen, queries, passages, arguments.device, grouped)
    detect = partial(detecting.detect, detecting.detector())
    detect()
    shares["detection"] = statistics.median(timed(detect) for _ in range(arguments.repeats)) / seconds
    print(f"CCR on top of NCE, the losses timed alone: {shares['RCL']:.3%} of a step of {seconds * 1000:,.0f} ms")
    print(f"NPC's teacher and consistency term: {shares['teacher']:.0%} of a step")
    print(f"NPC's detection without the fit: {shares['detection']:.0%} of an epoch of plain steps")
    write_report(
        arguments.json, "train_step", vars(arguments), {"pairs_per_second": figures, "loss_seconds": alone} | shares
    )


class PassageList:
    """The passages of a batch, read like a corpus."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def texts(self, rows: NDArray[np.int64]) -> Texts:
        return Texts([""] * len(rows), [self._texts[row] for row in rows])

    def content_hashes(self, rows: NDArray[np.int64]) -> NDArray[np.uint64]:
        return rows.astype(np.uint64)


class Step:
    """raydr's step: tokenise, encode both sides, score, loss, backward, AdamW."""

    def __init__(
        self,
        config: ModelConfig,
        loss: Loss,
        dtype: str,
        queries: list[str],
        passages: list[str],
        device: str,
        overhead: int,
    ) -> None:
        self.model = DualEncoder.from_config(config).to(device).train()
        choose_attention(self.model, torch.device(device).type, torch_dtype(dtype))
        self.tokenizers = build_tokenizers(config)
        self.optimizer = build_optimizer(self.model, OptimizerConfig(learning_rate=1e-5))
        self.teacher = Teacher(self.model, momentum=0.99) if loss.needs_teacher else None
        self.loss, self.dtype, self.device = loss, torch_dtype(dtype), torch.device(device)
        self.queries, self.passages, self.overhead = queries, passages, overhead

    def __call__(self) -> None:
        batch = self.batch().to(self.device)
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            query_QD, passage_PD = self.model(batch.queries, batch.passages)
            taught = self.teacher.encode(batch) if self.teacher is not None else None
        view = BatchView.gathered(Encodings.gathered(query_QD, passage_PD, self.model.config), batch, teacher=taught)
        self.loss.compute(view.candidates(), epoch=0).per_query_Q.mean().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if self.teacher is not None:
            self.teacher.follow(self.model)

    def detector(self) -> PairDetector:
        """What measures these pairs before an epoch, each against 255 others, as training makes it."""
        num = len(self.queries)
        each, none = Ragged(np.arange(num), np.arange(num + 1)), Ragged(np.zeros(0, np.int64), np.zeros(num + 1, int))
        examples = Examples(
            query_ids=[str(at) for at in range(num)],
            texts=self.queries,
            positives=each,
            negatives=none,
            scores=none,
            weights=none,
            positive_scores=np.full(num, np.nan, dtype=np.float32),
            forbidden=each,
            pools={"": RowPool.of([0], [len(self.passages)])},
            partitions=[""] * num,
            is_noise=np.zeros(num, dtype=np.bool_),
        )
        corpus = cast(Corpus, PassageList(self.passages))
        return PairDetector(examples, corpus, self.tokenizers, PairDetectionConfig(), TrainConfig(), seed=0)

    def detect(self, detector: PairDetector) -> None:
        detector.measure(self.model, 0, self.dtype)

    def batch(self) -> Batch:
        num = len(self.queries)
        tokens: dict[Side, Tokens] = {"query": self.tokenizers["query"](None, self.queries)}
        tokens["passage"] = self.tokenizers["passage"](None, self.passages)
        rows = torch.arange(num)
        padded = {
            side: pad_in_groups(found, self.tokenizers[side].pad_id, self.overhead) for side, found in tokens.items()
        }
        hashes = rows + 1
        return Batch(rows.numpy(), padded["query"], padded["passage"], hashes, hashes[:, None], None, 0)


def sentence_transformers_step(
    config: ModelConfig, queries: list[str], passages: list[str], device: str
) -> Callable[[], None]:
    """The same step with sentence-transformers' model and loss."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        built = DualEncoder.from_config(config)
        built.save(Path(folder), build_tokenizers(config))
        model = SentenceTransformer(folder, device=device)
    model.train()
    loss = MultipleNegativesRankingLoss(model, scale=config.scale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    lengths = (config.query.max_length, config.passage.max_length)

    def step() -> None:
        features: list[Any] = []
        for texts, length in zip((queries, passages), lengths, strict=True):
            model.max_seq_length = length
            found = model.tokenize(texts)
            features.append({key: value.to(device) if hasattr(value, "to") else value for key, value in found.items()})
        optimizer.zero_grad(set_to_none=True)
        loss(features, None).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def loss_seconds(losses: dict[str, Loss], batch_size: int, repeats: int) -> dict[str, float]:
    """Median seconds of forward and backward of NCE and RCL on a matrix of scores."""
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
