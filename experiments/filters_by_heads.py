"""Hard negatives of which a known part is false: with them, without them, sieved, and with RCL; by linear heads.

Texts are encoded once by the starting checkpoint. Training queries are those of the config's data with several right
passages: one, drawn with the seed, is the positive, the others stay among what is mined, as if nobody had judged them.
Heads are warmed up by NCE with in-batch negatives, mine the best passages of each query, and go on in one of the ways;
the rate of each is the one that is best on dev with the first seed.

    python -m experiments.filters_by_heads configs/experiments/ccr-openqa.yaml
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from experiments.arguments import command, load_config, numbers, run_parser
from experiments.arm_report import report_arms
from experiments.arm_training import ArmResult
from experiments.flags_by_heads import DEV_MEASURE, Frozen, IntArray, Pace, follow, freeze
from experiments.results import Table
from experiments.trained_heads import FloatArray, Heads, identity_heads, score_heads, train_heads
from raydr.config.run import RunConfig
from raydr.losses.base import Candidates, Loss
from raydr.losses.nce import NCE
from raydr.losses.rcl import RCL
from raydr.losses.schedule import BetaSchedule
from raydr.noise.judges.base import ScoredCandidates
from raydr.noise.judges.margin import Margin
from raydr.noise.judges.sieve import Sieve
from raydr.runtime.console import say

BoolArray = NDArray[np.bool_]
#: Epochs of NCE before anything is mined.
WARMUP_EPOCHS = 3
#: Of the sieve's throw-away heads: β and epochs as published; its rate for heads, where 1e-7 changes nothing.
SIEVE_BETA, SIEVE_RATE = 0.5, 1e-4


@dataclass(frozen=True)
class Way:
    """One arm.

    Args:
        keeps: which of the mined passages are negatives: those that are not known to be right (``clean``), those that
            the sieve or a margin keeps, as many as the sieve keeps at random or of the lowest by the untrained
            vectors; ``none``: in-batch negatives alone.
        beta: of RCL in the last eighth of the training; 0: NCE.
        scale: τ, None: the config's.
        similarity: cosine, or the dot product of vectors that heads may lengthen.
    """

    keeps: Literal["all", "none", "clean", "sieve", "margin", "random", "lower"] = "all"
    beta: float = 0.0
    scale: float | None = None
    similarity: Literal["cosine", "dot"] = "cosine"

    def loss(self, num_epochs: int) -> Loss:
        start = num_epochs - max(1, num_epochs // 8)
        return RCL(beta=BetaSchedule(final=self.beta, start_epoch=start)) if self.beta else NCE()


#: The arms of each comparison; the first is what the others are held against.
GROUPS: dict[str, dict[str, Way]] = {
    "filters": {
        "all": Way(),
        "in-batch": Way("none"),
        "sieve": Way("sieve"),
        "random half": Way("random"),
        "lower half": Way("lower"),
        "margin": Way("margin"),
        "clean": Way("clean"),
    },
    "RCL, cosine": {
        "all, τ 20": Way(),
        "β .003": Way(beta=0.003),
        "β .01": Way(beta=0.01),
        "β .03": Way(beta=0.03),
        "clean, τ 20": Way("clean"),
    },
    "RCL, cosine, τ 1": {
        "all, τ 1": Way(scale=1.0),
        "β .1, τ 1": Way(beta=0.1, scale=1.0),
        "β .5, τ 1": Way(beta=0.5, scale=1.0),
        "clean, τ 1": Way("clean", scale=1.0),
    },
    "RCL, dot product": {
        "all, dot": Way(similarity="dot"),
        "β 1e-4, dot": Way(beta=1e-4, similarity="dot"),
        "β 1e-3, dot": Way(beta=1e-3, similarity="dot"),
        "clean, dot": Way("clean", similarity="dot"),
    },
}
ARMS = {name: way for group in GROUPS.values() for name, way in group.items()}
#: The arm of each group that no filter can beat but by luck.
REFERENCES = {"clean", "clean, τ 20", "clean, τ 1", "clean, dot"}


@dataclass(frozen=True)
class Mined:
    """Training queries, and what was mined for them.

    Args:
        query_QD: their vectors.
        positive_Q: the row of the passage that is judged right.
        mined_QK: rows of the best passages of the warmed-up heads, without the positive.
        false_QK: which of these are right too.
        kept: the mined ones that each filter keeps.
        num_hard: of these, as many are negatives in a step.
    """

    query_QD: FloatArray
    positive_Q: IntArray
    mined_QK: IntArray
    false_QK: BoolArray
    kept: dict[str, BoolArray]
    num_hard: int


def main() -> None:
    parser = run_parser(__doc__, "filters-by-heads", seeds=3)
    parser.add_argument("--passages", type=int, default=8000, help="searched: the judged ones and random others")
    parser.add_argument("--depth", type=int, default=4, help="mined passages of a query")
    parser.add_argument("--hard-negatives", type=int, default=2, help="of these a step")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rates", type=numbers(float, 0, 1), default="1e-4,3e-4,1e-3,3e-3")
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    frozen = freeze(config, arguments.passages)
    seeds = range(config.seed, config.seed + arguments.seeds)
    mined = {seed: mine(frozen, config, arguments.depth, arguments.hard_negatives, seed) for seed in seeds}
    results, rates = list[ArmResult](), list[list[str]]()
    for name in ARMS:
        paces = [Pace(arguments.epochs, rate, config.train.batch_size, seeds[0]) for rate in arguments.rates]
        tried = [train_way(frozen, mined[seeds[0]], name, config, pace) for pace in paces]
        best = max(range(len(paces)), key=lambda at: tried[at].history[-1][f"dev {DEV_MEASURE}"])
        later = [train_way(frozen, mined[seed], name, config, replace(paces[best], seed=seed)) for seed in seeds[1:]]
        results += [tried[best], *later]
        rates.append([name, *(f"{one.history[-1][f'dev {DEV_MEASURE}']:.4f}" for one in tried)])
        say(f"{name}: {DEV_MEASURE} on dev {', '.join(rates[-1][1:])} by rate")
    more = [
        Table("Mined passages", *_findings(mined)),
        Table(f"{DEV_MEASURE} on dev by rate, first seed", ["arm", *map(str, arguments.rates)], rates),
    ]
    report_arms(config, {title: list(group) for title, group in GROUPS.items()}, results, out, REFERENCES, more)


def mine(frozen: Frozen, config: RunConfig, depth: int, num_hard: int, seed: int) -> Mined:
    """Warm up, mine, and filter what was mined."""
    rng = np.random.default_rng(seed)
    query_QD, right_QR = _right_passages(frozen, rng)
    positive_Q = right_QR[:, 0]
    passage_PD, scale, batch_size = frozen.pairs.passage_PD, frozen.pairs.scale, config.train.batch_size
    heads = train_heads(query_QD, passage_PD[positive_Q], scale, batch_size, WARMUP_EPOCHS, seed)
    scores_QP = score_heads(heads, query_QD, passage_PD, 1.0)
    content_P = torch.from_numpy(frozen.content_P)
    right_QP = content_P.unsqueeze(0) == content_P[positive_Q].unsqueeze(1)
    mined_QK = torch.topk(scores_QP.masked_fill(right_QP, -torch.inf), depth).indices.numpy()
    sieved_QK = _sieve(frozen, query_QD, positive_Q, mined_QK, heads, batch_size, seed)
    margin = Margin().judge(_scored(heads, query_QD, passage_PD, positive_Q, mined_QK))
    untrained = identity_heads(query_QD.shape[1])
    plain_QK = _candidate_scores(untrained, query_QD, passage_PD, mined_QK)
    num_Q = sieved_QK.sum(axis=1, keepdims=True)
    false_QK = (mined_QK[:, :, None] == right_QR[:, None, 1:]).any(axis=2)
    return Mined(
        query_QD,
        positive_Q,
        mined_QK,
        false_QK,
        {
            "all": np.ones_like(sieved_QK),
            "none": np.zeros_like(sieved_QK),
            "clean": ~false_QK,
            "sieve": sieved_QK,
            "margin": (margin.action == "keep").reshape(mined_QK.shape),
            "random": _ranks(rng.random(mined_QK.shape)) < num_Q,
            "lower": _ranks(plain_QK) < num_Q,
        },
        num_hard,
    )


def _right_passages(frozen: Frozen, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Vectors of the queries with several right passages, and the rows of these, the positive first, then -1."""
    rows: dict[str, list[int]] = {}
    for at, query_id in enumerate(frozen.pairs.qrels["query_id"].to_pylist()):
        rows.setdefault(query_id, []).append(at)
    several = [rng.permutation(those) for those in rows.values() if len(those) > 1]
    right_QR = np.full((len(several), max(map(len, several))), -1)
    for right_R, those in zip(right_QR, several, strict=True):
        right_R[: len(those)] = [frozen.pairs.row_of[frozen.pairs.qrels["passage_id"][int(at)].as_py()] for at in those]
    return frozen.pairs.query_ND[[those[0] for those in several]], right_QR


