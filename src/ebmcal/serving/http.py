"""HTTP mechanics shared by all routes: API key, bodies within limits, timeouts, disconnected clients, error responses.

Bodies are read here instead of by FastAPI: the API key is checked before the first byte of the body is read, and
reading stops at the limit. Every error response is `{"error": "…"}`.
"""

import asyncio
import contextlib
import hmac
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebmcal.serving.schema import Problem

if TYPE_CHECKING:
    from ebmcal.serving.service import Service

log = logging.getLogger("ebmcal.serving")


class Refusal(HTTPException):
    """A request that is answered with an error status and a message."""


def require_key(api_key: str | None) -> dict[str, Any]:
    """The options of a route that requires the API key; empty without one."""
    if api_key is None:
        return {}
    accepted = {api_key.encode("utf-8", "surrogateescape")}
    with contextlib.suppress(UnicodeEncodeError):  # browsers and older HTTP libraries send Latin-1
        accepted.add(api_key.encode("latin-1"))

    async def check(request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").encode("latin-1").partition(b" ")
        matches = [hmac.compare_digest(key, wanted) for wanted in sorted(accepted)]
        if not (any(matches) and scheme.lower() == b"bearer"):
            message = "The API key is missing or wrong. Send it as Authorization: Bearer KEY."
            raise Refusal(401, message, {"WWW-Authenticate": "Bearer"})

    scheme = HTTPBearer(auto_error=False, description="The API key of the server.")
    refused = {401: {"model": Problem, "description": "The API key is missing or wrong."}}
    return {"dependencies": [Depends(check), Depends(scheme)], "responses": refused}


async def read_body(request: Request, service: "Service", media_type: str, max_bytes: int) -> bytes:
    """The body of a request, if it has the media type and respects the limits."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media_type:
        raise Refusal(415, f"Expected a body of type {media_type} (header Content-Type), got {given or 'none'}.")
    too_large = Refusal(413, f"The body is larger than {max_bytes} bytes. Split it.")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > max_bytes:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        service.buffer(len(part), request)
        if len(body) > max_bytes:
            raise too_large
    return bytes(body)


async def limited(
    request: Request, service: "Service", seconds: float, work: Coroutine[Any, Any, Response]
) -> Response:
    """The response of `work` within a time limit (504); the body's share of the buffer is released at the end."""
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as error:
        raise Refusal(504, f"The request took longer than {seconds:g} s. Send fewer texts or try later.") from error
    except ClientDisconnect as error:
        raise Refusal(499, "The client closed the connection.") from error
    finally:
        service.release(request)


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """The result of `work`, which is cancelled as soon as the client is gone; call it after the body was read."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def add_error_handlers(app: FastAPI) -> None:
    """Give all errors the same form."""

    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)

    async def failed(_: Request, error: Exception) -> Response:
        log.error("unexpected %s", type(error).__name__)
        return JSONResponse({"error": f"The server failed: {type(error).__name__}."}, 500)

    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, failed)


class RequestLog:
    """Middleware that counts and logs each request: method, route, status and duration, never its content."""

    def __init__(self, app: ASGIApp, service: "Service") -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.monotonic(), 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            path, seconds = getattr(scope.get("route"), "path", "other"), time.monotonic() - start
            self.service.metrics.add_request(path, status, seconds)
            log.info("%s %s %d %.1f ms", scope["method"], path, status, 1000 * seconds)
        return None
