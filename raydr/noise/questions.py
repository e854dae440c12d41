"""Requests to a server of language models about a query and a passage, and how its answers are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from raydr.component import Config
from raydr.errors import EndpointError
from raydr.models.prompt import WORDS, PromptConfig, plain_word

#: Fields of every request. Of a model that answers in one word 16 tokens are plenty.
REQUEST: Mapping[str, Any] = {"temperature": 0, "max_tokens": 16, "logprobs": True, "top_logprobs": 10}

#: A model that thinks aloud answers after this.
_THOUGHT = "</think>"


class Reply(Config):
    """What a model has answered to one question.

    >>> Reply(content="Yes.").relevant, Reply(content="It depends").relevant
    (1.0, None)
    """

    content: str
    """In its own words."""

    probability: float | None = Field(default=None, ge=0, le=1)
    """Of yes against no, from the probabilities of its tokens; None if the server gave none."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def relevant(self) -> float | None:
        """P(relevant): the probability, or 1 and 0 for yes and no; None if the answer cannot be read."""
        words = self.content.rpartition(_THOUGHT)[2].split()
        said = plain_word(words[0]) if words else ""
        if said not in WORDS:
            return None
        return float(said == "yes") if self.probability is None else self.probability


def question(
    model: str, prompt: PromptConfig, query: str, title: str, text: str, passage_chars: int, request: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of a request for a chat completion.

    Args:
        model: as the server calls it.
        prompt: what is asked.
        query, title, text: what it is shown.
        passage_chars: of the passage, at most.
        request: further fields, and others in place of :data:`REQUEST`'s; None leaves one out.
    """
    passage = (f"{title}\n{text}" if title else text)[:passage_chars]
    fields = {name: value for name, value in {**REQUEST, **request}.items() if value is not None}
    return {**fields, "model": model, "messages": prompt.messages(query, passage)}


def read_reply(completion: Mapping[str, Any]) -> Reply:
    """The answer in a chat completion.

    P(yes) = Σ p(tokens that say yes) / Σ p(tokens that say yes or no), over the likeliest tokens at the place of the
    answer.

    Raises:
        EndpointError: it is no chat completion.

    >>> def token(text, *others):
    ...     return {"token": text, "top_logprobs": [{"token": one, "logprob": math.log(p)} for one, p in others]}
    >>> choice = {"message": {"content": "Yes"}, "logprobs": {"content": [token("Yes", ("Yes", 0.6), ("no", 0.2))]}}
    >>> read_reply({"choices": [choice]}).relevant
    0.75
    """
    try:
        choice = completion["choices"][0]
        content = choice["message"].get("content") or ""
        tokens = (choice.get("logprobs") or {}).get("content") or []
        usage = completion.get("usage") or {}
        return Reply(
            content=content,
            probability=_probability(tokens),
            prompt_tokens=int(usage.get("prompt_tokens") or 0),
            completion_tokens=int(usage.get("completion_tokens") or 0),
        )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise EndpointError(
            f"the server's answer is no chat completion ({type(error).__name__}: {error}): {str(completion)[:200]!r}"
        ) from None


def _probability(tokens: Sequence[Mapping[str, Any]]) -> float | None:
    thought = max((at for at, one in enumerate(tokens) if _THOUGHT in one["token"]), default=-1)
    answer = next((one for one in tokens[thought + 1 :] if plain_word(one["token"]) in WORDS), None)
    likely = (answer or {}).get("top_logprobs") or []
    yes, no = (
        math.fsum(math.exp(one["logprob"]) for one in likely if plain_word(one["token"]) == word) for word in WORDS
    )
    return min(1.0, yes / (yes + no)) if yes + no > 0.0 else None
