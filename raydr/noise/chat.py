"""Client of a server with OpenAI's chat-completion API. Imports the package openai."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx2
import openai

from raydr.errors import EndpointError, first_line
from raydr.noise.answers import RefusedError, Reply, read_reply

#: HTTP codes that reject a single question, for example because it is too long.
_REFUSED = (400, 413, 422)
#: Maximum of an answer's size, enough for ten likely tokens at each of a reasoning model's thousands of positions.
_MOST_BYTES = 32 << 20
_WORDS = {
    401: "the key is missing or wrong",
    403: "the key has no permission for this",
    404: "the model does not exist, or the endpoint does not end in /v1",
}
_LATER = "Received answers are kept: run the same command again later"
#: Response headers that ask the client to wait.
_WAITS = ("retry-after", "retry-after-ms")


class ChatServer:
    """Asynchronous client of a server, with concurrent questions.

    Responses are bounded in time and size, and the key is masked in all of them.

    Args:
        endpoint: address of the API, for example ``http://localhost:8000/v1``.
        key: API key; empty sends no key.
        timeout_s: maximum of seconds for a whole answer.
        max_retries: maximum of retries of a question after HTTP 408, 409, 429 and 5xx and after lost connections.
        tell: function called with a message at the first retry.
    """

    def __init__(
        self, endpoint: str, key: str, timeout_s: float, max_retries: int, tell: Callable[[str], None]
    ) -> None:
        self._url, self._timeout_s = f"{endpoint.rstrip('/')}/chat/completions", timeout_s
        encodings = (key, quote(key, safe=""), base64.b64encode(key.encode()).decode(), json.dumps(key)[1:-1])
        self._secrets = sorted(filter(None, encodings), key=len, reverse=True)
        self._tell, self._has_reported = tell, max_retries == 0
        # The client must not send another server's credentials from the environment.
        unsent = ("OpenAI-Organization", "OpenAI-Project", *(() if key else ("Authorization",)))
        self._headers = {"Accept-Encoding": "identity", **dict.fromkeys(unsent, openai.Omit())}
        self._client = openai.AsyncOpenAI(
            base_url=endpoint,
            api_key=key or "none",
            max_retries=max_retries,
            http_client=_BoundedClient(timeout_s, self._warn),
        )

    async def __aenter__(self) -> ChatServer:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()

    async def ask(self, body: Mapping[str, Any]) -> Reply:
        """Send a request and return the answer.

        Raises:
            RefusedError: the server rejects this question.
            EndpointError: the address, key or model is wrong, the answer is malformed, or all retries failed.
        """
        try:
            response = await self._client.post(
                "/chat/completions",
                body=dict(body),
                options={"headers": self._headers},
                cast_to=httpx2.Response,
            )
        except openai.APIStatusError as error:
            refused = error.response.status_code in _REFUSED
            later = f". {_LATER}" if _passes(error.response.status_code) else ""
            raise (RefusedError if refused else EndpointError)(self._problem(error.response) + later) from None
        except openai.APIConnectionError as error:
            reason = self.masked(first_line(error.__cause__ or error))
            raise EndpointError(
                f"no server answers at {self._url} ({reason}): check that it runs, and its address. {_LATER}"
            ) from None
        return read_reply(response.text, self.masked)

    def masked(self, text: str) -> str:
        """Return a text without the key, in any encoding."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _problem(self, response: httpx2.Response) -> str:
        """Return a line on a rejected request, without the key."""
        status = response.status_code
        meaning = f", {_WORDS[status]}" if status in _WORDS else ""
        own = " ".join(self.masked(response.text).split())[:300]
        return f"{self._url} answers HTTP {status}{meaning}: {own}"

    def _warn(self, response: httpx2.Response) -> None:
        if not self._has_reported and _passes(response.status_code):
            self._has_reported = True
            retries = self._client.max_retries
            self._tell(f"{self._problem(response)}: retrying, at most {retries} times per question")


def _passes(status: int) -> bool:
    """Return whether the client retries after this HTTP status."""
    return status in (408, 409, 429) or status >= 500


class _BoundedClient(httpx2.AsyncClient):
    """HTTP client that bounds each response in time and size.

    Args:
        timeout_s: maximum of seconds for a whole response.
        see: function called with each response.
    """

    def __init__(self, timeout_s: float, see: Callable[[httpx2.Response], None]) -> None:
        # A redirect would turn the POST into a GET.
        super().__init__(timeout=timeout_s, follow_redirects=False, limits=httpx2.Limits(max_connections=None))
        self._timeout_s, self._see = timeout_s, see

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        try:
            async with asyncio.timeout(self._timeout_s):
                response = await self._whole(request, how)
        except TimeoutError:
            raise httpx2.ReadTimeout(f"no whole answer within {self._timeout_s:g} s", request=request) from None
        self._see(response)
        return response

    async def _whole(self, request: httpx2.Request, how: dict[str, Any]) -> httpx2.Response:
        response, content = await super().send(request, **{**how, "stream": True}), bytearray()
        try:
            trouble = "a compressed answer, which was not asked for" if "content-encoding" in response.headers else ""
            if not trouble:
                async for chunk in response.aiter_raw():
                    content += chunk
                    if len(content) > _MOST_BYTES:
                        trouble = f"an answer of more than {_MOST_BYTES >> 20} MiB"
                        break
        finally:
            await response.aclose()
        if trouble:
            # A retry would return the same response.
            return httpx2.Response(502, headers={"x-should-retry": "false"}, text=trouble, request=request)
        headers = {name: response.headers[name] for name in _WAITS if name in response.headers}
        return httpx2.Response(response.status_code, headers=headers, content=bytes(content), request=request)
