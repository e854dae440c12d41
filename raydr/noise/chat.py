"""A server of language models that speaks OpenAI's protocol of chat completions. Imports the package openai."""

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

#: One question is refused, for example because it is too long; others may not be.
_REFUSED = (400, 413, 422)
#: Of an answer: a model that thinks aloud gives ten likely tokens for each of thousands.
_MOST_BYTES = 32 << 20
_WORDS = {
    401: "the key is missing or wrong",
    403: "the key may not do this",
    404: "there is no such model, or the address is not the one that ends in /v1",
}
_LATER = "Answers until now are kept: run the same command again later"
#: What the client reads of an answer's headers.
_WAITS = ("retry-after", "retry-after-ms")


class ChatServer:
    """Asks one server, many questions at a time; an asynchronous context.

    What a server sends is read within bounds of time and bytes, and the key is masked in all of it.

    Args:
        endpoint: address of the API, for example ``http://localhost:8000/v1``.
        key: that is sent; none if empty.
        timeout_s: seconds until an answer must be there, whole.
        max_retries: of one question, after HTTP 408, 409, 429 and 5xx and after lost connections.
        tell: is told of the first wait.
    """

    def __init__(
        self, endpoint: str, key: str, timeout_s: float, max_retries: int, tell: Callable[[str], None]
    ) -> None:
        self._url, self._timeout_s = f"{endpoint.rstrip('/')}/chat/completions", timeout_s
        written = (key, quote(key, safe=""), base64.b64encode(key.encode()).decode(), json.dumps(key)[1:-1])
        self._secrets = sorted(filter(None, written), key=len, reverse=True)
        self._tell, self._has_told = tell, max_retries == 0
        # Of what the environment has for another server nothing is sent.
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
        """The answer to one request.

        Raises:
            RefusedError: this question is refused.
            EndpointError: any other would be too: the address, the key or the model is wrong, what comes is no answer,
                or every try has failed.
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
                f"nobody answers at {self._url} ({reason}): is the server running, and is this its address? {_LATER}"
            ) from None
        return read_reply(response.text, self.masked)

    def masked(self, text: str) -> str:
        """A text without the key, however it is written."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _problem(self, response: httpx2.Response) -> str:
        """What a server has refused, in a line; its own words without the key."""
        status = response.status_code
        meaning = f", {_WORDS[status]}" if status in _WORDS else ""
        own = " ".join(self.masked(response.text).split())[:300]
        return f"{self._url} answers HTTP {status}{meaning}: {own}"

    def _warn(self, response: httpx2.Response) -> None:
        if not self._has_told and _passes(response.status_code):
            self._has_told = True
            retries = self._client.max_retries
            self._tell(f"{self._problem(response)}: asked again, at most {retries} times a question")


def _passes(status: int) -> bool:
    """Whether the client asks again."""
    return status in (408, 409, 429) or status >= 500


class _BoundedClient(httpx2.AsyncClient):
    """Reads answers whole, so that no server can keep anybody waiting or fill the memory.

    Args:
        timeout_s: for the whole of an answer.
        see: is shown each answer.
    """

    def __init__(self, timeout_s: float, see: Callable[[httpx2.Response], None]) -> None:
        # A redirected POST would become a GET.
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
            # As a gateway says it; asking again would bring the same.
            return httpx2.Response(502, headers={"x-should-retry": "false"}, text=trouble, request=request)
        headers = {name: response.headers[name] for name in _WAITS if name in response.headers}
        return httpx2.Response(response.status_code, headers=headers, content=bytes(content), request=request)
