"""A saved model as mteb has its encoders; mteb need not be there until it asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from raydr.errors import ConfigError
from raydr.models.checkpoint import checkpoint_fingerprint
from raydr.models.config import SIDES, Side
from raydr.models.encode_config import TOKEN_BUDGET
from raydr.models.pair_scoring import DualEncoderScorer
from raydr.store.artifact import Artifact


class MtebEncoder:
    """What mteb 2 calls an ``EncoderProtocol``.

    Prefixes, lengths and the way that a title goes before its text are the model's own, by the kind of text: passages
    are what mteb calls documents, all else is encoded as queries are. Similarities are those of its score function.

    Args:
        folder: of the saved model.
        device: ``cpu`` or ``cuda``.
        dtype: arithmetic of the encoder.
    """

    def __init__(self, folder: str, device: str, dtype: str) -> None:
        self.folder = folder
        self._scorer = DualEncoderScorer(folder, dtype, device, TOKEN_BUDGET[device])
        self.config = self._scorer.config

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: str | None = None, **options: Any
    ) -> NDArray[np.float32]:
        """Vectors of all texts: (N, D), or (N, M, D) padded with zeros where there are several a text.

        Args:
            inputs: batches of texts; of documents with titles also ``title`` and ``body``.
            prompt_type: ``query`` or ``document``; queries if None.
            options: what else mteb says: the task, the split, and sizes of batches, which are the model's own.

        Raises:
            ConfigError: vectors are asked for in a precision that they are not made in.
        """
        if (precision := options.get("precision") or "float32") != "float32":
            raise ConfigError(f"precision {precision!r}: these vectors are float32; leave it out")
        side: Side = "passage" if prompt_type == "document" else "query"
        titles: list[str] = []
        texts: list[str] = []
        for batch in inputs:
            titled = "title" in batch
            texts.extend(batch["body" if titled else "text"])
            titles.extend(batch["title"] if titled else [""] * len(batch["text"]))
        return self._scorer.encode(side, titles if any(titles) else None, texts)

    def similarity(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Similarities (N1, N2) of queries with passages."""
        return self.config.score.all_pairs(_tensor(embeddings1), _tensor(embeddings2))

    def similarity_pairwise(self, embeddings1: ArrayLike | Tensor, embeddings2: ArrayLike | Tensor) -> Tensor:
        """Similarities (N,) of each query with the passage of its row."""
        return self.config.score.pairs(_tensor(embeddings1), _tensor(embeddings2))

    @property
    def mteb_model_meta(self) -> Any:
        """How mteb calls the model; its results are kept by the revision, a checksum of the model's files."""
        from mteb.models.model_meta import ModelMeta, ScoringFunction

        similarity = self.config.similarity if self.config.score.name == "dual" else "custom"
        given = self.config.model_copy(update={"checkpoint": self.folder, "passage_checkpoint": ""})
        return ModelMeta.create_empty(
            {
                "name": f"raydr/{Path(self.folder).name}",
                "revision": checkpoint_fingerprint(given),
                "max_tokens": max(self.config.side(side).max_length for side in SIDES),
                "embed_dim": self._scorer.towers["passage"].dim,
                "similarity_fn_name": ScoringFunction(similarity),
                "use_instructions": any(self.config.side(side).prefix for side in SIDES),
            }
        )


def as_mteb(model: str | Path | Artifact, device: str = "", dtype: str = "float32") -> MtebEncoder:
    """A saved model for the tasks of mteb: ``mteb.evaluate(raydr.as_mteb("work/models/trained"), tasks)``.

    Args:
        model: its folder, or an artefact that ``raydr.train`` made.
        device: ``cpu`` or ``cuda``; the GPU if there is one if empty.
        dtype: arithmetic of the encoder.

    Raises:
        ModelError: the folder holds no raydr model.
    """
    folder = model.folder.localize_all() if isinstance(model, Artifact) else str(model)
    return MtebEncoder(folder, device or ("cuda" if torch.cuda.is_available() else "cpu"), dtype)


def _tensor(vectors: ArrayLike | Tensor) -> Tensor:
    """As PyTorch has them; a single vector as a row."""
    found = torch.as_tensor(vectors)
    return found if found.ndim > 1 else found.unsqueeze(0)
