"""Requests to a server: what is tried again, what is not, and what is said of it."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from chat_stub import MODEL, ChatStub, serving
from patience import PATIENCE_S

from raydr.errors import EndpointError
from raydr.models.prompt import PromptConfig
from raydr.noise.chat import ChatServer, RefusedError
from raydr.noise.questions import question, read_reply

BODY = question(MODEL, PromptConfig(task="it fits"), "a", "", "a b", 100, {})
#: How a test waits for nothing.
NOW = {"Retry-After": "0"}


def server_of(stub: ChatStub, key: str = "", said: list[str] | None = None, **changes: Any) -> ChatServer:
    given = {"timeout_s": PATIENCE_S, "max_retries": 3, "at_once": 2} | changes
    return ChatServer(stub.address, key, tell=[].append if said is None else said.append, **given)


def test_too_many_requests_and_faults_of_the_server_pass() -> None:
    said: list[str] = []
    script = [(429, NOW, "slow down"), (503, NOW, "loading"), (500, NOW, "")]
    with serving(ChatStub()) as stub, server_of(stub, said=said) as server:
        stub.script.extend(script)
        assert read_reply(server.ask(BODY)).relevant == pytest.approx(1.0)
        stub.script.extend([*script, (502, NOW, "still loading")])
        with pytest.raises(EndpointError, match=r"HTTP 502: still loading; 4 tries\. .* run the same command again"):
            server.ask(BODY)
    # One word, not one a request.
    [word] = said
    assert "answers HTTP 429: slow down: asked again, at most 3 times a question" in word


@pytest.mark.parametrize(
    ("answer", "match", "refused"),
    [
        ((400, {}, "too many tokens"), "HTTP 400: too many tokens", True),
        (
            (401, {}, "Bearer sk-secret is unknown"),
            r"HTTP 401, the key is missing or wrong: Bearer \*\*\* is unknown",
            False,
        ),
        ((404, {}, "what?"), "HTTP 404, there is no such model, or the address is not the one that ends in /v1", False),
        ((307, {"Location": "http://x.invalid/"}, ""), "HTTP 307", False),
        ((200, {}, "<html>"), "with what is no chat completion: '<html>'", False),
        ((200, {}, "[1]"), "with what is no chat completion", False),
    ],
)
def test_what_does_not_pass_is_said_at_once(answer: Any, match: str, refused: bool) -> None:
    with serving(ChatStub()) as stub, server_of(stub, "sk-secret") as server:
        stub.script.append(answer)
        with pytest.raises(EndpointError, match=match) as raised:
            server.ask(BODY)
        assert isinstance(raised.value, RefusedError) is refused
        assert "sk-secret" not in str(raised.value)
        # That was one request: the next one is answered.
        assert server.ask(BODY)["choices"]
        assert len(stub.bodies) == 1


def test_the_key_is_sent_and_nothing_without_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    # A password of another program for the same host.
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hush\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with serving(ChatStub(key="sk-1")) as stub:
        with server_of(stub, "sk-1") as server:
            assert server.ask(BODY)["choices"]
        with server_of(stub) as server, pytest.raises(EndpointError, match="not your key:$"):
            server.ask(BODY)


def test_an_endpoint_where_nobody_is_is_said_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
        said = pytest.raises(EndpointError, match=rf"nobody answers at {address}/chat.* is the server running")
        with server_of(ChatStub(address=address)) as server, said:
            server.ask(BODY, patient=False)


def test_who_waits_gives_up_when_the_server_is_left() -> None:
    with serving(ChatStub()) as stub:
        server = server_of(stub)
        stub.script.append((429, {"Retry-After": "60"}, ""))
        server.__exit__()
        with pytest.raises(EndpointError, match="no more questions are asked"):
            server.ask(BODY)
