"""Pictures of noise and of its detection, as PNG bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from raydr.noise.detectors.base import Axis, MixtureFit, to_axis
from raydr.pages.figure import COLORS, INK, legend, png

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Name of each axis, and after a colon its meaning.
AXIS_LABELS: dict[Axis, str] = {
    "perplexity": "perplexity",
    "log": "log perplexity",
    "margin": "margin: how far random passages score above the pair's own",
}


@dataclass(frozen=True)
class DetectedPairs:
    """One detection of mismatched pairs.

    Args:
        perplexities_N: one a pair.
        clean_N: False for the flagged ones.
        fit: the mixture; None if nothing was fitted.
        truth_N: whether each pair is mismatched; None if that is not known.
    """

    perplexities_N: FloatArray
    clean_N: BoolArray
    fit: MixtureFit | None
    truth_N: BoolArray | None = None

    @property
    def axis(self) -> Axis:
        return self.fit.axis if self.fit is not None else "perplexity"

    @property
    def boundary(self) -> float | None:
        """On the axis, half-way between the last clean pair and the first flagged one; None if nothing is flagged.

        >>> found = DetectedPairs(np.array([0.1, 4.0, 2.0]), np.array([True, False, True]), None)
        >>> found.boundary
        3.0
        """
        if self.clean_N.all() or not self.clean_N.any():
            return None
        axis_N = to_axis(self.perplexities_N, self.axis)
        return float(axis_N[self.clean_N].max() + axis_N[~self.clean_N].min()) / 2

    @property
    def caption(self) -> str:
        """What :meth:`draw` shows of them.

        >>> DetectedPairs(np.array([0.1, 4.0]), np.array([True, False]), None).caption
        'the annotated pairs by perplexity, and where flagging begins'
        """
        shown = [f"the annotated pairs by {AXIS_LABELS[self.axis].partition(':')[0]}"]
        if self.fit is not None and self.fit.bimodal:
            shown.append("the two components of the mixture")
        if self.boundary is not None:
            shown.append("where flagging begins")
        return ", and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else f"{shown[0]}; none is flagged"

    def draw(self, axes: Axes) -> None:
        """Draw a histogram on the axis of the mixture, split by the truth where that is known.

        The two densities are added if the mixture is bimodal, and the threshold if a pair is flagged.
        """
        axis_N = to_axis(self.perplexities_N, self.axis)
        edges = np.histogram_bin_edges(axis_N, bins=60)
        if self.truth_N is None:
            axes.hist(axis_N, bins=list(edges), density=True, color="#BBBBBB", label="pairs")
        else:
            kinds = [axis_N[~self.truth_N], axis_N[self.truth_N]]
            # The two histograms have one area together, so that the components' densities fit on top.
            weights = [np.full(len(kind), 1 / (len(axis_N) * (edges[1] - edges[0]))) for kind in kinds]
            axes.hist(
                kinds, bins=list(edges), weights=weights, stacked=True,
                color=["#BBBBBB", "#E8A0A0"], label=["right pairs", "noisy pairs"],
            )  # fmt: skip
        if self.fit is not None and self.fit.bimodal:
            x = np.linspace(edges[0], edges[-1], 400)
            for name, color, log_density in zip(
                ("clean", "mismatched"), COLORS[:2], self.fit.log_densities(x), strict=True
            ):
                axes.plot(x, np.exp(log_density), color=color, label=name)
        if self.boundary is not None:
            label = f"threshold {self.boundary:.3g}"
            axes.axvline(self.boundary, color=INK, linestyle="--", linewidth=1, label=label)


def parse_fit(raw: Mapping[str, Any] | None) -> MixtureFit | None:
    """Parse the mixture of a manifest.

    >>> parse_fit(None) is None
    True
    """
    return None if raw is None else TypeAdapter(MixtureFit).validate_python(raw)


def perplexity_histogram(pairs: DetectedPairs, title: str) -> bytes:
    """Draw a detection as a PNG."""

    def draw(axes: Axes) -> None:
        pairs.draw(axes)
        axes.set(xlabel=AXIS_LABELS[pairs.axis], ylabel="density")
        legend(axes)

    return png(draw, title)
