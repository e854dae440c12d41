"""How much a training has learnt, of its own pairs or for others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raydr.diagnosis import intervals
from raydr.diagnosis.evidence import TRAINED, UNTRAINED, FloatArray
from raydr.evaluation.significance import Interval

#: A training that, with 97.5 % confidence, has closed less than this of what there was to learn has learnt nothing.
_LITTLE = 0.1


@dataclass(frozen=True)
class Progress:
    """RR@10 of queries.

    Args:
        before: its mean by the untrained model.
        gain: what training has added, paired.
    """

    before: float
    gain: Interval

    @classmethod
    def of(cls, found: Mapping[str, FloatArray]) -> Progress | None:
        """By reader, of training or of held-out queries; None where it was not measured."""
        if TRAINED not in found or UNTRAINED not in found:
            return None
        before = found[UNTRAINED]
        return cls(float(before.mean()), intervals.mean(found[TRAINED] - before))

    @property
    def left(self) -> float:
        """What is left to learn, at least, if next to nothing was learnt; else 0."""
        room = 1.0 - self.before
        return room - self.gain.high if 0.0 <= self.gain.high <= _LITTLE * room else 0.0

    @property
    def lost(self) -> float:
        """The share of what the untrained model finds that the trained one does not, at least."""
        return max(0.0, -self.gain.high) / max(self.before, 1e-9)

    def __str__(self) -> str:
        return f"RR@10 of training queries {self.before:.3f} -> {self.before + self.gain.mean:.3f}"
