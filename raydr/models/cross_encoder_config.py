"""Settings of a cross-encoder. Light to import: torch is not needed to check a config."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from raydr.component import Config, Resolved
from raydr.models.checkpoint_settings import OFFLINE_CHECKPOINT
from raydr.models.positions import check_positions
from raydr.models.prompt import PromptConfig


class CrossEncoderConfig(Config):
    """A model that reads query and passage together and gives one probability of relevance."""

    checkpoint: Annotated[str, Resolved] = OFFLINE_CHECKPOINT
    """A Hugging Face name, a local folder or ``offline:minilm``; a saved cross-encoder keeps its classifier, any other
    checkpoint gets a new one."""

    num_layers: int | None = Field(default=None, ge=1)
    """Keep only the first layers of the checkpoint; all of them if null."""

    dropout: float | None = Field(default=None, ge=0, lt=1)
    """Dropout during training; the checkpoint's own if null. With 0 the result does not depend on the number of
    workers."""

    max_length: int = Field(default=256, ge=8, le=8192)
    """Tokens of query, title and text together; where they are more, the longer of query and passage is cut."""

    title_separator: str = " "
    """Put between title and text."""

    prompt: PromptConfig | None = None
    """For a language model as the checkpoint: what it is asked about a pair, its log-odds of yes are the score. The
    queries' and passages' texts are cut to ``max_length``, never the prompt."""

    trust_remote_code: bool = False
    """Run the checkpoint's own code; only for models you trust."""

    @model_validator(mode="after")
    def _has_so_many_positions(self) -> Self:
        # Its section is in every config: what nobody asks is not looked up on the hub.
        check_positions(self.checkpoint, self.max_length, "max_length", ask_hub=False)
        return self
