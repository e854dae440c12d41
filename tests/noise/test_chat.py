"""Requests to a server: what is tried again, what is not, what is said of it, and what a server cannot do to us."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from chat_stub import MODEL, ChatStub, Scripted, serving
from patience import PATIENCE_S

from raydr.errors import EndpointError
from raydr.noise.answers import RefusedError, Reply
from raydr.noise.chat import ChatServer
from raydr.noise.judges.language_model import LanguageModel

BODY = LanguageModel(model=MODEL).question("a", "", "a b")
KEY = "sk-very/secret+1"
#: How a test waits for next to nothing.
NOW = {"Retry-After-Ms": "1"}


def ask(stub: ChatStub, key: str = "", messages: list[str] | None = None, **changes: Any) -> Reply:
    options = {"timeout_s": PATIENCE_S, "max_retries": 3} | changes

    async def ask_once() -> Reply:
        async with ChatServer(
            stub.address, key, tell=[].append if messages is None else messages.append, **options
        ) as server:
            return await server.ask(BODY)

    return asyncio.run(ask_once())


@pytest.fixture
def stub() -> Iterator[ChatStub]:
    with serving(ChatStub()) as server:
        yield server


def test_too_many_requests_and_faults_of_the_server_pass(stub: ChatStub) -> None:
    messages: list[str] = []
    script: list[Scripted] = [(429, NOW, "slow down"), (503, NOW, "loading"), (500, NOW, "")]
    stub.script.extend(script)
    assert ask(stub, messages=messages).relevant == pytest.approx(1.0)
    # One word, not one a request.
    [word] = messages
    assert "answers HTTP 429: slow down: retrying, at most 3 times per question" in word
    stub.script.extend([*script, (502, NOW, "still loading")])
    with pytest.raises(EndpointError, match=r"HTTP 502: still loading\. .* run the same command again"):
        ask(stub)


@pytest.mark.parametrize(
    ("answer", "match", "refused"),
    [
        ((400, {}, "too many tokens"), "HTTP 400: too many tokens", True),
        ((401, {}, f"{KEY} is unknown"), r"HTTP 401, the key is missing or wrong: \*\*\* is unknown", False),
        ((404, {}, "what?"), "HTTP 404, the model does not exist, or the endpoint does not end in /v1", False),
        ((307, {"Location": "http://x.invalid/"}, ""), "HTTP 307", False),
        ((200, {}, "<html>"), "is no chat completion .*: '<html>'", False),
        ((200, {}, "[1]"), "is no chat completion", False),
        ((200, {}, "[" * 100_000), "is no chat completion", False),
        ((400, {"Content-Type": "text/plain; charset=hex"}, "[" * 100_000), "HTTP 400", True),
        ((200, {}, b"\xff\xfe\x00"), "is no chat completion", False),
    ],
)
def test_what_does_not_pass_is_said_at_once(stub: ChatStub, answer: Scripted, match: str, refused: bool) -> None:
    stub.script.append(answer)
    with pytest.raises(EndpointError, match=match) as raised:
        ask(stub, KEY)
    assert isinstance(raised.value, RefusedError) is refused
    assert len(str(raised.value)) < 700
    # That was one request: the next one is answered.
    assert ask(stub, KEY).relevant == pytest.approx(1.0)
    assert len(stub.bodies) == 1


def test_the_key_is_sent_and_nothing_without_one(
    stub: ChatStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    # A password of another program for the same host, and a key for another server.
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hush\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-theirs")
    stub.key = "sk-1"
    assert ask(stub, "sk-1").relevant is not None
    with pytest.raises(EndpointError, match="not your key:$"):
        ask(stub)


def written(key: str) -> dict[str, str]:
    """How a server may repeat a key."""
    encoded = base64.b64encode(key.encode()).decode()
    return {"plain": key, "quoted": quote(key, safe=""), "encoded": encoded, "json": json.dumps(key)[1:-1]}


@pytest.mark.parametrize("how", ["plain", "quoted", "encoded", "json"])
@pytest.mark.parametrize("key", [KEY, 'sk-"quoted"\\'])
def test_a_server_that_repeats_the_key_has_it_masked_everywhere(stub: ChatStub, key: str, how: str) -> None:
    messages: list[str] = []
    echo, secret = written(key)[how], written(key).values()
    reply = json.dumps({"choices": [{"message": {"content": f"yes, {echo}"}}]})
    stub.script.extend([(429, NOW, f"for {echo}"), (200, {}, reply)])
    masked = ask(stub, key, messages)
    assert (masked.relevant, masked.content) == (1.0, "yes, ***")
    answers: list[Scripted] = [
        (200, {}, f"<{echo}>"),
        (400, {}, f"{' ' * 280}{echo}"),
        (200, {}, f'{{"choices": "{echo}"}}'),
    ]
    for answer in answers:
        stub.script.append(answer)
        with pytest.raises(EndpointError) as raised:
            ask(stub, key)
        messages.append(str(raised.value))
    assert all("***" in text for text in messages)
    assert not [text for text in messages for part in secret if part in text]


def endless(piece: bytes, sent: list[bytes], pause: threading.Event | None = None) -> Iterator[bytes]:
    """A body without an end; with an event, a piece each tenth of a second until it is set."""
    while not (pause is not None and pause.wait(0.1)):
        sent.append(piece)
        yield piece


@pytest.mark.parametrize("status", [200, 400, 500])
def test_a_body_without_an_end_is_cut(stub: ChatStub, status: int) -> None:
    sent: list[bytes] = []
    stub.script.append((status, {}, endless(b" " * (1 << 16), sent)))
    with pytest.raises(EndpointError, match="HTTP 502: an answer of more than 32 MiB"):
        ask(stub)
    # What lies in buffers on the way comes on top.
    assert sum(map(len, sent)) < 64 << 20
    assert not stub.bodies


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_what_is_compressed_is_not_unpacked(stub: ChatStub, coding: str) -> None:
    bomb = gzip.compress(b"\0" * (1 << 20)) * 64
    stub.script.append((200, {"Content-Encoding": coding}, bomb))
    with pytest.raises(EndpointError, match="HTTP 502: a compressed answer, which was not asked for"):
        ask(stub)
    assert not stub.bodies


def test_an_answer_that_trickles_in_ends_in_time(stub: ChatStub) -> None:
    ended = threading.Event()
    stub.script.extend([(200, {}, endless(b" ", [], ended))] * 2)
    started = time.monotonic()
    try:
        with pytest.raises(EndpointError, match=r"no whole answer within 0\.5 s"):
            ask(stub, timeout_s=0.5, max_retries=1)
    finally:
        ended.set()
    assert time.monotonic() - started < PATIENCE_S


def test_an_endpoint_where_nobody_is_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        with pytest.raises(EndpointError, match=rf"no server answers at {address}/chat.* check that it runs"):
            ask(ChatStub(address=address), max_retries=0)
