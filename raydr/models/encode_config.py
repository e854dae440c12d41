"""Settings of encoding passages and queries into vectors."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raydr.component import Config, Neutral, Resolved
from raydr.models.config import Dtype

#: Default tokens of a batch by kind of device (docs/performance.md).
TOKEN_BUDGET = {"cpu": 4096, "cuda": 32_768}

#: Passages on which the scales of an encoder in int8 are measured.
NUM_CALIBRATING = 200

EncodeDtype = Literal[Dtype, "int8"]


class EncodeConfig(Config):
    """Batches, dtype and workers of the encoding of texts into vectors."""

    dtype: Annotated[EncodeDtype, Resolved] = "auto"
    """Dtype of the encoder; ``auto``: bfloat16 if the processor has it. ``int8`` requires a processor with VNNI or AMX,
    and openvino and nncf (``raydr[int8]``). It encodes passages alone, with scales measured on 200 of them. Queries are
    encoded, and pairs scored, as with ``auto`` (docs/performance.md)."""

    token_budget: Annotated[int | None, Resolved] = Field(default=None, ge=64)
    """Maximum of tokens of a batch, padding included; a batch has texts of similar length. If null, 4,096 on a CPU, to
    fit into its caches, and 32,768 on a GPU."""

    min_actors: Annotated[int, Neutral] = Field(default=1, ge=1)
    """Minimum of encoder actors; a GPU has a single actor unless ``gpus_per_actor`` is a fraction."""

    max_actors: Annotated[int, Neutral] = Field(default=1, ge=1)
    """Maximum of encoder actors, see ``min_actors``."""

    cpus_per_actor: Annotated[float, Neutral] = Field(default=1, gt=0)
    """CPUs of an encoder on Ray, and its threads; without Ray an encoder uses all CPUs."""

    gpus_per_actor: Annotated[float, Neutral] = Field(default=0, ge=0)
    """GPUs of an encoder; may be a fraction. With 0 it computes on CPUs."""

    cpus_per_tokenizer: Annotated[float, Neutral] = Field(default=0.5, gt=0)
    """CPUs of each tokenising task."""

    @model_validator(mode="after")
    def _int8_is_for_processors(self) -> Self:
        if self.dtype == "int8" and self.gpus_per_actor > 0:
            raise ValueError("dtype is int8, which runs on CPUs alone: on a GPU bfloat16 is faster, set dtype auto")
        return self

    def batch_tokens(self, device: str) -> int:
        """Return the token budget for a device."""
        return self.token_budget or TOKEN_BUDGET[device]
