"""The HTTP side: routes, the key, limits of a request, and one shape of error, `{"error": "…"}`.

Bodies are read here and not by FastAPI: the key is checked before a byte of the body is read, and reading stops at the
limit. What reaches a batcher is a checked list of rows.
"""

import asyncio
import contextlib
import functools
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebmcal import __version__
from ebmcal.errors import unknown_name
from ebmcal.model import Model
from ebmcal.serve.answer_log import AnswerLog
from ebmcal.serve.answering import Answering
from ebmcal.serve.batching import Batcher, QueueFull, Row, Stopped, TooManyTokens
from ebmcal.serve.counters import Counters
from ebmcal.serve.explaining import question_trouble
from ebmcal.serve.limits import Limits
from ebmcal.serve.schema import Answers, ModelFacts, ModelList, State, Trouble, question_type, rows_of

log = logging.getLogger("ebmcal.serve")


class Refusal(HTTPException):
    """A request that is answered with a status and a sentence."""


@dataclass(eq=False)
class Service:
    """The models of a server with their batchers, counters, limits and key: what the routes share."""

    models: dict[str, Answering]
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None
    log_texts: bool = False
    counters: Counters = field(default_factory=Counters)
    batchers: dict[str, Batcher] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)  # models that have answered a first text
    answer_log: AnswerLog | None = None

    def start(self) -> None:
        """Start a worker for each model and put a first text to it: it is ready once it has answered."""
        for name, answering in self.models.items():
            batcher = Batcher(
                answering.encode, answering.answer, self.limits, functools.partial(self.counters.batch, name), name
            )
            self.batchers[name] = batcher
            self.counters.watch(name, functools.partial(getattr, batcher, "n_waiting"))
            first = ("Are you there?", "Yes." if answering.is_pair else None)
            batcher.submit([first]).add_done_callback(functools.partial(self._note_first, name))

    def _note_first(self, name: str, done: "Future[Any]") -> None:
        if done.exception() is None:
            self.answered.add(name)

    def stop(self) -> None:
        """Finish what was accepted."""
        for name, batcher in self.batchers.items():
            if not batcher.close(self.limits.timeout):
                log.error("the worker of %s did not end in %g s", name, self.limits.timeout)
        if self.answer_log is not None:
            self.answer_log.close()

    def trouble(self) -> str:
        """What is wrong with a worker, or an empty string."""
        return " ".join(filter(None, (batcher.trouble() for batcher in self.batchers.values())))

    def unready(self) -> str:
        """Why the server should get no requests yet, or any more; an empty string where it should."""
        if any(batcher.is_closing for batcher in self.batchers.values()):
            return "The server is closing."
        waiting = [name for name in self.models if name not in self.answered]
        return self.trouble() or (f"{', '.join(waiting)} has not answered yet." if waiting else "")

    async def ask(self, rows: list[Row], model: str | None = None) -> list[dict[str, Any]]:
        """Answers to rows by a model, the first by default, as long as they take; failures are refusals."""
        name = next(iter(self.models)) if model is None else model
        if name not in self.models:
            raise Refusal(404, str(unknown_name("model", name, self.models)))
        if trouble := self.models[name].trouble_with(rows):
            raise Refusal(422, trouble)
        try:
            return await asyncio.wrap_future(self.batchers[name].submit(rows))
        except QueueFull as error:
            raise Refusal(429, str(error), {"Retry-After": str(error.retry_after)}) from error
        except TooManyTokens as error:
            raise Refusal(422, str(error)) from error
        except Stopped as error:
            raise Refusal(503, str(error)) from error
        except Exception as error:
            log.error("%s failed: %s", name, type(error).__name__, exc_info=error if self.log_texts else None)
            said = str(error) if type(error).__module__.startswith("ebmcal") else type(error).__name__
            raise Refusal(500, f"The model could not answer: {said}") from error


