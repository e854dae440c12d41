"""What to do with flagged pairs: gate them, weigh them, drop them, relabel them; by linear heads on frozen vectors.

Texts are encoded once by the starting checkpoint. With each seed a share of the pairs is mismatched anew, measured by
cross-fitted heads and flagged by ``local_fdr``; then every arm trains heads, all with as many steps.

    python -m experiments.flags_by_heads configs/experiments/noisy-code.yaml --seeds 5
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from experiments.arguments import command, load_config, run_parser
from experiments.arm_report import report_arms
from experiments.arm_training import ArmResult
from experiments.results import Table
from experiments.trained_heads import (
    FloatArray,
    FrozenPairs,
    Heads,
    clean_data,
    identity_heads,
    measure_by_heads,
    score_heads,
    starting_encoder,
)
from raydr.config.run import RunConfig
from raydr.data.annotations import query_texts
from raydr.data.tables import passages_by_query, relevant
from raydr.evaluation.metrics import parse_measures, score_queries
from raydr.losses.base import Candidates, Loss
from raydr.losses.nce import NCE
from raydr.losses.npc import NPC
from raydr.noise.detection_report import report_detection
from raydr.noise.detectors.local_fdr import LocalFdrDetector
from raydr.noise.judges.relabel import Relabel, probably_right, stands_out
from raydr.runtime.console import say
from raydr.training.config import TeacherConfig

IntArray = NDArray[np.int64]
#: The teacher, as in the configs of ``noisy_pairs``.
TEACHER = TeacherConfig(momentum=0.99)
DEV_MEASURE = "RR@10"


@dataclass(frozen=True)
class Way:
    """One arm.

    Args:
        loss: what it minimises.
        trust: ŷ of each pair, where the loss reads it.
        pairs: what it trains on: all, those that are not flagged, these and the relabelled, or those that are right.
        teacher: how it follows; None: it stays as it began.
    """

    loss: Loss
    trust: Literal["flags", "posterior"] | None = None
    pairs: Literal["all", "kept", "relabelled", "right"] = "all"
    teacher: TeacherConfig | None = TEACHER


ARMS = {
    "nce": Way(NCE()),
    "npc": Way(NPC(warmup_epochs=1), "flags"),
    "npc-at-once": Way(NPC(warmup_epochs=0), "flags"),
    "npc-every-2": Way(NPC(warmup_epochs=0, consistency_every=2), "flags"),
    "teacher-alone": Way(NPC(warmup_epochs=0)),
    "frozen-teacher": Way(NPC(warmup_epochs=0), teacher=None),
    # npc, whose teacher follows at a half-life of so many epochs.
    **{
        f"npc-half-life-{epochs:g}": Way(NPC(warmup_epochs=1), "flags", teacher=TeacherConfig(half_life=epochs))
        for epochs in (0.05, 0.25, 1.0, 2.0, 4.0)
    },
    "npc-soft": Way(NPC(warmup_epochs=1), "posterior"),
    "soft-alone": Way(NPC(warmup_epochs=0, use_consistency=False), "posterior"),
    "drop": Way(NCE(), pairs="kept"),
    "relabel": Way(NCE(), pairs="relabelled"),
    "clean": Way(NCE(), pairs="right"),
    "clean-teacher": Way(NPC(warmup_epochs=0), pairs="right"),
}


@dataclass(frozen=True)
class Asked:
    """Queries of a split that are evaluated on."""

    query_ids: list[str]
    query_QD: FloatArray
    qrels: dict[str, dict[str, int]]


@dataclass(frozen=True)
class Frozen:
    """The training pairs, the passages that are searched, and the queries of dev and test."""

    pairs: FrozenPairs
    passage_ids: list[str]
    splits: Mapping[str, Asked]

    @property
    def content_P(self) -> IntArray:
        """Of the passages, in the order of their vectors."""
        return np.array([self.pairs.content[one] for one in self.passage_ids], dtype=np.uint64).view(np.int64)

    def measure(
        self, heads: Heads, split: str, measures: list[str], normalized: bool = True
    ) -> dict[str, dict[str, float]]:
        """Measure → query id → value."""
        asked = self.splits[split]
        scores_QP = score_heads(heads, asked.query_QD, self.pairs.passage_PD, self.pairs.scale, normalized)
        best_QK = torch.topk(scores_QP, min(100, len(self.passage_ids))).indices.tolist()
        ranking = {
            query_id: [self.passage_ids[at] for at in best]
            for query_id, best in zip(asked.query_ids, best_QK, strict=True)
        }
        return score_queries(parse_measures(measures), asked.qrels, ranking)


@dataclass(frozen=True)
class Flagged:
    """Pairs of which a share is mismatched, and what was found of them.

    Args:
        passage_N: the row of each pair's passage.
        wrong_N: the truth.
        posterior_N: p(clean).
        clean_N: not flagged.
        new_N: the row of the passage that a flagged pair gets in place of its own; -1 if none.
    """

    passage_N: IntArray
    wrong_N: NDArray[np.bool_]
    posterior_N: NDArray[np.float64]
    clean_N: NDArray[np.bool_]
    new_N: IntArray


@dataclass(frozen=True)
class Pace:
    """How long and how fast all arms learn; epochs are over all pairs."""

    num_epochs: int
    rate: float
    batch_size: int
    seed: int


def main() -> None:
    parser = run_parser(__doc__, "flags-by-heads", seeds=5)
    parser.add_argument("--passages", type=int, default=8000, help="searched: the judged ones and random others")
    parser.add_argument("--epochs", type=int, default=20, help="over all pairs; all arms take as many steps")
    parser.add_argument("--rate", type=float, default=1e-3)
    arguments = parser.parse_args()
    config, out = load_config(parser, arguments)
    frozen = freeze(config, arguments.passages)
    results, found = list[ArmResult](), list[dict[str, str]]()
    for seed in range(config.seed, config.seed + arguments.seeds):
        flagged = flag(frozen, config, seed)
        found.append(_finding(frozen, flagged, seed))
        pace = Pace(arguments.epochs, arguments.rate, config.train.batch_size, seed)
        for name in ARMS:
            results.append(train_way(frozen, flagged, name, config, pace))
            say(f"seed {seed}, {name}: {DEV_MEASURE} on dev {results[-1].history[-1][f'dev {DEV_MEASURE}']:.4f}")
    detection = Table("Flagged and relabelled, by seed", list(found[0]), [list(one.values()) for one in found])
    report_arms(config, {"": list(ARMS)}, results, out, references={"clean"}, more=[detection])


def freeze(config: RunConfig, num_passages: int) -> Frozen:
    """Encode everything once."""
    dataset, corpus = clean_data(config)
    names = config.data.train_split, config.data.dev_split, config.data.test_splits[0]
    judged = {name: relevant(dataset.qrels(name)) for name in names}
    rows = np.unique(np.concatenate([corpus.rows_of_column(one["passage_id"]) for one in judged.values()]))
    others = np.setdiff1d(np.arange(len(corpus)), rows)
    drawn = np.random.default_rng(config.seed).permutation(others)[: max(0, num_passages - len(rows))]
    rows, encoder = np.sort(np.concatenate([rows, drawn])), starting_encoder(config)

    def asked(split: str) -> Asked:
        qrels = {query: dict.fromkeys(those, 1) for query, those in passages_by_query(judged[split]).items()}
        return Asked(list(qrels), encoder.encode("query", None, query_texts(dataset, split, list(qrels))), qrels)

    pairs = FrozenPairs.of(config, dataset, corpus, rows)
    return Frozen(pairs, corpus.ids(rows), {name: asked(name) for name in names[1:]})


def flag(frozen: Frozen, config: RunConfig, seed: int) -> Flagged:
    """Mismatch a share of the pairs, and find them, and other passages for them, by cross-fitted heads."""
    assert config.inject_noise is not None
    measured = measure_by_heads(frozen.pairs, config, config.inject_noise.share, seed)
    margins, rule = measured.cross_fitted, Relabel()
    detection = margins.detect(LocalFdrDetector())
    passage_N = np.array([frozen.pairs.row_of[one] for one in margins.passage_ids.to_pylist()])
    content_P = frozen.content_P
    u_N, best_N = np.full(len(passage_N), np.nan), np.full(len(passage_N), -1)
    for fold, heads in enumerate(measured.fold_heads):
        mine = np.flatnonzero(margins.fold_N == fold)
        scores_MP = score_heads(heads, frozen.pairs.query_ND[mine], frozen.pairs.passage_PD, 1.0)
        found = torch.topk(scores_MP, min(rule.depth, scores_MP.shape[1]))
        for at, scores_K, rows_K in zip(mine, found.values.numpy(), found.indices.numpy(), strict=True):
            _, first = np.unique(content_P[rows_K], return_index=True)
            left = np.sort(first[content_P[rows_K[first]] != content_P[passage_N[at]]])
            u_N[at], best_N[at] = stands_out(scores_K[left], frozen.pairs.scale), rows_K[left[0]]
    posterior_N = np.exp(detection.log_posterior)
    right_N = probably_right(u_N, ~detection.clean, posterior_N > rule.sure, margins.fold_N)
    new_N = np.where(right_N > rule.sure, best_N, -1)
    return Flagged(passage_N, measured.wrong_N, posterior_N, detection.clean, new_N)


def _finding(frozen: Frozen, flagged: Flagged, seed: int) -> dict[str, str]:
    report = report_detection(flagged.wrong_N, ~flagged.clean_N, 1.0 - flagged.posterior_N, 1.0 - flagged.posterior_N)
    relabelled = np.flatnonzero(flagged.new_N >= 0)
    truth = [frozen.pairs.content[one] for one in frozen.pairs.qrels["passage_id"].to_pylist()]
    content_P = frozen.content_P.view(np.uint64)
    right = sum(int(content_P[flagged.new_N[at]]) == truth[at] for at in relabelled)
    return {
        "seed": str(seed),
        "flagged": f"{(~flagged.clean_N).mean():.1%}",
        "precision": f"{report.precision:.3f}",
        "recall": f"{report.recall:.3f}",
        "relabelled": f"{len(relabelled):,}",
        "of these right": f"{right / max(1, len(relabelled)):.1%}",
    }


def train_way(frozen: Frozen, flagged: Flagged, name: str, config: RunConfig, pace: Pace) -> ArmResult:
    """Train and measure the heads of one arm."""
    way = ARMS[name]
    used_N = {
        "all": np.ones(len(flagged.clean_N), np.bool_),
        "kept": flagged.clean_N,
        "relabelled": flagged.clean_N | (flagged.new_N >= 0),
        "right": ~flagged.wrong_N,
    }[way.pairs]
    passage_N = np.where((flagged.new_N >= 0) & (way.pairs == "relabelled"), flagged.new_N, flagged.passage_N)
    trust_N = {"flags": flagged.clean_N.astype(np.float64), "posterior": flagged.posterior_N, None: None}[way.trust]
    lesson = Lesson(np.flatnonzero(used_N), passage_N, trust_N, way.loss, way.teacher)
    return follow(ArmResult(name, pace.seed), _epochs(frozen, lesson, pace), frozen.measure, config)


def follow(
    result: ArmResult,
    epochs: Iterator[Heads],
    measure: Callable[[Heads, str, list[str]], dict[str, dict[str, float]]],
    config: RunConfig,
) -> ArmResult:
    """Measure heads on dev after each epoch, and those of the last and of the best one on test."""
    best, test, measures = -1.0, config.data.test_splits[0], config.evaluate.measures
    for epoch, heads in enumerate(epochs):
        [values] = measure(heads, config.data.dev_split, [DEV_MEASURE]).values()
        mean = float(np.mean(list(values.values())))
        result.history.append({f"dev {DEV_MEASURE}": mean})
        if mean > best:
            best, result.best_epoch, best_heads = mean, epoch, copy.deepcopy(heads)
    result.values = {state: measure(one, test, measures) for state, one in (("last", heads), ("best", best_heads))}
    return result


@dataclass(frozen=True)
class Lesson:
    """What is learnt: the pairs used, the row of each one's passage, its ŷ, the loss, and how the teacher follows."""

    used: IntArray
    passage_N: IntArray
    trust_N: NDArray[np.float64] | None
    loss: Loss
    teacher: TeacherConfig | None


