"""Judges by a language model that reads the doubtful verdicts of an earlier judge."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, ValidationError, model_validator

from raydr.component import findings
from raydr.data.rows import join_passage
from raydr.errors import ConfigError
from raydr.models.config import CrossEncoderConfig
from raydr.models.prompt import PromptConfig
from raydr.noise.judge_models import LanguageModelConfig
from raydr.noise.judges.asked import Asked, AskedModels, Reader, Server
from raydr.noise.judges.base import CascadeJudge, FloatArray, IntArray, ScoredCandidates, Verdicts
from raydr.noise.judges.classifier import Classifier

#: Default fields of a request; 16 tokens suffice for an answer of one word.
REQUEST: Mapping[str, Any] = {"temperature": 0, "max_tokens": 16, "logprobs": True, "top_logprobs": 10}
#: Settings that do not change the answer: server, concurrency, location of the weights.
_HOW = ("endpoint", "key_variable", "at_once", "timeout_s", "max_retries", "checkpoint")
#: Settings of servers only, and of checkpoints only.
_OF_A_SERVER, _OF_A_CHECKPOINT = ("model", "max_requests", "passage_chars", "request"), ("max_length",)


class LanguageModelJudge(CascadeJudge):
    """Base of the judges that use a language model, behind an OpenAI-compatible server or from a checkpoint.

    The model reads only rows with a doubtful verdict of the judge ``after``. Workers run a checkpoint like a
    cross-encoder; see :mod:`raydr.models.language_model`.
    """

    reads: ClassVar[Literal["cross_encoder"]] = "cross_encoder"

    max_requests: int = Field(default=2_000, ge=1)
    """Maximum of rows sent to a server; rows nearest to ½ come first. Copies count, but are sent once; retries and the
    test question before the run do not count."""

    model: str = ""
    """The server's name of the model; set this or ``checkpoint``."""

    checkpoint: str = ""
    """Language model that the workers load in place of a server: a Hugging Face name or a local folder."""

    max_length: int = Field(default=1_024, ge=8, le=8_192)
    """Maximum of tokens of prompt, query and passage for a checkpoint; the longer of the two texts is cut."""

    endpoint: str = Field(default="http://localhost:8000/v1", pattern="^https?://")
    """Address of the API. It is part of no key, since a model's answers do not depend on the server."""

    key_variable: str = Field(default="", pattern="^([A-Za-z_][A-Za-z0-9_]*)?$")
    """Environment variable of the command with the server's key; empty sends no key."""

    prompt: PromptConfig = PromptConfig()
    """Prompt of the model."""

    passage_chars: int = Field(default=4_000, ge=1)
    """Maximum of characters of a passage sent to a server, title included."""

    request: dict[str, Any] = {}
    """Further fields of each request, which may override ``temperature`` 0, ``max_tokens`` 16, ``logprobs`` true and
    ``top_logprobs`` 10; null omits a field. ``{chat_template_kwargs: {enable_thinking: false}}`` turns off reasoning in
    vLLM; a model that reasons needs more ``max_tokens``."""

    at_once: int = Field(default=16, ge=1)
    """Number of concurrent requests."""

    timeout_s: float = Field(default=120.0, gt=0)
    """Maximum of seconds for a whole answer."""

    max_retries: int = Field(default=6, ge=0)
    """Maximum of retries of a question after HTTP 408, 409, 429 and 5xx, and after lost connections, with growing
    pauses or those that the server requests."""

    @model_validator(mode="after")
    def _asks_a_server_or_checkpoint(self) -> Self:
        if self.model and self.checkpoint:
            raise ValueError(
                f"judge {self.name} has both model {self.model!r}, for a server, and checkpoint {self.checkpoint!r}, "
                "for workers: set only one of them"
            )
        address = urlsplit(self.endpoint)
        if address.query or address.fragment or "@" in address.netloc:
            # The message omits the address, which may hold a secret.
            raise ValueError(
                f"the endpoint of judge {self.name} holds more than an address, such as a password: put the key into "
                "an environment variable, and set key_variable to its name"
            )
        if self.checkpoint:
            try:
                self._reader()
            except ValidationError as error:
                raise ValueError("; ".join(findings(error))) from None
        return self

    def _reader(self) -> Reader:
        # As for a server, the title has its own line.
        model = CrossEncoderConfig(
            checkpoint=self.checkpoint, max_length=self.max_length, title_separator="\n", prompt=self.prompt
        )
        return Reader(LanguageModelConfig(model=model))

    def content(self) -> dict[str, Any]:
        # Only checkpoints use a prompt's template.
        prompt = self.prompt.differing_settings()
        if not self.checkpoint:
            prompt.pop("template", None)
        unused = {*_HOW, *(_OF_A_SERVER if self.checkpoint else _OF_A_CHECKPOINT)}
        settings = super().content() | {"prompt": prompt}
        return {name: value for name, value in settings.items() if name not in unused}

    def asks(self, models: AskedModels) -> Asked:
        return self._reader() if self.checkpoint else Server()

    def require_model(self) -> None:
        """Require the name of a model at the server.

        Raises:
            ConfigError: neither ``model`` nor ``checkpoint`` is set.
        """
        if not self.model:
            raise ConfigError(
                f"judge {self.name} has no model: set model to its name at the server, or checkpoint to a language "
                "model that the workers load"
            )

    def question(self, query: str, title: str, text: str) -> dict[str, Any]:
        """Return the body of the chat-completion request for a query and a passage."""
        passage = join_passage(title, text, "\n")[: self.passage_chars]
        fields = {name: value for name, value in {**REQUEST, **self.request}.items() if value is not None}
        return {**fields, "model": self.model, "messages": self.prompt.messages(query, passage)}

    def choose(self, evidence_N: FloatArray) -> IntArray:
        """Return the doubtful rows; for a server, only the ``max_requests`` rows nearest to ½.

        >>> judge = LanguageModel(unsure=(0.2, 0.8), max_requests=2)
        >>> judge.choose(np.array([-5.0, 1.0, 0.3, -0.1, 5.0])).tolist()
        [2, 3]
        """
        doubtful = super().choose(evidence_N)
        if self.checkpoint:
            return doubtful
        nearest = doubtful[np.argsort(np.abs(evidence_N[doubtful]), kind="stable")]
        return np.sort(nearest[: self.max_requests])

    @abstractmethod
    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        """Return verdicts by the model's probabilities of relevance."""


