"""A language model reads what an earlier judge was unsure of."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, ValidationError, model_validator

from raydr.component import findings
from raydr.errors import ConfigError
from raydr.models.config import CrossEncoderConfig
from raydr.models.prompt import PromptConfig
from raydr.noise.judge_models import LanguageModelConfig
from raydr.noise.judges.asked import Asked, AskedModels, Reader, Server
from raydr.noise.judges.base import FloatArray, IntArray, ScoredCandidates, SecondJudge, Verdicts
from raydr.noise.judges.classifier import Classifier

#: Fields of every request. Of a model that answers in one word 16 tokens are plenty.
REQUEST: Mapping[str, Any] = {"temperature": 0, "max_tokens": 16, "logprobs": True, "top_logprobs": 10}
#: Settings that do not change what is answered: who serves the model and how it is asked, where its weights lie.
_HOW = ("endpoint", "key_variable", "at_once", "timeout_s", "max_retries", "checkpoint")
#: Settings of one way of asking alone.
_OF_A_SERVER, _OF_A_CHECKPOINT = ("model", "max_requests", "passage_chars", "request"), ("max_length",)


class LanguageModelJudge(SecondJudge):
    """Base of the judges that ask a language model: one behind an OpenAI-compatible server, or a checkpoint.

    Only those rows are asked about on which the judge ``after`` gave a doubtful verdict. A checkpoint is read by the
    workers that encode, on their GPUs, as a cross-encoder is; see :mod:`raydr.models.language_model`.
    """

    reads: ClassVar[Literal["cross_encoder"]] = "cross_encoder"

    max_requests: int = Field(default=2_000, ge=1)
    """Rows that a server is asked about, at most; those nearest to ½ first. Copies count, but are asked about once;
    retries and the one question before the run do not count."""

    model: str = ""
    """What the server calls the model; this or ``checkpoint`` must be set."""

    checkpoint: str = ""
    """A language model that the workers load in place of a server: a Hugging Face name or a local folder."""

    max_length: int = Field(default=1_024, ge=8, le=8_192)
    """Tokens that a checkpoint is shown, prompt, query and passage together; the longer of the two texts is cut."""

    endpoint: str = Field(default="http://localhost:8000/v1", pattern="^https?://")
    """Address of the API. No part of any key: what a model of this name has answered holds wherever it is served."""

    key_variable: str = Field(default="", pattern="^([A-Za-z_][A-Za-z0-9_]*)?$")
    """Name of the environment variable that holds the server's key, where the command runs; no key is sent if empty."""

    prompt: PromptConfig = PromptConfig()
    """What is asked."""

    passage_chars: int = Field(default=4_000, ge=1)
    """Characters of a passage that a server is shown, its title included."""

    request: dict[str, Any] = {}
    """Further fields of each request, and others in place of ``temperature`` 0, ``max_tokens`` 16, ``logprobs`` true
    and ``top_logprobs`` 10; null leaves one out. ``{chat_template_kwargs: {enable_thinking: false}}`` tells vLLM that
    the model is to answer at once; one that thinks needs more ``max_tokens``."""

    at_once: int = Field(default=16, ge=1)
    """Requests under way at a time."""

    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds until an answer must be there, whole."""

    max_retries: int = Field(default=6, ge=0)
    """Further tries of a question after HTTP 408, 409, 429 and 5xx, and after lost connections, with growing pauses or
    those that the server asks for."""

    @model_validator(mode="after")
    def _asks_one(self) -> Self:
        if self.model and self.checkpoint:
            raise ValueError(
                f"judge {self.name} has model {self.model!r}, which a server is asked for, and checkpoint "
                f"{self.checkpoint!r}, which workers load: set one of them"
            )
        address = urlsplit(self.endpoint)
        if address.query or address.fragment or "@" in address.netloc:
            # Not shown: it may hold a secret.
            raise ValueError(
                f"the endpoint of judge {self.name} holds more than an address, such as a password: put a key into an "
                "environment variable, and the variable's name into key_variable"
            )
        if self.checkpoint:
            try:
                self._reader()
            except ValidationError as error:
                raise ValueError("; ".join(findings(error))) from None
        return self

    def _reader(self) -> Reader:
        # A server shows the title on a line of its own too.
        model = CrossEncoderConfig(
            checkpoint=self.checkpoint, max_length=self.max_length, title_separator="\n", prompt=self.prompt
        )
        return Reader(LanguageModelConfig(model=model))

    def content(self) -> dict[str, Any]:
        # A prompt's template is for checkpoints alone.
        prompt = self.prompt.differing_settings()
        if not self.checkpoint:
            prompt.pop("template", None)
        unused = {*_HOW, *(_OF_A_SERVER if self.checkpoint else _OF_A_CHECKPOINT)}
        settings = super().content() | {"prompt": prompt}
        return {name: value for name, value in settings.items() if name not in unused}

    def asks(self, models: AskedModels) -> Asked:
        return self._reader() if self.checkpoint else Server()

    def require_model(self) -> None:
        """Refuse to be asked without a model.

        Raises:
            ConfigError: neither ``model`` nor ``checkpoint`` is set.
        """
        if not self.model:
            raise ConfigError(
                f"judge {self.name} asks no model: set its model to what the server calls it, or its checkpoint to a "
                "language model that the workers load"
            )

    def question(self, query: str, title: str, text: str) -> dict[str, Any]:
        """What is asked about a query and a passage: the body of a request for a chat completion."""
        passage = (f"{title}\n{text}" if title else text)[: self.passage_chars]
        fields = {name: value for name, value in {**REQUEST, **self.request}.items() if value is not None}
        return {**fields, "model": self.model, "messages": self.prompt.messages(query, passage)}

    def choose(self, evidence_N: FloatArray) -> IntArray:
        """Of the doubtful rows those nearest to ½, ``max_requests`` at most where a server is asked.

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
        """Verdicts by the model's probabilities of relevance, one a row."""


