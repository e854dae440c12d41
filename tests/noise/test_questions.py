"""What a language model is asked, and what its answers are taken for."""

from __future__ import annotations

import math
from typing import Any

import pytest

from raydr.errors import EndpointError
from raydr.models.prompt import PromptConfig
from raydr.noise.answers import Answers
from raydr.noise.questions import question, read_reply
from raydr.store.folder import Folder


def completion(content: str | None, *tokens: tuple[str, dict[str, float]]) -> dict[str, Any]:
    listed = [
        {"token": token, "top_logprobs": [{"token": one, "logprob": math.log(p)} for one, p in likely.items()]}
        for token, likely in tokens
    ]
    choice = {"message": {"content": content}, "logprobs": {"content": listed} if listed else None}
    return {"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": None}}


@pytest.mark.parametrize(
    ("content", "relevant"),
    [
        *(("yes", 1.0), (" No.\n", 0.0), ("**Yes**, it does", 1.0), ("NO", 0.0)),
        *(("It does not say", None), ("", None), (None, None), ("yesterday", None)),
        *(("<think>\nno, or is it? yes\n</think>\n\nno", 0.0), ("<think> yes yes", None)),
    ],
)
def test_answers_in_words(content: str | None, relevant: float | None) -> None:
    reply = read_reply(completion(content))
    assert (reply.relevant, reply.prompt_tokens, reply.completion_tokens) == (relevant, 7, 0)


def test_probabilities_are_those_of_the_token_that_answers() -> None:
    likely = {"Yes": 0.3, " yes": 0.3, "no": 0.2, "maybe": 0.2}
    assert read_reply(completion("yes", ("yes", likely))).relevant == pytest.approx(0.75)
    # What it thought aloud is no answer; neither is a mark before it.
    thought = [
        ("no", {"no": 1.0}),
        ("</think>", {"</think>": 1.0}),
        ("\n", {"\n": 1.0}),
        ("Yes", {"Yes": 0.9, "No": 0.1}),
    ]
    assert read_reply(completion("<think>no</think>\nYes", *thought)).relevant == pytest.approx(0.9)
    # A sure model's other word may not be among the likeliest.
    assert read_reply(completion("no", ("no", {"no": 0.99, "No": 0.01}))).relevant == 0.0
    # Words that cannot be read are none, whatever the tokens say.
    assert read_reply(completion("Well, yes", ("Well", {"Well": 1.0}), ("yes", {"yes": 1.0}))).relevant is None


@pytest.mark.parametrize("raw", [{}, {"choices": []}, {"choices": [{"text": "yes"}]}, {"error": "busy"}])
def test_what_is_no_completion_is_said(raw: dict[str, Any]) -> None:
    with pytest.raises(EndpointError, match="is no chat completion"):
        read_reply(raw)


def test_a_question_holds_the_texts_as_they_are_and_no_more_than_asked_for() -> None:
    body = question(
        "m", PromptConfig(task="it fits {so}"), "q {task}", "title", "x" * 50, 20, {"max_tokens": None, "top_p": 0.5}
    )
    assert (body["model"], body["top_p"], body["temperature"], "max_tokens" in body) == ("m", 0.5, 0, False)
    system, user = (one["content"] for one in body["messages"])
    assert "whether it fits {so}." in system
    assert "q {task}" in user
    assert f"title\n{'x' * 14}\n</passage>" in user


def test_an_answer_is_found_for_the_same_question_alone(tmp_path: Any) -> None:
    kept = Answers(Folder(str(tmp_path / "answers")))
    asked = {"model": "m", "texts": "a"}
    assert kept.find(asked) is None
    reply = read_reply(completion("yes", ("yes", {"yes": 0.8, "no": 0.2})))
    kept.keep(asked, reply)
    assert kept.find({"texts": "a", "model": "m"}) == reply
    assert kept.find({**asked, "model": "n"}) is None
    assert kept.find({**asked, "texts": "b"}) is None
