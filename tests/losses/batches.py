"""Random candidates with masks, for the tests of the losses."""

from dataclasses import replace

import torch

from raydr.losses.base import CLEAN, LOG_DRAW_PROB, RANKER_SCORES, TEACHER_SCORES, Candidates


def random_candidates(
    seed: int = 0, num_queries: int = 5, num_candidates: int = 9, excluded: bool = True
) -> Candidates:
    generator = torch.Generator().manual_seed(seed)
    shape = (num_queries, num_candidates)
    positive_Q = torch.randperm(num_candidates, generator=generator)[:num_queries]
    excluded_QC = torch.rand(shape, generator=generator) < (0.3 if excluded else 0.0)
    hard_QC = torch.rand(shape, generator=generator) < 0.4
    for mask_QC in (excluded_QC, hard_QC):
        mask_QC[torch.arange(num_queries), positive_Q] = False
    unknown_QC = torch.rand(shape, generator=generator) < 0.3
    unknown_QC[torch.arange(num_queries), positive_Q] = False
    return Candidates(
        scores_QC=(3 * torch.randn(shape, generator=generator)).requires_grad_(),
        positive_Q=positive_Q,
        excluded_QC=excluded_QC,
        hard_QC=hard_QC,
        signals={
            LOG_DRAW_PROB: torch.where(hard_QC, -torch.rand(shape, generator=generator) * 4, float("nan")),
            TEACHER_SCORES: 3 * torch.randn(shape, generator=generator),
            CLEAN: torch.rand(num_queries, generator=generator) < 0.5,
            RANKER_SCORES: (3 * torch.randn(shape, generator=generator)).masked_fill(unknown_QC, float("nan")),
        },
    )


def with_weights(candidates: Candidates, seed: int = 1) -> Candidates:
    generator = torch.Generator().manual_seed(seed)
    log_weight_QC = -torch.rand(candidates.scores_QC.shape, generator=generator)
    log_weight_QC[torch.arange(len(candidates.positive_Q)), candidates.positive_Q] = 0.0
    return replace(candidates, log_weight_QC=log_weight_QC)


def gradient(candidates: Candidates, per_query_Q: torch.Tensor) -> torch.Tensor:
    """The gradient of the batch's mean loss at the scores."""
    (gradient_QC,) = torch.autograd.grad(per_query_Q.mean(), candidates.scores_QC)
    return gradient_QC


def scored(candidates: Candidates, query: int) -> list[int]:
    """The columns of a query's candidates that a ranker has scored and that count."""
    unknown_C = candidates.signals["ranker_scores_QC"][query].isnan() | candidates.excluded_QC[query]
    return torch.nonzero(~unknown_C).squeeze(1).tolist()


def numeric_gradient(candidates: Candidates, loss, epoch: int = 0, step: float = 1e-4) -> torch.Tensor:
    """The gradient of the batch's mean loss at the scores by differences, in float64."""
    scores_QC = candidates.scores_QC.detach().double()
    found_QC = torch.zeros_like(scores_QC)
    for place in range(scores_QC.numel()):
        values = []
        for sign in (1, -1):
            moved_QC = scores_QC.clone()
            moved_QC.view(-1)[place] += sign * step
            values.append(sum(loss(replace(candidates, scores_QC=moved_QC))) / len(scores_QC))
        found_QC.view(-1)[place] = (values[0] - values[1]) / (2 * step)
    return found_QC