def _sieve(
    frozen: Frozen,
    query_QD: FloatArray,
    positive_Q: IntArray,
    mined_QK: IntArray,
    heads: Heads,
    batch_size: int,
    seed: int,
) -> BoolArray:
    """What the passage sieve keeps: a copy learns by RCL on each query's own candidates, cosine, τ 1, for an epoch."""
    torch.manual_seed(seed)
    copied = copy.deepcopy(heads)
    optimizer = torch.optim.AdamW([head.weight for head in copied], lr=SIEVE_RATE)
    loss, passages = RCL(beta=BetaSchedule(final=SIEVE_BETA, start_epoch=0)), torch.from_numpy(frozen.pairs.passage_PD)
    rows_QC = torch.from_numpy(np.concatenate([positive_Q[:, None], mined_QK], axis=1))
    for batch in torch.split(torch.randperm(len(query_QD)), batch_size):
        query_BD = normalize(copied[0](torch.from_numpy(query_QD)[batch]))
        passage_BCD = normalize(copied[1](passages[rows_QC[batch]]), dim=-1)
        candidates = Candidates(
            scores_QC=torch.einsum("bd,bcd->bc", query_BD, passage_BCD),
            positive_Q=torch.zeros(len(batch), dtype=torch.int64),
            excluded_QC=torch.zeros(len(batch), rows_QC.shape[1], dtype=torch.bool),
        )
        optimizer.zero_grad()
        torch.autograd.backward(loss.compute(candidates, 0).per_query_Q.mean())
        optimizer.step()
    verdicts = Sieve().judge(_scored(copied, query_QD, frozen.pairs.passage_PD, positive_Q, mined_QK))
    return np.asarray(verdicts.action == "keep").reshape(mined_QK.shape)


