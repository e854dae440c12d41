"""What is told of a data set."""

from __future__ import annotations

import numpy as np

from raydr.data.inspection_report import measure_lengths


def test_lengths() -> None:
    lengths = measure_lengths(np.arange(1, 101), max_length=90)
    assert lengths.percentiles == {"50": 50, "90": 90, "95": 95, "99": 99}
    assert lengths.share_truncated == 0.1
    assert measure_lengths(np.zeros(0, np.int64), max_length=9).num_sampled == 0