class LanguageModel(LanguageModelJudge):
    """Drops doubtful training pairs of an earlier judge that a language model rejects.

    The score of a verdict is 1 − P(relevant).

    Source: none for pairs; in RLHN (Thakur et al., 2025) a language model reads doubtful verdicts of cheaper judges.

    >>> pairs = ScoredCandidates(np.array([0.9, 0.2]), np.array([0, 1, 2]))
    >>> LanguageModel().judge(pairs).action.tolist()
    ['keep', 'drop']
    """

    subject: ClassVar[Literal["pairs"]] = "pairs"
    flags: ClassVar[str] = "pairs that a language model takes for irrelevant, of those that it read"
    score_name: ClassVar[str] = "1 - probability of relevance"
    score_is_probability: ClassVar[bool] = True

    name: Literal["language_model"] = "language_model"
    after: str = Field(default="npc", min_length=1)
    """Earlier judge whose doubtful verdicts are judged again."""

    negative_below: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of relevance below which a pair is dropped."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        keep_Q = candidates.scores_M >= self.negative_below
        return Verdicts(1.0 - candidates.scores_M, np.where(keep_Q, "keep", "drop"), keep_Q.astype(np.float64))


class LanguageModelNegatives(LanguageModelJudge):
    """Drops or relabels doubtful candidates of an earlier judge that a language model finds relevant.

    The score of a verdict is P(relevant).

    Source: RLHN (Thakur et al., 2025) and, with open models, ARHN (Choi et al., 2026), which relabel relevant
    candidates. Here each passage is judged by itself, not in a list.

    >>> LanguageModelNegatives(positives="relabel").judge(ScoredCandidates.of_query([0.9, 0.2])).action.tolist()
    ['relabel', 'keep']
    """

    flags: ClassVar[str] = "candidates that a language model takes for relevant, of those that it read"
    score_name: ClassVar[str] = "probability of relevance"
    score_is_probability: ClassVar[bool] = True

    name: Literal["language_model_negatives"] = "language_model_negatives"
    after: str = Field(default="classifier", min_length=1)
    """Earlier judge whose doubtful verdicts are judged again."""

    positive_above: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of relevance above which a candidate counts as relevant."""

    positives: Literal["drop", "relabel"] = "drop"
    """Action on relevant candidates; ``relabel`` makes them positives of their query."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        return Classifier(positive_above=self.positive_above, positives=self.positives).judge(candidates)
