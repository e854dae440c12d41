"""How a model scores positives, hard negatives, other queries' positives and planted false negatives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from experiments.arm_training import ArmData
from experiments.results import Table
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.noise.passage_kinds import FALSE_NEGATIVE, HARD, KINDS, POSITIVE, RANDOM, draw_kinds
from raydr.pages.figure import COLORS, Draw, grid
from raydr.stages.pair_reader import PairReader
from raydr.store.folder import Folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Similarities by kind of passage.
KindScores = Mapping[str, NDArray[np.float64]]

NUM_QUERIES, NUM_CANDIDATES, NUM_RANDOM = 1000, 30, 10


def sample_kinds(data: ArmData, split: str, seed: int) -> pa.Table:
    """Queries with their passages of each kind, the same for all models."""
    sizes = NUM_QUERIES, NUM_CANDIDATES, NUM_RANDOM
    return draw_kinds(data.dataset, data.corpus, data.negatives, split, seed, *sizes)


def score_kinds(
    name: str, data: ArmData, split: str, model: Folder, table: pa.Table
) -> tuple[str, dict[str, NDArray[np.float64]]]:
    """Similarities of the sampled passages to their queries, by kind, beside the model's name; run as a Ray task."""
    scorer = DualEncoderScorer(model.localize_all(), "float32", "cpu", TOKEN_BUDGET["cpu"], num_threads=1)
    reader = PairReader(data.dataset, data.corpus, split, scorer)
    scores_P = reader.scores(table["query_id"].to_pylist(), table["passage_id"].to_pylist())
    kind_P = table["kind"].to_numpy()
    return name, {kind: scores_P[kind_P == kind] for kind in KINDS if (kind_P == kind).any()}


def kinds_table(by_model: Mapping[str, KindScores]) -> Table:
    """Means, and how well the planted false negatives are told from the other kinds."""
    rows = []
    for name, scores in by_model.items():
        kinds = [kind for kind in (POSITIVE, FALSE_NEGATIVE, HARD, RANDOM) if kind in scores]
        means = [f"{scores[kind].mean():.3f} ± {scores[kind].std():.3f}" for kind in kinds]
        rows.append([name, *means, *(f"{auroc(scores, *pair):.3f}" for pair in _PAIRS)])
    columns = ["arm", POSITIVE, FALSE_NEGATIVE, HARD, RANDOM, *(f"AUROC {one} / {two}" for one, two in _PAIRS)]
    return Table("Similarity by kind of passage, mean ± standard deviation", columns, rows)


_PAIRS = ((FALSE_NEGATIVE, HARD), (POSITIVE, FALSE_NEGATIVE), (POSITIVE, HARD))


def auroc(scores: KindScores, high: str, low: str) -> float:
    """The chance that a passage of the one kind scores above one of the other kind.

    >>> auroc({"a": np.array([2.0, 0.0]), "b": np.array([1.0])}, "a", "b")
    0.5
    """
    labels = np.concatenate([np.ones(len(scores[high])), np.zeros(len(scores[low]))])
    return float(roc_auc_score(labels, np.concatenate([scores[high], scores[low]])))


def kinds_picture(by_model: Mapping[str, KindScores], title: str, columns: int) -> bytes:
    """Densities of the similarities, a panel a model."""
    everything = np.concatenate([values for scores in by_model.values() for values in scores.values()])
    edges = np.linspace(everything.min(), everything.max(), 41).tolist()

    def draw(scores: KindScores, axes: Axes) -> None:
        for at, (kind, values) in enumerate(scores.items()):
            axes.hist(values, edges, density=True, histtype="step", color=COLORS[at], label=kind, linewidth=1.3)
        axes.set_yticks([])
        axes.set_xlabel("similarity")

    panels: list[tuple[str, Draw]] = [(name, partial(draw, scores)) for name, scores in by_model.items()]
    return grid(panels, title, columns=columns)
