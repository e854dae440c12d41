"""Checks of the training: collapsed vectors, forgetting, learning rate, temperature, too few steps."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from raydr.diagnosis.diagnosis import Check, Finding, Rank
from raydr.diagnosis.evidence import CONFIDENCE, TRAINED, Evidence, FloatArray, Progress, mean_of
from raydr.evaluation.significance import bootstrap_means


class CollapsedVectors(Check):
    """The largest of N random cosines in r dimensions is about √(2 ln N / r). Below r = 2 ln N some of N passages are
    by chance as near to a query as its own passage.

    A large common component is harmless: raw encoders rank with mean cosines of 0.9. r is the effective rank of centred
    vectors of length 1: the exponential of the entropy of their spectrum (Roy and Vetterli, EUSIPCO 2007). It is the
    larger of the ranks of two halves of the passages.

    >>> flat_PD = np.random.default_rng(0).normal(size=(400, 2)) @ np.random.default_rng(1).normal(size=(2, 32))
    >>> CollapsedVectors().examine(Evidence(vectors_PD=flat_PD, num_passages=5000)).level
    'fault'
    """

    compares: ClassVar[str] = "the effective rank of passage vectors with the rank that this number of passages needs"
    needs: ClassVar[str] = "passages have several vectors, or none was measured"
    rank: ClassVar[Rank] = "symptom"

    name: Literal["collapsed_vectors"] = "collapsed_vectors"

    def examine(self, evidence: Evidence) -> Finding | None:
        vectors_PD = evidence.vectors_PD
        if vectors_PD.ndim != 2 or len(vectors_PD) < 4:
            return None
        unit_PD = vectors_PD / np.maximum(np.linalg.norm(vectors_PD, axis=1, keepdims=True), 1e-12)
        num = len(unit_PD)
        cosine = float((np.square(unit_PD.sum(axis=0)).sum() - num) / (num * (num - 1)))
        rank = max(_effective_rank(unit_PD[0::2]), _effective_rank(unit_PD[1::2]))
        needed = 2.0 * np.log(max(evidence.num_passages, 2))
        return self.finding(
            1.0 - rank / needed,
            f"passage vectors have effective rank {rank:.1f} of {unit_PD.shape[1]}, {evidence.num_passages:,} passages "
            f"need {needed:.0f}; two random vectors have mean cosine {cosine:.2f}",
            advice="a lower train.optimizer.learning_rate, more negatives (train.batch_size), a wider model.projection",
        )


def _effective_rank(vectors_PD: FloatArray) -> float:
    spectrum = np.square(np.linalg.svd(vectors_PD - vectors_PD.mean(axis=0), compute_uv=False))
    shares = spectrum[spectrum > 0] / max(float(spectrum.sum()), 1e-300)
    return float(np.exp(-(shares * np.log(shares)).sum()))


class Forgetting(Check):
    """Share of the untrained model's result on held-out queries that training loses.

    It is a symptom. It is a cause if training queries lose too while the loss has halved: then the loss does not
    measure retrieval.

    >>> rng = np.random.default_rng(0)
    >>> before = rng.uniform(size=300)
    >>> Forgetting().examine(Evidence(held_out={"untrained": before, "trained": before * 0.6})).level
    'fault'
    """

    compares: ClassVar[str] = "the trained model with the untrained one on held-out queries (paired)"
    needs: ClassVar[str] = "there is no held-out split"
    rank: ClassVar[Rank] = "symptom"

    name: Literal["forgetting"] = "forgetting"

    def examine(self, evidence: Evidence) -> Finding | None:
        held_out, progress = Progress.of(evidence.held_out), Progress.of(evidence.training)
        if held_out is None:
            return None
        change, gain = f"of held-out queries {held_out.before:.3f} -> {held_out.after:.3f}", held_out.gain
        if progress is not None and progress.lost and evidence.is_loss_reached:
            return self.finding(
                min(progress.lost, held_out.lost),
                f"the loss does not measure retrieval: it falls, {evidence.losses[0]:.2g} -> "
                f"{evidence.losses[-1]:.2g}, and so do {progress}, and {change}",
                "train.loss=nce",
                advice="other queries' passages as negatives (a larger train.batch_size), a better train.ranker if "
                "the loss reads its scores",
                rank="cause",
            )
        curve = f"; dev by epoch {', '.join(f'{value:.3f}' for value in evidence.dev)}" if evidence.dev else ""
        best = int(np.argmax(evidence.dev)) + 1 if evidence.dev else 0
        fewer = f"or train.num_epochs={best}, " if best < len(evidence.dev) else ""
        return self.finding(
            held_out.lost,
            f"RR@10 {change} ({gain.mean:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]){curve}",
            f"train.optimizer.learning_rate={evidence.learning_rate / 3:.0e}",
            advice=f"{fewer}train.keep=best with a dev split, training pairs like the searched queries",
        )


#: Usual size of a step, relative to the weights (Karpathy, CS231n).
_USUAL_STEP = 1e-3


class LearningRate(Check):
    """Too hot: training queries score lower than before, steps were not small, and the loss has not halved. Too cold:
    training queries gained almost nothing, and steps were below a tenth of the usual size.

    >>> import numpy as np
    >>> before = np.random.default_rng(0).uniform(size=300)
    >>> for after, rate in ((before / 10, 1e-2), (before + 0.001, 2e-7), (before + 0.2, 2e-7)):
    ...     evidence = Evidence(training={"untrained": before, "trained": after}, learning_rate=rate, weight_size=0.05)
    ...     print(LearningRate().examine(evidence).level)
    fault
    fault
    ok
    """

    compares: ClassVar[str] = "the trained model with the untrained one on training queries (paired)"
    needs: ClassVar[str] = "there are no training queries"

    name: Literal["learning_rate"] = "learning_rate"

    def examine(self, evidence: Evidence) -> Finding | None:
        progress = Progress.of(evidence.training)
        if progress is None:
            return None
        rate, step = evidence.learning_rate, evidence.step_size
        if is_cold := step < _USUAL_STEP / 10:
            severity, better = progress.left, _USUAL_STEP / 2 * evidence.weight_size
        else:
            is_hot = step > _USUAL_STEP and not evidence.is_loss_reached
            severity, better = progress.lost if is_hot else 0.0, rate / 30
        losses = " -> ".join(f"{loss:.2f}" for loss in (*evidence.losses[:1], *evidence.losses[1:][-1:]))
        facts = f"{progress}, loss {losses or 'unknown'}; a step moves weights by up to {step:.2g} of their size"
        return self.finding(
            severity,
            f"too {'cold' if is_cold else 'hot'}: {facts}" if severity else facts,
            f"train.optimizer.learning_rate={better:.0e}",
            advice=f"(now {rate:.0e})",
        )


#: Grid of scales, logarithmic.
_SCALES = np.geomspace(1e-3, 1e5, 195)
#: Minimum information of usable similarities, as a share of log C, the maximum for C candidates.
_KNOWS = 0.05


class Temperature(Check):
    """A softmax with scale τ has log C + log p(positive) nats of information about C candidates.

    The severity is the share of the best τ's information on held-out queries that the configured τ loses. It is the
    smaller loss of the untrained and the trained model, since training adapts similarities to its scale. It is no cause
    for a model that has learnt almost nothing.

    >>> rng = np.random.default_rng(0)
    >>> cosines_QC = rng.normal(0.1, 0.1, (200, 64)) + np.eye(64)[0] * 0.4
    >>> [Temperature().examine(Evidence(similarities={"trained": cosines_QC}, scale=scale)).level
    ...     for scale in (0.5, 40.0, 1000.0)]
    ['fault', 'ok', 'fault']
    """

    compares: ClassVar[str] = "the configured scale with the best scale for held-out queries"
    needs: ClassVar[str] = "no model separates held-out passages"

    name: Literal["temperature"] = "temperature"

    def examine(self, evidence: Evidence) -> Finding | None:
        losses = {reader: _lost(similarities, evidence.scale) for reader, similarities in evidence.similarities.items()}
        known = {reader: loss for reader, loss in losses.items() if loss is not None}
        if not known:
            return None
        progress = Progress.of(evidence.training)
        reader, (severity, lost, best) = min(known.items(), key=lambda item: item[1])
        lost, best = min(max(lost, 0.0), 1.0), float(f"{best:.2g}")
        return self.finding(
            severity,
            f"model.scale {evidence.scale:g} loses {lost:.0%} of the information in the {reader} model's similarities "
            f"on held-out queries; {best:g} fits them best",
            f"model.scale={best:g}",
            rank="symptom" if progress is not None and progress.left else "cause",
        )


def _lost(similarities_QC: FloatArray, scale: float) -> tuple[float, float, float] | None:
    """Return the lost share with its lower end first, and the best scale; None without information."""
    if len(similarities_QC) < 4 or similarities_QC.shape[1] < 2:
        return None
    information_SQ = np.stack([_information(similarities_QC, other) for other in _SCALES])
    at = int(information_SQ.mean(axis=1).argmax())
    information_Q2 = np.stack([_information(similarities_QC, scale), information_SQ[at]], axis=1)
    means_S2 = bootstrap_means(information_Q2, 2_000, seed=0)
    tail = (1 - CONFIDENCE) / 2
    if np.quantile(means_S2[:, 1], tail) < _KNOWS * np.log(similarities_QC.shape[1]):
        return None
    lost_S = 1.0 - means_S2[:, 0] / means_S2[:, 1]
    mean_2 = information_Q2.mean(axis=0)
    return float(np.quantile(lost_S, tail)), float(1.0 - mean_2[0] / mean_2[1]), float(_SCALES[at])


def _information(similarities_QC: FloatArray, scale: float) -> FloatArray:
    logits_QC = scale * similarities_QC
    log_sum_Q = np.logaddexp.reduce(logits_QC, axis=1)
    return np.asarray(np.log(similarities_QC.shape[1]) + logits_QC[:, 0] - log_sum_Q)


#: Number of steps below that of any published fine-tuning.
_FEW = 100


class TooFewSteps(Check):
    """Training queries gained almost nothing, and held-out queries nothing; or few steps were taken and the last epoch
    still helped held-out queries. In the second case the severity is the missing share of a hundred steps.

    >>> import numpy as np
    >>> before = np.random.default_rng(0).uniform(size=300)
    >>> training = {"untrained": before, "trained": before + 0.001}
    >>> TooFewSteps().examine(Evidence(training=training, num_steps=3, learning_rate=1e-3)).level
    'fault'
    """

    compares: ClassVar[str] = "the trained model with the untrained one (paired), the last two epochs"
    needs: ClassVar[str] = "there are no training queries"
    rank: ClassVar[Rank] = "otherwise"

    name: Literal["too_few_steps"] = "too_few_steps"

    def examine(self, evidence: Evidence) -> Finding | None:
        progress = Progress.of(evidence.training)
        if progress is None:
            return None
        num, epochs = evidence.num_steps, len(evidence.losses)
        facts = (
            f"{'almost nothing was learnt: ' * (progress.left > 0)}{num:,} steps in all ({epochs} "
            f"{'epoch' if epochs == 1 else 'epochs'}); {progress}"
        )
        if num < _FEW:
            return self.finding(
                max(progress.left, 1.0 - num / _FEW if _rose(evidence) else 0.0),
                facts,
                f"train.num_epochs={max(2, epochs) * -(-2 * _FEW // max(1, num))}",
                advice="or a smaller train.batch_size",
            )
        others = Progress.of(evidence.held_out)
        return self.finding(
            progress.left if others is None else min(progress.left, others.left),
            facts,
            advice="check that model.checkpoint is a trained encoder, with its own pooling and prefixes, and that few "
            f"of its layers are frozen; if so, train.num_epochs={3 * max(1, epochs)}",
            rank="unexplained",
        )


def _rose(evidence: Evidence) -> bool:
    """Return whether the last epoch raised the dev measure, or a single epoch the held-out measure, significantly."""
    if len(evidence.dev) > 1 and TRAINED in evidence.held_out:
        # The interval of the mean is wider than that of the paired difference, hence safe.
        interval = mean_of(evidence.held_out[TRAINED])
        return evidence.dev[-1] - evidence.dev[-2] > interval.mean - interval.low
    others = Progress.of(evidence.held_out)
    return others is not None and others.gain.low > 0.0
