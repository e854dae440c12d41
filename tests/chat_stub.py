"""A server of chat completions on this machine, whose language model is a function of query and passage."""

from __future__ import annotations

import json
import math
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: Status, headers and body of an answer that is given whatever was asked; an iterator of pieces ends where it ends.
Scripted = tuple[int, dict[str, str], str | bytes | Iterator[bytes]]
MODEL = "tiny-judge"


@dataclass
class ChatStub:
    """What the server knows, and what it was asked.

    Args:
        relevant: P(yes) of a query and a passage.
        key: that must be sent; any or none if empty.
        logprobs: whether probabilities of tokens are given.
        script: answers to the next requests, first of all.
        says: words in place of yes or no, for a query and a passage; None: as ever.
        before: called with the number of requests until then before each is answered.
    """

    relevant: Callable[[str, str], float] = lambda query, passage: float(query in passage)
    key: str = ""
    logprobs: bool = True
    script: deque[Scripted] = field(default_factory=deque)
    says: Callable[[str, str], str | None] = lambda query, passage: None
    before: Callable[[int], None] = lambda number: None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    address: str = ""
    most_at_once: int = 0
    _now: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def asked(self) -> list[tuple[str, str]]:
        """Query and passage of each request that reached the model."""
        return [shown(body) for body in self.bodies]

    def answer(self, path: str, authorization: str, body: dict[str, Any]) -> Scripted:
        with self._lock:
            number = len(self.bodies)
            if self.script:
                return self.script.popleft()
        if path != "/v1/chat/completions":
            return 404, {}, "no such page"
        if self.key and authorization != f"Bearer {self.key}":
            return 401, {}, f"not your key: {authorization}"
        if body["model"] != MODEL:
            return 404, {}, f"the model {body['model']} does not exist"
        self.before(number)
        with self._lock:
            self.bodies.append(body)
        probability = self.relevant(*shown(body))
        words = self.says(*shown(body)) or ("Yes" if probability >= 0.5 else "No")
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": words}}
        if self.logprobs and body.get("logprobs"):
            likely = [("Yes", probability), (" no", 1.0 - probability)]
            tokens = [{"token": token, "logprob": math.log(max(p, 1e-9))} for token, p in likely]
            choice["logprobs"] = {"content": [{"token": words, "logprob": 0.0, "top_logprobs": tokens}]}
        usage = {"prompt_tokens": 50, "completion_tokens": 1}
        return 200, {}, json.dumps({"choices": [choice], "usage": usage})


def shown(body: dict[str, Any]) -> tuple[str, str]:
    """Query and passage of a request."""
    match = re.search(r"<query>\n(.*)\n</query>\n\n<passage>\n(.*)\n</passage>", body["messages"][1]["content"], re.S)
    assert match is not None
    return match[1], match[2]


@contextmanager
def serving(stub: ChatStub) -> Iterator[ChatStub]:
    """The stub on a free port of this machine; ``address`` is its endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub._lock:
                stub._now += 1
                stub.most_at_once = max(stub.most_at_once, stub._now)
            try:
                status, headers, text = stub.answer(self.path, self.headers.get("Authorization", ""), body)
            finally:
                with stub._lock:
                    stub._now -= 1
            pieces = iter([text.encode() if isinstance(text, str) else text]) if isinstance(text, str | bytes) else text
            try:
                self.send_response(status)
                if isinstance(text, str | bytes):
                    headers = {**headers, "Content-Length": str(len(text.encode() if isinstance(text, str) else text))}
                for name, value in {**headers, "Connection": "close"}.items():
                    self.send_header(name, value)
                self.end_headers()
                for piece in pieces:
                    self.wfile.write(piece)
                self.close_connection = True
            except (BrokenPipeError, ConnectionResetError):
                # Who has asked is gone: some tests kill it.
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub.address = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
