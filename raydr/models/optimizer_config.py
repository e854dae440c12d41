"""Settings of the optimiser, whichever model it updates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raydr.component import Config
from raydr.models.lora_config import LoraConfig


class OptimizerConfig(Config):
    """AdamW and its schedule."""

    learning_rate: float = Field(default=2e-5, gt=0)
    """At its highest."""

    weight_decay: float = Field(default=0.01, ge=0)
    """Of matrices; biases and normalisation weights have none."""

    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW's decay rates of the first and second moment."""

    eps: float = Field(default=1e-8, gt=0)
    """AdamW's term in the denominator."""

    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """After the warm-up: down to 0 in a line or a half cosine, or constant."""

    warmup_share: float = Field(default=0.1, ge=0, le=1)
    """Share of all steps with rising learning rate."""

    clip_norm: float | None = Field(default=1.0, gt=0)
    """Largest gradient norm; no clipping if null."""

    frozen_layers: int | None = Field(default=None, ge=0)
    """The word embeddings and so many of the first layers keep the weights that they came with, which saves time and
    memory; 0: the embeddings alone; everything learns if null."""

    lora: LoraConfig | None = None
    """Learn low-rank adapters of the layers that are not frozen, all other weights of the encoder stay as they came; a
    new projection, codes or classifier learn as ever. The model is saved with the adapters added to its weights, as any
    other. Needs the package peft (``raydr[lora]``), and wants a higher learning rate; off if null."""
