"""Settings of hard negatives: the miner of the candidates, and BM25."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raydr.component import Config, Resolved


class NegativesConfig(Config):
    """Mining of candidate hard negatives."""

    miner: Annotated[str, Resolved] = Field(default="bm25", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """The miner: ``bm25``; ``source``, the candidates of the data; or the name of a model or an imported run.
    ``trained`` is a model that is trained without judges on BM25's candidates."""

    depth: int = Field(default=30, ge=1, le=1_000_000)
    """Maximum of candidates per query."""

    first_rank: int = Field(default=1, ge=1)
    """Rank of the first candidate, from 1; a higher rank skips the likeliest false negatives."""


class BM25Config(Config):
    """The analyzer and the weights of BM25."""

    k1: float = Field(default=0.9, ge=0)
    """Saturation: the larger, the more further occurrences of a term count."""

    b: float = Field(default=0.4, ge=0, le=1)
    """Length normalisation: the larger, the less terms of long passages weigh; 0 turns it off."""

    stemmer: Literal["english", "none"] = "english"
    """The stemmer of the words."""

    stopwords: Literal["english", "none"] = "english"
    """The list of frequent words to leave out."""

    split_identifiers: bool = False
    """Add the parts of identifiers (``getUserName``, ``user_name``) as terms; for code."""
