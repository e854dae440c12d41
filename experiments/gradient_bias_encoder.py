"""Bias of NCE's gradient with a real dual encoder: 64 queries, 128 passages, 7 negatives, 500 draws.

The passages are each query's positive and another passage of the same article. They are the whole label space, so that
the full softmax is exact. Gradients are compared at two points: after minimising the full cross-entropy, and after
minimising NCE with random negatives. The loss depends on the encoder only through the 64 × 128 scores. Its gradient in
the scores is therefore averaged over the draws, and then passed through the encoder once.

    python -m experiments.gradient_bias_encoder --data DATA/openqa-wiki --out work/experiments/gradient_bias_encoder

Source: Zhang and Stratos (NAACL 2021) appendix C, there with BERT-base on Zeshel.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from experiments.beir_files import read_qrels, read_rows
from experiments.gradient_bias import KINDS, Settings, loss_per_label
from experiments.results import Table, write_results
from raydr.console import say
from raydr.losses.base import Loss
from raydr.losses.nce import NCE
from raydr.models.batching import PaddedGroups, pad_in_groups
from raydr.models.config import ModelConfig
from raydr.models.dual_encoder import DualEncoder, build_tokenizers
from raydr.negatives.samplers.base import Sampler
from raydr.seeding import stable_hash64

NUM_QUERIES = 64
LEARNING_RATE = 1e-4
#: Overhead of a group of texts of similar length, in padded tokens.
GROUP_OVERHEAD = 64


@dataclass(frozen=True)
class Texts:
    """Queries and passages: passage i is the positive of query i, and passage 64 + i is from the same article."""

    queries: list[str]
    titles: list[str]
    passages: list[str]


def read_texts(data: Path, seed: int) -> Texts:
    """Read the first 64 training queries, in an order given by the seed, whose article has another passage."""
    passages = {row["_id"]: row for row in read_rows(data, "corpus")}
    queries = {row["_id"]: row["text"] for row in read_rows(data, "queries")}
    pairs = read_qrels(data)["train"]
    by_title: dict[str, list[str]] = {}
    for passage_id, row in passages.items():
        by_title.setdefault(row["title"], []).append(passage_id)
    chosen: dict[str, tuple[str, str, str]] = {}
    for query_id, gold, _ in sorted(pairs, key=lambda pair: stable_hash64(seed, pair[0])):
        title = passages[gold]["title"]
        others = [other for other in by_title[title] if other != gold]
        if others and title and title not in chosen:
            chosen[title] = (query_id, gold, others[0])
        if len(chosen) == NUM_QUERIES:
            break
    picked = list(chosen.values())
    ids = [gold for _, gold, _ in picked] + [other for _, _, other in picked]
    return Texts(
        [queries[query_id] for query_id, _, _ in picked],
        [passages[passage_id]["title"] for passage_id in ids],
        [passages[passage_id]["text"] for passage_id in ids],
    )


class Scorer:
    """Scores of all queries and passages as a function of the encoder's parameters.

    Dropout is off, so that the two gradients differ only by the negatives.
    """

    def __init__(self, texts: Texts, num_layers: int) -> None:
        config = ModelConfig.model_validate(
            {
                "checkpoint": "offline:minilm",
                "num_layers": num_layers,
                "similarity": "cosine",
                "scale": 20,
                "query": {"max_length": 32},
                "passage": {"max_length": 64},
            }
        )
        self.model = DualEncoder.from_config(config, seed=0).eval()
        tokenizers = build_tokenizers(config)
        self.queries = self._groups(tokenizers["query"](None, texts.queries), tokenizers["query"].pad_id)
        passages = tokenizers["passage"](texts.titles, texts.passages)
        self.passages = self._groups(passages, tokenizers["passage"].pad_id)

    @staticmethod
    def _groups(tokens: Any, pad_id: int) -> PaddedGroups:
        return pad_in_groups(tokens, pad_id, GROUP_OVERHEAD)

    def scores_QP(self) -> Tensor:
        query_QD, passage_PD = self.model(self.queries, self.passages)
        return self.model.config.logits_QP(query_QD, passage_PD)

    def gradient(self, scores_QP: Tensor, score_gradient_QP: Tensor) -> Tensor:
        """Return the gradient of all parameters from that of the scores."""
        used = [part for part in self.model.parameters() if part.requires_grad]
        gradients = torch.autograd.grad(scores_QP, used, score_gradient_QP, retain_graph=True, allow_unused=True)
        return torch.cat([part.flatten() for part in gradients if part is not None])


def full_loss(scores_QP: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(scores_QP, torch.arange(len(scores_QP)))


def sampled_loss(
    scores_QP: Tensor, sampler: Sampler, loss: Loss, settings: Settings, key: tuple[int, int, str]
) -> Tensor:
    """Compute the mean over queries and draws of the loss of the positive against drawn negatives."""
    return loss_per_label(scores_QP, range(len(scores_QP)), sampler, loss, settings, key).mean()


def minimise(scorer: Scorer, by: str, steps: int, negatives: int, seed: int) -> float:
    """Train with all queries in a batch; return the final accuracy over all passages."""
    optimizer = torch.optim.Adam(scorer.model.parameters(), lr=LEARNING_RATE)
    sampler, once = KINDS["random"][0], Settings(negatives=negatives, draws=1)
    for step in range(steps):
        optimizer.zero_grad()
        scores_QP = scorer.scores_QP()
        full = by == "cross-entropy"
        loss = full_loss(scores_QP) if full else sampled_loss(scores_QP, sampler, NCE(), once, (seed, step, "train"))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        scores_QP = scorer.scores_QP()
    return float((scores_QP.argmax(dim=1) == torch.arange(len(scores_QP))).float().mean())


def biases(scorer: Scorer, settings: Settings, seed: int) -> dict[str, float]:
    """Return the norm of the full gradient, and of its difference from the gradient of each kind of negatives."""
    scores_QP = scorer.scores_QP()

    def through_scores(loss_of: Any) -> Tensor:
        leaf = scores_QP.detach().requires_grad_()
        (score_gradient,) = torch.autograd.grad(loss_of(leaf), leaf)
        return scorer.gradient(scores_QP, score_gradient)

    exact = through_scores(full_loss)
    norms = {"full gradient": float(exact.norm())}
    for name, (sampler, loss) in KINDS.items():
        sampled = through_scores(
            lambda leaf, sampler=sampler, loss=loss, name=name: sampled_loss(
                leaf, sampler, loss, settings, (seed, 0, name)
            )
        )
        norms[name] = float((sampled - exact).norm())
    return norms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of openqa-wiki")
    parser.add_argument("--out", type=Path, default=Path("work/experiments/gradient_bias_encoder"))
    parser.add_argument("--steps", type=int, default=40, help="steps of each of the two trainings")
    parser.add_argument("--negatives", type=int, default=7)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = read_texts(arguments.data, arguments.seed)
    settings = Settings(negatives=arguments.negatives, draws=arguments.draws)
    places: dict[str, dict[str, float]] = {}
    for by in ("cross-entropy", "random NCE"):
        torch.manual_seed(arguments.seed)
        scorer = Scorer(texts, arguments.layers)
        accuracy = minimise(scorer, by, arguments.steps, arguments.negatives, arguments.seed)
        places[f"{by} minimised"] = {"accuracy": accuracy} | biases(scorer, settings, arguments.seed)
        say(f"{by} minimised: accuracy {accuracy:.1%}")
    rows = [[name, *(f"{values[name]:.4f}" for values in places.values())] for name in next(iter(places.values()))]
    tables = [Table("Bias of the gradient", ["negatives", *places], rows)]
    write_results(arguments.out, vars(arguments), tables, {"places": places})


if __name__ == "__main__":
    main()