class LanguageModel(LanguageModelJudge):
    """Has a language model read the training pairs that an earlier judge is unsure of, and drops those that it rejects.

    The verdict's score is 1 − P(relevant).

    Source: none for pairs; reading by a language model what cheaper judges leave open is RLHN's idea (Thakur et al.,
    2025).

    >>> pairs = ScoredCandidates(np.array([0.9, 0.2]), np.array([0, 1, 2]))
    >>> LanguageModel().judge(pairs).action.tolist()
    ['keep', 'drop']
    """

    subject: ClassVar[Literal["pairs"]] = "pairs"
    flags: ClassVar[str] = "pairs that a language model takes for irrelevant, of those that it was asked about"
    score_name: ClassVar[str] = "1 - probability of relevance"
    score_is_probability: ClassVar[bool] = True

    name: Literal["language_model"] = "language_model"
    after: str = Field(default="npc", min_length=1)
    """The earlier judge of the list whose doubtful verdicts are looked at again."""

    negative_below: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of relevance below which a pair is dropped."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        keep_Q = candidates.scores_M >= self.negative_below
        return Verdicts(1.0 - candidates.scores_M, np.where(keep_Q, "keep", "drop"), keep_Q.astype(np.float64))


class LanguageModelNegatives(LanguageModelJudge):
    """Has a language model read the candidates that an earlier judge is unsure of, and drops or relabels relevant ones.

    The verdict's score is P(relevant).

    Source: RLHN (Thakur et al., 2025) and, with open models, ARHN (Choi et al., 2026), which make positives of what
    answers the query. Here each passage is judged by itself, not in a list.

    >>> LanguageModelNegatives(positives="relabel").judge(ScoredCandidates.of_one([0.9, 0.2])).action.tolist()
    ['relabel', 'keep']
    """

    flags: ClassVar[str] = "candidates that a language model takes for relevant, of those that it was asked about"
    score_name: ClassVar[str] = "probability of relevance"
    score_is_probability: ClassVar[bool] = True

    name: Literal["language_model_negatives"] = "language_model_negatives"
    after: str = Field(default="classifier", min_length=1)
    """The earlier judge of the list whose doubtful verdicts are looked at again."""

    positive_above: float = Field(default=0.5, ge=0.0, le=1.0)
    """Probability of relevance above which a candidate counts as relevant."""

    positives: Literal["drop", "relabel"] = "drop"
    """What happens to those that count as relevant; ``relabel`` makes them further positives of their query."""

    def judge(self, candidates: ScoredCandidates) -> Verdicts:
        return Classifier(positive_above=self.positive_above, positives=self.positives).judge(candidates)
