"""Settings of low-rank adapters. Light to import: neither torch nor peft is needed to check a config."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydr.component import Config


class LoraConfig(Config):
    """Low-rank adapters, which learn in place of an encoder's own weights."""

    rank: int = Field(default=16, ge=1)
    """r: an adapter of a layer with weights W (out, in) is B·A with A (r, in) and B (out, r)."""

    alpha: float = Field(default=32, gt=0)
    """The layer computes with W + alpha/rank · B·A, so that the learning rate need not follow the rank."""

    dropout: float = Field(default=0.05, ge=0, lt=1)
    """Of what the adapters read, while training."""

    targets: Literal["all-linear"] | Annotated[list[str], Field(min_length=1)] = "all-linear"
    """The linear layers that get an adapter: all of the encoder, or those with these names or ends of names, such as
    ``[q_proj, v_proj]``."""
