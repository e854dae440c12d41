"""How a model scores pairs: what every worker is told that opens one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydr.data.dataset import Dataset
from raydr.models.encode_config import EncodeConfig
from raydr.models.saved_config import read_config
from raydr.runtime.console import say
from raydr.stages.arithmetic import Arithmetic, require_device
from raydr.stages.folds import fold_of_texts
from raydr.stages.pool import Pool
from raydr.store.artifact import Artifact

if TYPE_CHECKING:
    from raydr.models.pair_scoring import PairScorer


#: Pairs that are scored together, about: a cross-encoder reads each anew, of which a killed worker loses one range; a
#: retriever's texts are encoded once a range.
PAIRS_READ, PAIRS_ENCODED = 2_000, 20_000


@dataclass(frozen=True)
class Scoring:
    """How pairs are scored: by a ``model`` or a ``cross_encoder``, in an arithmetic; picklable."""

    model: Artifact
    arithmetic: Arithmetic
    num_threads: int | None

    @property
    def is_cross_encoder(self) -> bool:
        return self.model.kind == "cross_encoder"

    @property
    def num_pairs(self) -> int:
        """Pairs that are scored together, about."""
        return PAIRS_READ if self.is_cross_encoder else PAIRS_ENCODED

    @property
    def scale(self) -> float:
        """What scores are multiplied by, so that they are what losses see: a retriever's τ; 1 for a cross-encoder."""
        return 1.0 if self.is_cross_encoder else read_config(self.model.local_folder()).scale

    def tell(self, what: str) -> None:
        """Say in which arithmetic something is scored, and why."""
        how = self.arithmetic
        say(f"{what}: dtype {how.dtype} on {how.device} ({how.reason})")

    def open(self, probabilities: bool = True) -> PairScorer:
        """Load the model, in the process that will use it.

        Args:
            probabilities: of relevance, of a cross-encoder; its log-odds if False. Of a retriever similarities.
        """
        from raydr.models.cross_encoder import CrossEncoderScorer, ProbabilityScorer
        from raydr.models.pair_scoring import DualEncoderScorer

        how = self.arithmetic
        require_device(how.device)
        reads = ProbabilityScorer if probabilities else CrossEncoderScorer
        kind = reads if self.is_cross_encoder else DualEncoderScorer
        return kind(self.model.local_folder(), how.dtype, how.device, how.token_budget, self.num_threads)


@dataclass(frozen=True)
class CrossFittedScoring(Scoring):
    """How the pairs of a split are scored that was cut into folds: each by the model that has not seen its query.

    Args:
        others: the models of the folds but the first, which is ``model``.
        folds: the fold of each query.
        data: has the queries.
        split: that was cut.
    """

    others: tuple[Artifact, ...]
    folds: Artifact
    data: Dataset
    split: str

    def open(self, probabilities: bool = True) -> PairScorer:
        from raydr.models.pair_scoring import CrossFittedScorer

        each = [Scoring(model, self.arithmetic, self.num_threads) for model in (self.model, *self.others)]
        fold_of = fold_of_texts(self.folds, self.data, self.split)
        return CrossFittedScorer([one.open(probabilities) for one in each], fold_of)


def scoring_of(pool: Pool, model: Artifact, settings: EncodeConfig, arithmetic: Arithmetic) -> Scoring:
    """Scoring with a model, by workers of these settings, for which the arithmetic is resolved."""
    return Scoring(model, arithmetic, pool.num_threads(settings.cpus_per_actor))