def create_app(
    models: Mapping[str, Model],
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    log_texts: bool = False,
    log_file: str | PathLike[str] | None = None,
    extend: Callable[[FastAPI, Service], None] | None = None,
) -> FastAPI:
    """An ASGI app that serves models by name; `extend` adds routes to it, `log_file` gets what was answered.

    app = create_app({"films": ebmcal.load("model")}, api_key=os.environ["KEY"])
    """
    answering = {name: Answering(model) for name, model in models.items()}
    service = Service(answering, limits or Limits(), api_key, log_texts)
    if log_file is not None:
        count = service.counters.logged
        service.answer_log = AnswerLog(Path(log_file).expanduser(), with_texts=log_texts, count=count)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(title="ebmcal", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(Exception, _failed)
    app.add_middleware(_Counting, service=service)
    _add_state(app, service)
    _add_classify(app, service)
    if extend:
        extend(app, service)
    return app


def _add_state(app: FastAPI, service: Service) -> None:
    """How the server is: open to all but the figures, which need the key."""

    def state(trouble: str) -> Response:
        return JSONResponse({"status": trouble or "ok"}, 503 if trouble else 200)

    fails: dict[int | str, dict[str, Any]] = {503: {"model": State}}

    @app.get("/healthz", response_model=State, responses=fails, summary="Whether the workers live")
    async def healthz() -> Response:
        return state(service.trouble())

    @app.get("/readyz", response_model=State, responses=fails, summary="Whether the models have answered")
    async def readyz() -> Response:
        return state(service.unready())

    @app.get("/metrics", response_class=PlainTextResponse, summary="Figures for Prometheus", **guarded(service))
    async def metrics() -> Response:
        return Response(service.counters.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models", response_model=ModelList, summary="What is served", **guarded(service))
    async def models() -> ModelList:
        return ModelList(models=[ModelFacts(name=name, **a.describe()) for name, a in service.models.items()])


#: Status → what it means, for the OpenAPI document.
REFUSALS = {
    404: "There is no model of this name.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The body is not what is expected, or over a limit.",
    429: "The queue is full; Retry-After says when to come again.",
    500: "The model could not answer.",
    503: "The server is closing, or its worker has died.",
    504: "The request took longer than the time limit.",
}


def _add_classify(app: FastAPI, service: Service) -> None:
    question = question_type(service.limits)
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"model": Trouble, "description": text} for status, text in REFUSALS.items()
    }
    body = {"required": True, "content": {"application/json": {"schema": {"$ref": f"{REF}Question"}}}}
    asking = guarded(service)
    asking["responses"] = asking.get("responses", {}) | refusals

    @app.post(
        "/v1/classify",
        response_model=Answers,
        summary="Label, probabilities, energy and decision of texts",
        openapi_extra={"requestBody": body},
        **asking,
    )
    async def classify(request: Request) -> Response:
        async def answer() -> Response:
            asked = await read_json_body(request, question, service.limits, question_trouble)
            rows, name = rows_of(asked), asked.model or next(iter(service.models))
            if service.log_texts:
                log.info("texts %s", rows)
            results, ids = await service.ask(rows, asked.model), list[str | None]([None] * len(rows))
            if service.answer_log is not None:
                ids = [*service.answer_log.note(name, service.models[name].model.weights, rows, results)]
            named = [{"id": i, **result} for i, result in zip(ids, results, strict=True)]
            return JSONResponse({"model": name, "results": named})

        return await in_time(answer(), service.limits.timeout)

    app.openapi = lambda: _document(app, question)  # type: ignore[method-assign]


REF = "#/components/schemas/"


def _document(app: FastAPI, question: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI document: what FastAPI knows, and the type of the body that is read by hand."""
    if not app.openapi_schema:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        schema = question.model_json_schema(ref_template=REF + "{model}")
        document["components"]["schemas"] |= schema.pop("$defs", {}) | {"Question": schema}
        app.openapi_schema = document
    return app.openapi_schema


def guarded(service: Service) -> dict[str, Any]:
    """What a route needs to ask for the key; nothing where there is none."""
    if service.api_key is None:
        return {}
    wanted = service.api_key.encode()

    async def check(request: Request) -> None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if not (hmac.compare_digest(key.encode(), wanted) and scheme.lower() == "bearer"):
            raise Refusal(401, "Give the key: Authorization: Bearer KEY.", {"WWW-Authenticate": "Bearer"})

    shown = HTTPBearer(auto_error=False, description="The key of the server's environment.")
    refused = {401: {"model": Trouble, "description": "The key is missing or wrong."}}
    return {"dependencies": [Depends(check), Depends(shown)], "responses": refused}


async def in_time(answer: Awaitable[Response], seconds: float) -> Response:
    """An answer within the time limit; what is late is given up."""
    try:
        return await asyncio.wait_for(answer, seconds)
    except asyncio.TimeoutError as error:
        raise Refusal(504, f"The request took longer than {seconds:g} s. Send fewer texts, or try later.") from error


async def read_body(request: Request, kind: str, limits: Limits) -> bytes:
    """The body of a request, of a media type and not over the limit."""
    came = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if came != kind:
        raise Refusal(415, f"The body is {came or 'of no type'}; send {kind} (header Content-Type).")
    too_large = Refusal(413, f"The body is larger than {limits.max_body} bytes. Send it in parts.")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > limits.max_body:
        raise too_large
    body = bytearray()
    with contextlib.suppress(ClientDisconnect):
        async for part in request.stream():
            body += part
            if len(body) > limits.max_body:
                raise too_large
    return bytes(body)


async def read_json_body(
    request: Request, kind: type[Any], limits: Limits, explain: Callable[[bytes, Limits], str]
) -> Any:
    """The body as a checked value of a type; what is wrong with it is explained in plain words."""
    content = await read_body(request, "application/json", limits)
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise Refusal(422, explain(content, limits)) from error


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _failed(_: Request, error: Exception) -> Response:
    log.error("unexpected %s", type(error).__name__)
    return JSONResponse({"error": f"The server failed: {type(error).__name__}."}, 500)


class _Counting:
    """Counts and logs each request: method, route, status and time, nothing of what was said."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        start, status = time.monotonic(), 500

        async def note(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await self.app(scope, receive, note)
        finally:
            path, seconds = getattr(scope.get("route"), "path", "other"), time.monotonic() - start
            self.service.counters.request(path, status, seconds)
            log.info("%s %s %d %.1f ms", scope["method"], path, status, 1000 * seconds)