def _scored(
    heads: Heads, query_QD: FloatArray, passage_PD: FloatArray, positive_Q: IntArray, mined_QK: IntArray
) -> ScoredCandidates:
    scores_QK = _candidate_scores(heads, query_QD, passage_PD, mined_QK)
    positive_scores_Q = _candidate_scores(heads, query_QD, passage_PD, positive_Q[:, None])[:, 0]
    return ScoredCandidates(
        scores_QK.ravel(), np.arange(len(mined_QK) + 1) * mined_QK.shape[1], positive_scores_Q.astype(np.float64)
    )


def _candidate_scores(
    heads: Heads, query_QD: FloatArray, passage_PD: FloatArray, rows_QK: IntArray
) -> NDArray[np.float64]:
    with torch.inference_mode():
        query = normalize(heads[0](torch.from_numpy(query_QD)))
        passage = normalize(heads[1](torch.from_numpy(passage_PD)))[torch.from_numpy(rows_QK)]
        return torch.einsum("qd,qkd->qk", query, passage).double().numpy()


def _ranks(values_QK: NDArray[np.float64]) -> IntArray:
    """Of each row's values, 0 for the smallest."""
    return np.asarray(values_QK.argsort(axis=1).argsort(axis=1))


def _findings(mined: dict[int, Mined]) -> tuple[list[str], list[list[str]]]:
    """What each filter keeps of the mined passages, false and other ones, by seed."""
    rows = []
    for seed, one in mined.items():
        kept = [
            f"{one.kept[name][one.false_QK].mean():.2f} / {one.kept[name][~one.false_QK].mean():.2f}"
            for name in ("sieve", "random", "lower", "margin")
        ]
        rows.append([str(seed), f"{len(one.mined_QK):,}", f"{one.false_QK.mean():.1%}", *kept])
    filters = ("sieve", "random half", "lower half", "margin")
    return ["seed", "queries", "false", *(f"{name}: kept of false / of others" for name in filters)], rows


