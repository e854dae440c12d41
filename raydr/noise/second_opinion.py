"""How probably a label is wrong, after a second reader has scored what a first one was unsure of."""

from __future__ import annotations

from typing import Any

import numpy as np

from raydr.noise.judges.base import FloatArray

#: Of probabilities: their log-odds are finite.
_SMALLEST = 1e-12
#: Fewer rows say nothing of two distributions.
_FEWEST = 50
#: t of a correlation that is no chance.
_SURE = -3.0
_MOST_STEPS, _TOLERANCE = 500, 1e-6


def second_opinion(suspected_N: FloatArray, relevance_N: FloatArray) -> tuple[FloatArray, dict[str, Any]]:
    """P(wrong), shape (N,), by what a first judge suspects and how relevant a second reader finds the passage.

    With s the log-odds of the relevance, which lie around μ_w where the label is wrong and around μ_r where it is
    right, with one spread σ, independently of the first judge's evidence,

        log-odds of wrong = log-odds(suspected) − (μ_r − μ_w) / σ² · (s − (μ_r + μ_w) / 2).

    μ_w, μ_r and σ are the likeliest ones, by expectation and maximisation from the first judge's probabilities, which
    stay each row's prior weight: so no label is needed, and the result is calibrated if the first judge is and s is so
    distributed. A reader is believed only where its scores fall with what the first judge suspects (t ≤ −3 of their
    correlation): two groups of texts that it happens to tell apart would otherwise pass for right and wrong ones.

    Source: none; a mixture of two normal distributions whose weights are known row by row.

    Args:
        suspected_N: the first judge's P(wrong).
        relevance_N: the reader's probability of relevance, of whatever scale.

    Returns:
        The probabilities, and what they rest on: ``num_read``, ``separation`` ((μ_r − μ_w) / σ), and ``reason`` where
        they are the first judge's alone.

    >>> rng = np.random.default_rng(0)
    >>> suspected_N = rng.uniform(0.1, 0.9, 2000)
    >>> wrong_N = rng.random(2000) < suspected_N
    >>> logits_N = rng.normal(np.where(wrong_N, -4.0, 1.0), 1.5)
    >>> after_N, facts = second_opinion(suspected_N, 1.0 / (1.0 + np.exp(-logits_N)))
    >>> float(((suspected_N > 0.5) == wrong_N).mean().round(2)), float(((after_N > 0.5) == wrong_N).mean().round(2))
    (0.69, 0.96)
    >>> round(facts["separation"], 1)
    3.4
    """
    from scipy.special import expit

    num = len(suspected_N)
    facts: dict[str, Any] = {"num_read": num, "separation": 0.0}
    if num < _FEWEST:
        return suspected_N, facts | {"reason": f"fewer than {_FEWEST} labels are in doubt"}
    prior_N, score_N = _log_odds(suspected_N), _log_odds(relevance_N)
    together = np.corrcoef(suspected_N, score_N)[0, 1] if np.ptp(suspected_N) and np.ptp(score_N) else 0.0
    if together * (num - 2) ** 0.5 > _SURE * (1.0 - together**2) ** 0.5:
        return suspected_N, facts | {"reason": "the second reader does not bear out what the first judge suspects"}
    wrong_N, before = suspected_N, np.inf
    for _ in range(_MOST_STEPS):
        wrong, right = (float(np.average(score_N, weights=weight_N)) for weight_N in (wrong_N, 1.0 - wrong_N))
        variance = float((wrong_N * (score_N - wrong) ** 2 + (1.0 - wrong_N) * (score_N - right) ** 2).mean())
        slope = (right - wrong) / max(variance, _SMALLEST)
        if abs(slope - before) < _TOLERANCE * abs(slope):
            break
        before = slope
        wrong_N = expit(prior_N - slope * (score_N - (right + wrong) / 2.0))
    return wrong_N, facts | {"separation": (right - wrong) / max(variance, _SMALLEST) ** 0.5}


def _log_odds(probability_N: FloatArray) -> FloatArray:
    inside_N = np.clip(probability_N, _SMALLEST, 1.0 - _SMALLEST)
    return np.asarray(np.log(inside_N) - np.log1p(-inside_N))
