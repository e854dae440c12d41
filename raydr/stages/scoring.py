"""How a model scores pairs: what every worker is told that opens one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raydr.models.encode_config import EncodeConfig
from raydr.stages.arithmetic import Arithmetic, require_device
from raydr.store.artifact import Artifact
from raydr.store.folder import Folder

if TYPE_CHECKING:
    from raydr.models.pair_scoring import PairScorer


@dataclass(frozen=True)
class Scoring:
    """How pairs are scored; small and picklable."""

    model: Folder
    fingerprint: str
    is_cross_encoder: bool
    arithmetic: Arithmetic
    num_threads: int

    def open(self) -> PairScorer:
        """Load the model, in the process that will use it."""
        from raydr.models.cross_encoder import CrossEncoderScorer
        from raydr.models.pair_scoring import DualEncoderScorer

        how = self.arithmetic
        require_device(how.device)
        kind = CrossEncoderScorer if self.is_cross_encoder else DualEncoderScorer
        return kind(self.model.localize_all(), how.dtype, how.device, how.token_budget, self.num_threads)


def scoring_of(model: Artifact, settings: EncodeConfig, arithmetic: Arithmetic) -> Scoring:
    """Scoring with a ``model`` or a ``cross_encoder`` artefact.

    Args:
        model: the artefact.
        settings: of the workers.
        arithmetic: resolved for them.
    """
    is_cross_encoder = model.manifest.identity.kind == "cross_encoder"
    num_threads = max(1, int(settings.cpus_per_actor))
    return Scoring(model.folder, model.fingerprint, is_cross_encoder, arithmetic, num_threads)
