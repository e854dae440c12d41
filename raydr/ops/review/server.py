"""The HTTP server of ``raydr review``, for this machine alone.

Pages of other sites can neither read nor write. The host must be this machine, a POST must come from the page itself,
and the page runs only its own script.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Literal

import uvicorn
from pydantic import Field, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from raydr import pages
from raydr.component import Config, findings
from raydr.errors import ConfigError, RaydrError
from raydr.noise.decisions import Label, Subject, Verdict
from raydr.ops.review.review import Review

_HOST = "127.0.0.1"
_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


class StateRequest(Config):
    """A request for the page's state: the reviewer, and the kind of labels to show."""

    reviewer: str = Field(min_length=1, max_length=80, pattern=r"\S")
    kind: Subject | Literal["all"] = "all"


class Click(StateRequest):
    """A reviewer's verdict on a label."""

    label: str
    verdict: Verdict


def review_app(review: Review) -> Starlette:
    """Return the application that serves the page, its state and its posts."""

    def respond(query: StateRequest, first: Label | None = None) -> Response:
        return JSONResponse(review.state(query.reviewer, query.kind, first))

    # No handler awaits after it has read its request: decisions are written one after the other.
    async def state(request: Request) -> Response:
        return respond(StateRequest.model_validate(dict(request.query_params)))

    async def decide(request: Request) -> Response:
        click = Click.model_validate_json(await request.body())
        try:
            review.decide(click.reviewer, click.label, click.verdict)
        except KeyError:
            return JSONResponse({"error": "this label is no longer in the list: load the page again"}, 409)
        return respond(click)

    async def undo(request: Request) -> Response:
        query = StateRequest.model_validate_json(await request.body())
        return respond(query, review.undo(query.reviewer))

    return Starlette(
        routes=[
            Route("/state", state),
            Route("/decide", decide, methods=["POST"]),
            Route("/undo", undo, methods=["POST"]),
            Mount("/", StaticFiles(directory=Path(pages.__file__).parent / "review", html=True)),
        ],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=[_HOST, "localhost"], www_redirect=False),
            Middleware(BaseHTTPMiddleware, dispatch=_only_the_page),
        ],
        exception_handlers={ValidationError: _refused, RaydrError: _failed, OSError: _failed},
    )


async def _only_the_page(request: Request, call_next: RequestResponseEndpoint) -> Response:
    response: Response
    if request.method == "POST" and request.headers.get("origin") != f"http://{request.headers['host']}":
        response = JSONResponse({"error": "only the page itself may post"}, 403)
    else:
        response = await call_next(request)
    response.headers.update(_HEADERS)
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ValidationError)
    return JSONResponse({"error": "; ".join(findings(error))}, 400)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 500)


def listen(port: int) -> socket.socket:
    """Open a port of this machine that no other machine can reach; choose a free port for 0.

    Raises:
        ConfigError: the port is taken.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((_HOST, port))
    except OSError as error:
        bound.close()
        raise ConfigError(f"port {port} of {_HOST} cannot be used ({error.strerror}): set another --port") from None
    bound.listen()
    return bound


def serve(review: Review, bound: socket.socket) -> None:
    """Serve the page until Ctrl-C."""
    settings = uvicorn.Config(review_app(review), log_level="warning", access_log=False, lifespan="off", ws="none")
    try:
        uvicorn.Server(settings).run(sockets=[bound])
    except KeyboardInterrupt:
        # The normal end: all decisions are on disk.
        return
