"""A server of language models that speaks OpenAI's protocol of chat completions."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from raydr.errors import EndpointError, first_line

#: Asked again: too many requests, and what goes wrong inside a server or before it.
_RETRIED = (408, 429, 500, 502, 503, 504)
#: One question is refused, for example because it is too long; others may not be.
_REFUSED = (400, 413, 422)
#: What may pass.
_PASSING = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
_LONGEST_WAIT_S = 60.0
_WORDS = {
    401: "the key is missing or wrong",
    403: "the key may not do this",
    404: "there is no such model, or the address is not the one that ends in /v1",
}


class RefusedError(EndpointError):
    """The server does not answer this question."""


class ChatServer:
    """Asks one server, from several threads.

    Args:
        endpoint: address of the API, for example ``http://localhost:8000/v1``.
        key: that is sent; none if empty.
        timeout_s: seconds until an answer must begin.
        max_retries: of one question.
        at_once: threads that ask.
        tell: is told of the first wait.
    """

    def __init__(
        self, endpoint: str, key: str, timeout_s: float, max_retries: int, at_once: int, tell: Callable[[str], None]
    ) -> None:
        self._url = f"{endpoint.rstrip('/')}/chat/completions"
        self._key, self._timeout_s, self._max_retries = key, timeout_s, max_retries
        self._tell, self._told = tell, threading.Event()
        self._closed = threading.Event()
        self._session = requests.Session()
        self._session.auth = _Bearer(key)
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_connections=1, pool_maxsize=at_once))

    def __enter__(self) -> ChatServer:
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._session.close()

    def ask(self, body: Mapping[str, Any], patient: bool = True) -> dict[str, Any]:
        """The completion of one request.

        Waits 1, 2, 4, ... seconds, or as long as the server asks for, before it asks again.

        Args:
            body: of the request.
            patient: try again where nobody answers.

        Raises:
            RefusedError: this question is refused.
            EndpointError: any other would be too: the address, the key or the model is wrong, or every try has failed.
        """
        for attempt in range(self._max_retries + 1):
            wait_s = 2.0**attempt * random.uniform(0.75, 1.25)
            try:
                # A redirected POST would become a GET.
                response = self._session.post(self._url, json=body, timeout=self._timeout_s, allow_redirects=False)
            except requests.RequestException as error:
                problem = f"nobody answers at {self._url} ({self._hidden(first_line(error))})"
                if not patient or not isinstance(error, _PASSING):
                    raise EndpointError(f"{problem}: is the server running, and is this its address?") from None
            else:
                if response.status_code == 200:
                    return self._completion(response)
                problem = self._problem(response)
                if response.status_code not in _RETRIED:
                    raise (RefusedError if response.status_code in _REFUSED else EndpointError)(problem)
                asked_for = response.headers.get("Retry-After", "")
                # It may also be a date.
                wait_s = float(asked_for) if asked_for.isdecimal() else wait_s
            if attempt < self._max_retries:
                self._pause(min(wait_s, _LONGEST_WAIT_S), problem)
        raise EndpointError(
            f"{problem}; {self._max_retries + 1} tries. Answers until now are kept: run the same command again later"
        )

    def _pause(self, seconds: float, problem: str) -> None:
        if not self._told.is_set():
            self._told.set()
            self._tell(f"{problem}: asked again, at most {self._max_retries} times a question")
        if self._closed.wait(seconds):
            raise EndpointError("no more questions are asked")

    def _completion(self, response: requests.Response) -> dict[str, Any]:
        try:
            found = response.json()
        except requests.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise EndpointError(
                f"{self._url} answers with what is no chat completion: {self._hidden(response.text)[:200]!r}. Is the "
                "endpoint the address that ends in /v1?"
            )
        return found

    def _problem(self, response: requests.Response) -> str:
        """What a server has refused, in a line; its own words without the key."""
        status = response.status_code
        meaning = f", {_WORDS[status]}" if status in _WORDS else ""
        return f"{self._url} answers HTTP {status}{meaning}: {self._hidden(' '.join(response.text.split()))[:300]}"

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class _Bearer(AuthBase):
    """The key of a request; without one nothing is sent, also not what ~/.netrc has for the host."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self._key:
            request.headers["Authorization"] = f"Bearer {self._key}"
        return request
