"""Whether a cross-encoder has learnt anything: its loss beside that of guessing, and dev before and after, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: The metric of an epoch that has the loss of guessing on the lists of its steps (``Loss.guess_QC``).
GUESSING = "guessing"
#: A mean loss that is below guessing by no more than this share of it is that of a model that has not learnt.
LITTLE = 0.1


def not_learnt(
    section: str, history: Sequence[Mapping[str, Any]], best_epoch: int | None, before: Mapping[str, float]
) -> list[str]:
    """What is to be said of a training that came to little; nothing where it did not.

    Args:
        section: where its settings stand.
        history: an epoch each: ``epoch``, from 0, and ``metrics``.
        best_epoch: the one that became the model; the last if None.
        before: the dev measure of the run that it orders, by its name in the metrics; empty if there is none.

    >>> rows = [{"epoch": 0, "metrics": {"loss": 2.06, "guessing": 2.197, "dev RR@10": 0.31}}]
    >>> for remark in not_learnt("ranker", rows, 0, {"dev RR@10": 0.6}):
    ...     print(remark.partition(". ")[0])
    the cross-encoder has learnt next to nothing: in epoch 1 its mean loss is 2.0600, guessing has 2.1970
    the cross-encoder orders dev queries worse than the run that it is given: dev RR@10 0.3100, the run 0.6000
    """
    row = history[-1 if best_epoch is None else best_epoch]
    metrics, remarks = row["metrics"], list[str]()
    loss, guessing = metrics["loss"], metrics[GUESSING]
    if guessing - loss <= LITTLE * abs(guessing):
        remarks.append(
            f"the cross-encoder has learnt next to nothing: in epoch {row['epoch'] + 1} its mean loss is {loss:.4f}, "
            f"guessing has {guessing:.4f}. What may help: a higher {section}.optimizer.learning_rate, more "
            f"{section}.num_epochs or queries, or a {section}.model.checkpoint that ranks already"
        )
    for name, value in before.items():
        if metrics[name] < value:
            remarks.append(
                "the cross-encoder orders dev queries worse than the run that it is given: "
                f"{name} {metrics[name]:.4f}, the run {value:.4f}"
            )
    return remarks
