"""What answers of language models are taken for, and how they are kept."""

from __future__ import annotations

import json
import math
import sqlite3
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from raydr.errors import ArtifactError, EndpointError
from raydr.noise.answers import open_answers, read_reply
from raydr.store.folder import Folder


def completion(content: str | None, *tokens: tuple[str, dict[str, float]]) -> str:
    listed = [
        {"token": token, "top_logprobs": [{"token": answer, "logprob": math.log(p)} for answer, p in likely.items()]}
        for token, likely in tokens
    ]
    choice = {"message": {"content": content}, "logprobs": {"content": listed} if listed else None}
    return json.dumps({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": None}})


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


def word(**likely: Any) -> str:
    """A completion with such a likely token."""
    token = {"token": "yes", "top_logprobs": [likely]}
    return json.dumps({"choices": [{"message": {"content": "yes"}, "logprobs": {"content": [token]}}]})


@pytest.mark.parametrize(
    "raw",
    [
        *("{}", "[1]", "", "<html>", "null", '{"choices": []}', '{"choices": [{"text": "yes"}]}', '{"error": "busy"}'),
        *('{"choices": [{"message": {"content": {"a": 1}}}]}', '{"choices": {"0": 1}}', '{"choices": [[[]]]}'),
        "[" * 100_000 + "]" * 100_000,
        '{"choices": [{"message": {"content": ' + '{"a":' * 900 + "1" + "}" * 900 + "}}]}",
        '{"choices": [{"message": {"content": "yes"}}], "usage": {"prompt_tokens": 1e999}}',
        '{"choices": [{"message": {"content": "yes"}}], "usage": {"prompt_tokens": -1}}',
        '{"choices": [{"message": {"content": "yes"}}], "usage": {"prompt_tokens": ' + "9" * 5000 + "}}",
        word(token="yes", logprob=1e6),
        word(token="yes", logprob="high"),
        word(token=None, logprob=0.0),
    ],
    ids=lambda raw: raw[:30],
)
def test_what_is_no_completion_is_said_in_a_line(raw: str) -> None:
    with pytest.raises(EndpointError, match="is no chat completion") as raised:
        read_reply(raw)
    assert len(str(raised.value)) < 500


REPLY = read_reply(completion("yes", ("yes", {"yes": 0.8, "no": 0.2})))


@pytest.fixture(params=["file", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    """On this machine, and on a store that is no file system."""
    return Folder(str(tmp_path / "answers") if request.param == "file" else f"memory://{tmp_path}/answers")


def test_an_answer_is_found_for_the_same_question_alone(folder: Folder) -> None:
    with open_answers(folder) as kept:
        assert kept.find("a") is None
        kept.keep("a", REPLY)
        kept.keep("a", REPLY)
        assert kept.find("a") == REPLY
    with open_answers(folder) as kept:
        assert (kept.find("a"), kept.find("b")) == (REPLY, None)


def test_what_was_answered_until_an_error_is_kept(folder: Folder) -> None:
    with pytest.raises(EndpointError), open_answers(folder) as kept:
        kept.keep("a", REPLY)
        raise EndpointError("gone")
    with open_answers(folder) as kept:
        assert kept.find("a") == REPLY


def test_several_use_them_at_a_time_and_nobody_else_reads_them(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path / "answers"))

    def keep(number: int) -> None:
        with open_answers(folder) as kept:
            for at in range(20):
                kept.keep(f"{number}-{at}", REPLY)
                assert kept.find(f"{number}-{at}") == REPLY

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(keep, range(4)))
    [file] = (tmp_path / "answers").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with sqlite3.connect(file) as database:
        assert database.execute("SELECT COUNT(*) FROM answers").fetchone() == (80,)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = Folder(str(tmp_path))
    with open_answers(folder) as kept:
        for at in range(2000):
            kept.keep(f"{at:040d}", REPLY)
    [file] = tmp_path.iterdir()
    whole = file.read_bytes()
    for damage in (b"no database at all" * 100, whole[:4096] + b"\xff" * (len(whole) - 4096)):
        file.write_bytes(damage)
        with (
            pytest.raises(ArtifactError, match=r"cannot use .*answers\.sqlite: .* remove it"),
            open_answers(folder) as kept,
        ):
            kept.find("1".zfill(40))
