"""The ASGI app: routes for classification, models, health, metrics and the OpenAPI document."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse

from ebmcal import __version__
from ebmcal.model import Model
from ebmcal.serving.answer_log import AnswerLog
from ebmcal.serving.engine import Engine
from ebmcal.serving.http import (
    Refusal,
    RequestLog,
    add_error_handlers,
    limited,
    read_body,
    require_key,
    unless_disconnected,
)
from ebmcal.serving.limits import Limits
from ebmcal.serving.schema import Answers, ModelInfo, ModelList, Problem, State, parse_request, request_schema
from ebmcal.serving.service import Service
from ebmcal.storage import PathLike

log = logging.getLogger("ebmcal.serving")

#: Error statuses of /v1/classify, for the OpenAPI document.
ERRORS = {
    404: "There is no model of this name.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The body is not valid or exceeds a limit.",
    429: "The queue is full; Retry-After states when to try again.",
    500: "The model could not answer.",
    503: "The server is shutting down, overloaded, or its worker died.",
    504: "The request took longer than the time limit.",
}


def create_app(
    models: Mapping[str, Model],
    *,
    limits: Limits | None = None,
    api_key: str | None = None,
    log_texts: bool = False,
    log_file: PathLike | None = None,
    extend: Callable[[FastAPI, Service], None] | None = None,
) -> FastAPI:
    """An ASGI app that serves models by name; `extend` adds routes, `log_file` is the answer log.

    app = create_app({"films": ebmcal.load("model")}, api_key=os.environ["KEY"])
    """
    service = Service({name: Engine(model) for name, model in models.items()}, limits or Limits(), api_key, log_texts)
    if log_file is not None:
        path, count = Path(log_file).expanduser(), service.metrics.add_log_rows
        service.answer_log = AnswerLog(path, with_texts=log_texts, count=count)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

    app = FastAPI(title="ebmcal", version=__version__, openapi_url=None, lifespan=lifespan)
    app.state.service = service
    add_error_handlers(app)
    app.add_middleware(RequestLog, service=service)
    _add_classify(app, service)
    _add_state(app, service)
    if extend:
        extend(app, service)
    return app


def _add_classify(app: FastAPI, service: Service) -> None:
    options = require_key(service.api_key)
    errors = {status: {"model": Problem, "description": text} for status, text in ERRORS.items()}
    options["responses"] = options.get("responses", {}) | errors
    body = {"required": True, "content": {"application/json": {"schema": request_schema(service.limits)}}}

    @app.post(
        "/v1/classify",
        response_model=Answers,
        summary="Label, probabilities, energy and decision for texts",
        openapi_extra={"requestBody": body},
        **options,
    )
    async def classify(request: Request) -> Response:
        return await limited(request, service, service.limits.timeout, _classify(request, service))


async def _classify(request: Request, service: Service) -> Response:
    content = await read_body(request, service, "application/json", service.limits.max_body)
    try:
        texts, model = parse_request(content, service.limits)
    except ValueError as error:
        raise Refusal(422, str(error)) from error
    del content
    name = service.model_name(model)
    if service.log_texts:
        log.info("texts %s", texts)
    answers = await unless_disconnected(request, service.answer(texts, name))
    ids: list[str | None] = [None] * len(texts)
    if service.answer_log is not None:
        ids = [*service.answer_log.append(name, service.engines[name].fingerprint, texts, answers)]
    results = [{"id": key, **answer} for key, answer in zip(ids, answers, strict=True)]
    return JSONResponse({"model": name, "results": results})


def _add_state(app: FastAPI, service: Service) -> None:
    """Health and readiness are public; everything else requires the API key."""
    options = require_key(service.api_key)
    fails: dict[int | str, dict[str, Any]] = {503: {"model": State}}

    def state(problem: str) -> Response:
        return JSONResponse({"status": problem or "ok"}, 503 if problem else 200)

    @app.get("/healthz", response_model=State, responses=fails, summary="Whether the workers are alive")
    async def healthz() -> Response:
        return state(service.problem())

    @app.get("/readyz", response_model=State, responses=fails, summary="Whether the models are ready")
    async def readyz() -> Response:
        return state(service.not_ready())

    @app.get("/metrics", response_class=PlainTextResponse, summary="Metrics for Prometheus", **options)
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models", response_model=ModelList, summary="The served models", **options)
    async def models() -> ModelList:
        return ModelList(models=[ModelInfo(name=name, **e.describe()) for name, e in service.engines.items()])

    @app.get("/openapi.json", include_in_schema=False, **options)
    async def openapi() -> Response:
        app.openapi_schema = app.openapi_schema or get_openapi(title=app.title, version=app.version, routes=app.routes)
        return JSONResponse(app.openapi_schema)