def train_way(frozen: Frozen, mined: Mined, name: str, config: RunConfig, pace: Pace) -> ArmResult:
    """Train and measure the heads of one arm."""
    way = ARMS[name]
    measure = partial(frozen.measure, normalized=way.similarity == "cosine")
    return follow(ArmResult(name, pace.seed), _epochs(frozen, mined, way, pace), measure, config)


def _epochs(frozen: Frozen, mined: Mined, way: Way, pace: Pace) -> Iterator[Heads]:
    """The heads after each epoch; the rate falls linearly to 0."""
    torch.manual_seed(pace.seed)
    loss, scale = way.loss(pace.num_epochs), way.scale or frozen.pairs.scale
    heads = identity_heads(mined.query_QD.shape[1])
    optimizer = torch.optim.AdamW([head.weight for head in heads], lr=pace.rate)
    num_steps = len(mined.query_QD) // pace.batch_size
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, num_steps * pace.num_epochs)
    queries, passages = torch.from_numpy(mined.query_QD), torch.from_numpy(frozen.pairs.passage_PD)
    content_P, positive_Q = torch.from_numpy(frozen.content_P), torch.from_numpy(mined.positive_Q)
    mined_QK, kept_QK = torch.from_numpy(mined.mined_QK), torch.from_numpy(mined.kept[way.keeps])
    for epoch in range(pace.num_epochs):
        for batch in torch.split(torch.randperm(len(queries)), pace.batch_size)[:num_steps]:
            # As many as are wanted of those that are kept, in random order; what is left empty is nobody's negative.
            order = (torch.rand(kept_QK[batch].shape) + (~kept_QK[batch]) * 2).argsort(dim=1)[:, : mined.num_hard]
            hard = mined_QK[batch].gather(1, order)[kept_QK[batch].gather(1, order)]
            rows_C = torch.cat([positive_Q[batch], hard])
            sides = heads[0](queries[batch]), heads[1](passages[rows_C])
            query_BD, passage_CD = (normalize(side) if way.similarity == "cosine" else side for side in sides)
            right_BC = content_P[positive_Q[batch]].unsqueeze(1) == content_P[rows_C].unsqueeze(0)
            dropped_BK = mined_QK[batch].masked_fill(kept_QK[batch], -1)
            dropped_BC = (dropped_BK.unsqueeze(2) == rows_C).any(dim=1) & (way.keeps != "none")
            own = torch.arange(len(batch))
            right_BC[own, own] = False
            candidates = Candidates(scale * query_BD @ passage_CD.T, own, right_BC | dropped_BC)
            optimizer.zero_grad()
            torch.autograd.backward(loss.compute(candidates, epoch).per_query_Q.mean())
            optimizer.step()
            falling.step()
        yield heads


if __name__ == "__main__":
    command(main)
