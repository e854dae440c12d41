"""Settings of hard negatives: the miner of the candidates, and BM25."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydr.component import Config, Resolved


class NegativesConfig(Config):
    """Mining of candidate hard negatives."""

    miner: Annotated[str, Resolved] = Field(default="bm25", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The miner: ``bm25``; ``source``, the candidates that came with the data; or the name of a model or an imported
    run. ``trained`` is a model that is trained without judges on BM25's candidates."""

    depth: int = Field(default=30, ge=1, le=1_000_000)
    """Candidates kept for each query."""

    first_rank: int = Field(default=1, ge=1)
    """Rank of the first candidate taken, from 1; higher ranks skip the likeliest false negatives."""


class BM25Config(Config):
    """How BM25 cuts text into terms and weighs them."""

    k1: float = Field(default=0.9, ge=0)
    """Saturation: how soon further occurrences of a term stop counting."""

    b: float = Field(default=0.4, ge=0, le=1)
    """Length normalisation: how much the weight of long passages is reduced; 0: not at all."""

    stemmer: Literal["english", "none"] = "english"
    """The stemmer of the words."""

    stopwords: Literal["english", "none"] = "english"
    """The list of frequent words that are left out."""

    split_identifiers: bool = False
    """Count the parts of identifiers (``getUserName``, ``user_name``) as terms too; for code."""
