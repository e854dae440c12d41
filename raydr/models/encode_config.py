"""Settings of encoding passages and queries into vectors."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from raydr.component import Config, Neutral, Resolved
from raydr.models.config import Dtype

#: Tokens in one batch by kind of device, if nothing is configured (docs/performance.md).
TOKEN_BUDGET = {"cpu": 4096, "cuda": 32_768}


#: Passages that the scales of an encoder in int8 are measured on.
NUM_CALIBRATING = 200

EncodeDtype = Literal[Dtype, "int8"]


class EncodeConfig(Config):
    """How texts are turned into vectors, and with which workers."""

    dtype: Annotated[EncodeDtype, Resolved] = "auto"
    """Arithmetic of the encoder; ``auto``: bfloat16 where the processor has it. ``int8`` is for processors with VNNI or
    AMX and needs openvino and nncf (``raydr[int8]``). It encodes passages, with scales measured on 200 of them. Queries
    are encoded, and pairs scored, as with ``auto`` (docs/performance.md)."""

    token_budget: Annotated[int | None, Resolved] = Field(default=None, ge=64)
    """Tokens in one batch, padding included; batches are made of texts of similar length. If null, what suits the
    device: on a CPU few enough for its caches, 4,096; on a GPU 32,768."""

    min_actors: Annotated[int, Neutral] = Field(default=1, ge=1)
    """Encoder actors, fewest and most; on GPUs one a device unless ``gpus_per_actor`` is a fraction."""

    max_actors: Annotated[int, Neutral] = Field(default=1, ge=1)
    """See ``min_actors``."""

    cpus_per_actor: Annotated[float, Neutral] = Field(default=1, gt=0)
    """CPUs of an encoder on Ray, which computes with as many threads; in this process it has all that there are."""

    gpus_per_actor: Annotated[float, Neutral] = Field(default=0, ge=0)
    """GPUs of an encoder, which computes on them; may be a fraction. With 0 it computes on CPUs."""

    cpus_per_tokenizer: Annotated[float, Neutral] = Field(default=0.5, gt=0)
    """CPUs of each tokenising task."""

    @model_validator(mode="after")
    def _int8_is_for_processors(self) -> Self:
        if self.dtype == "int8" and self.gpus_per_actor > 0:
            raise ValueError("dtype is int8, which is for processors: on a GPU bfloat16 is quicker, set dtype auto")
        return self

    def batch_tokens(self, device: str) -> int:
        """Return the token budget for a device."""
        return self.token_budget or TOKEN_BUDGET[device]