def _epochs(frozen: Frozen, lesson: Lesson, pace: Pace) -> Iterator[Heads]:
    """The heads after each epoch's worth of steps."""
    torch.manual_seed(pace.seed)
    pairs, loss = frozen.pairs, lesson.loss
    heads = identity_heads(pairs.query_ND.shape[1])
    optimizer = torch.optim.AdamW([head.weight for head in heads], lr=pace.rate)
    query_ND, passage_ND = torch.from_numpy(pairs.query_ND), torch.from_numpy(pairs.passage_PD[lesson.passage_N])
    content_N = torch.from_numpy(frozen.content_P[lesson.passage_N])
    teacher, order = heads, torch.zeros(0, dtype=torch.int64)
    epoch_steps = len(query_ND) // pace.batch_size
    alpha = 1.0 if lesson.teacher is None else lesson.teacher.momentum_of(epoch_steps)
    for step in range(epoch_steps * pace.num_epochs):
        if len(order) < pace.batch_size:
            order = torch.from_numpy(lesson.used)[torch.randperm(len(lesson.used))]
        batch, order = order[: pace.batch_size], order[pace.batch_size :]
        sides, epoch = (query_ND[batch], passage_ND[batch]), step // epoch_steps
        same_QC = content_N[batch].unsqueeze(1) == content_N[batch].unsqueeze(0)
        candidates = Candidates(
            scores_QC=_scores(heads, sides, pairs.scale),
            positive_Q=torch.arange(len(batch)),
            excluded_QC=same_QC & ~torch.eye(len(batch), dtype=torch.bool),
            clean_Q=None if lesson.trust_N is None else torch.from_numpy(lesson.trust_N)[batch].float(),
        )
        if loss.needs_teacher and epoch >= loss.num_warmup_epochs:
            teacher = copy.deepcopy(heads) if teacher is heads else teacher
            if step % loss.teacher_every == 0:
                with torch.no_grad():
                    candidates = replace(candidates, teacher_scores_QC=_scores(teacher, sides, pairs.scale))
        optimizer.zero_grad()
        torch.autograd.backward(loss.compute(candidates, epoch).per_query_Q.mean())
        optimizer.step()
        if teacher is not heads:
            for old, new in zip(teacher, heads, strict=True):
                old.weight.data.lerp_(new.weight.data, 1.0 - alpha)
        if (step + 1) % epoch_steps == 0:
            yield heads


def _scores(heads: Heads, sides: tuple[torch.Tensor, torch.Tensor], scale: float) -> torch.Tensor:
    query_QD, passage_QD = (normalize(head(side)) for head, side in zip(heads, sides, strict=True))
    return scale * query_QD @ passage_QD.T


if __name__ == "__main__":
    command(main)
