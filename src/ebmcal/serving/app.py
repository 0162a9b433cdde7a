"""The ASGI app: routes for classification, models, health, metrics and the OpenAPI document, and their types.

Bodies are read here instead of by FastAPI: the API key is checked before the first byte of the body is read, and
reading stops at the limit. Every error response is `{"error": "…"}`.
"""

import asyncio
import contextlib
import functools
import hmac
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import generate_latest
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, ValidationError, create_model
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ebmcal import __version__
from ebmcal.data.files import INK
from ebmcal.errors import EbmcalError
from ebmcal.model import Model
from ebmcal.serving import Limits
from ebmcal.serving.batcher import Text
from ebmcal.serving.service import AnswerLog, Engine, Service
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


#: Mistakes in a body that pydantic describes less plainly.
MESSAGES = {
    "json_invalid": "Expected JSON in UTF-8 (without a byte order mark)",
    "string_pattern_mismatch": "The text is empty",
    "extra_forbidden": "Unknown field",
}


class Answer(BaseModel):
    """The prediction for one text; a field is null if the model has no abstention rule for it."""

    id: str | None = Field(description="Id of the row in the answer log; null without one.")
    label: str = Field(description="The most probable class.")
    confidence: float = Field(description="Its probability.")
    probabilities: dict[str, float] = Field(description="Probability per class, after calibration.")
    logits: dict[str, float] = Field(description="Logit per class, before calibration.")
    energy: float = Field(description="Low = like the training data.")
    decision: str | None = Field(description="answer or abstain.")
    reason: str | None = Field(description="Why the rule abstains; empty if it answers.")
    score: float | None = Field(description="The score that the decision is based on.")
    is_ood: bool | None = Field(description="Whether the text is out-of-distribution (unlike the training data).")
    ood_score: float | None = Field(description="The score behind is_ood; high = unlike the training data.")
    ood_score_name: str | None = Field(description="Which score that is, for example knn or energy.")
    ood_p_value: float | None = Field(description="p-value: share of calibration texts that are at least as extreme.")
    label_set: list[str] | None = Field(description="Labels that contain the correct one at the fitted coverage.")
    n_tokens: int = Field(description="Tokens that the model processed.")
    is_truncated: bool = Field(description="Whether the text reached the maximum length, so its end may be ignored.")


class Answers(BaseModel):
    """One answer per input, in the same order."""

    model: str
    results: list[Answer]


class ModelInfo(BaseModel):
    """A served model."""

    name: str
    labels: list[str]
    calibrator: str | None
    folded_temperature: float | None = Field(description="Temperature contained in the weights of the last layer.")
    energy: str = Field(description="The energy function: hidden, sharp-hidden, scalar, …")
    is_energy_trained: bool = Field(description="Whether noise contrastive estimation trained the energy.")
    max_length: int = Field(description="Maximum number of tokens; longer texts are truncated.")
    is_pair: bool | None = Field(description="Whether inputs are pairs; null if unknown, then both are accepted.")
    abstention: list[str] = Field(description="The guarantees of the abstention rule.")


class ModelList(BaseModel):
    """The served models; the first one answers requests that name none."""

    models: list[ModelInfo]


State = create_model("State", __doc__="ok, or what is wrong.", status=str)
Problem = create_model("Problem", __doc__="What is wrong with a request and what to do.", error=str)


@functools.cache
def request_type(limits: Limits) -> type[BaseModel]:
    """The body of `/v1/classify` within the limits of a server."""
    config = ConfigDict(extra="forbid", strict=True, regex_engine="python-re")
    text: Any = Annotated[str, StringConstraints(max_length=limits.max_characters, pattern=INK)]
    pair: Any = create_model("Pair", __config__=config, text=(text, ...), text_pair=(text | None, None))
    either: Any = Annotated[text, Tag("<text>")] | Annotated[pair, Tag("<pair>")]
    several: Any = Annotated[
        list[Annotated[either, Discriminator(_tag)]], Field(min_length=1, max_length=limits.max_texts), Tag("<list>")
    ]
    inputs: Any = Annotated[
        either | several,
        Discriminator(_tag),
        Field(description="A text, a pair, or a list of texts and pairs."),
    ]
    model: Any = Annotated[str | None, Field(description="A name of /v1/models.")]
    return create_model("Request", __config__=config, inputs=(inputs, ...), model=(model, None))


def _tag(value: Any) -> str:
    return "<pair>" if isinstance(value, dict) else "<list>" if isinstance(value, list) else "<text>"


def parse_request(content: bytes, limits: Limits) -> tuple[list[Text], str | None]:
    """The texts and the model name in the body of `/v1/classify`. Errors never quote the body.

    >>> parse_request(b'{"inputs": ["a", {"text": "b", "text_pair": "c"}]}', Limits())
    (['a', ('b', 'c')], None)
    >>> parse_request(b'{"inputs": ["a", 3]}', Limits())
    Traceback (most recent call last):
    ebmcal.errors.EbmcalError: inputs[1]: Input should be a valid string.
    """
    try:
        body: Any = request_type(limits).model_validate_json(content)
    except ValidationError as error:
        raise EbmcalError(_problem(error)) from None
    inputs = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    texts = [i if isinstance(i, str) else i.text if i.text_pair is None else (i.text, i.text_pair) for i in inputs]
    return texts, body.model


def _problem(error: ValidationError) -> str:
    """The first mistake in a body, with its place."""
    found = error.errors(include_input=False)[0]
    known = found["loc"][:-1] if found["type"] == "extra_forbidden" else found["loc"]  # not a name the client chose
    place = [part for part in known if not str(part).startswith("<")]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).removeprefix(".")
    return f"{where or 'The body'}: {MESSAGES.get(found['type'], found['msg'])}."


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
        path, rows = Path(log_file).expanduser(), service.metrics.log_rows
        service.answer_log = AnswerLog(path, with_texts=log_texts, rows=rows)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.stop)

    async def refuse(_: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)
        log.error("unexpected %s", type(error).__name__)
        return JSONResponse({"error": f"The server failed: {type(error).__name__}."}, 500)

    app = FastAPI(title="ebmcal", version=__version__, openapi_url=None, lifespan=lifespan)
    app.state.service = service
    app.add_exception_handler(HTTPException, refuse)
    app.add_exception_handler(Exception, refuse)
    app.add_middleware(RequestLog, service=service)
    _add_routes(app, service)
    if extend:
        extend(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    """Health and readiness are public; everything else requires the API key."""
    protected = require_key(service.api_key)
    errors = {status: {"model": Problem, "description": text} for status, text in ERRORS.items()}
    fails: dict[int | str, dict[str, Any]] = {503: {"model": State}}
    schema = request_type(service.limits).model_json_schema(ref_template="#/components/schemas/{model}")
    definitions = schema.pop("$defs")
    body = {"required": True, "content": {"application/json": {"schema": schema}}}

    @app.post(
        "/v1/classify",
        response_model=Answers,
        summary="Label, probabilities, energy and decision for texts",
        openapi_extra={"requestBody": body},
        **protected | {"responses": protected.get("responses", {}) | errors},
    )
    async def classify(request: Request) -> Response:
        return await respond(request, service, lambda content: _classify(service, content))

    def state(problem: str) -> Response:
        return JSONResponse({"status": problem or "ok"}, 503 if problem else 200)

    @app.get("/healthz", response_model=State, responses=fails, summary="Whether the workers are alive")
    async def healthz() -> Response:
        return state(service.problem())

    @app.get("/readyz", response_model=State, responses=fails, summary="Whether the models are ready")
    async def readyz() -> Response:
        return state(service.not_ready())

    @app.get("/metrics", response_class=PlainTextResponse, summary="Metrics for Prometheus", **protected)
    async def metrics() -> Response:
        return Response(generate_latest(service.metrics.registry), media_type="text/plain; version=0.0.4")

    @app.get("/v1/models", response_model=ModelList, summary="The served models", **protected)
    async def models() -> ModelList:
        return ModelList(models=[ModelInfo(name=name, **e.describe()) for name, e in service.engines.items()])

    @app.get("/openapi.json", include_in_schema=False, **protected)
    async def openapi() -> Response:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        document["components"]["schemas"] |= definitions
        return JSONResponse(document)


async def _classify(service: Service, content: bytes) -> dict[str, Any]:
    texts, model = parse_request(content, service.limits)
    name = service.model_name(model)
    if service.log_texts:
        log.info("texts %s", texts)
    answers = await service.answer(texts, name)
    ids: list[str | None] = [None] * len(texts)
    if service.answer_log is not None:
        about = {"model": name, **service.engines[name].identity}
        ids = [*service.answer_log.append(about, texts, answers)]
    return {"model": name, "results": [{"id": key, **answer} for key, answer in zip(ids, answers, strict=True)]}


def require_key(api_key: str | None) -> dict[str, Any]:
    """The options of a route that requires the API key; empty without one."""
    if api_key is None:
        return {}
    accepted = {api_key.encode("utf-8", "surrogateescape")}
    with contextlib.suppress(UnicodeEncodeError):  # browsers and older HTTP libraries send Latin-1
        accepted.add(api_key.encode("latin-1"))

    bearer = HTTPBearer(auto_error=False, description="The API key of the server.")

    async def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)]) -> None:
        key = given.credentials.encode("latin-1") if given else b""
        matches = [hmac.compare_digest(key, wanted) for wanted in sorted(accepted)]
        if not any(matches):
            message = "The API key is missing or wrong. Send it as Authorization: Bearer KEY."
            raise HTTPException(401, message, {"WWW-Authenticate": "Bearer"})

    refused = {401: {"model": Problem, "description": "The API key is missing or wrong."}}
    return {"dependencies": [Depends(check)], "responses": refused}


async def respond(
    request: Request,
    service: Service,
    work: Callable[[bytes], Awaitable[Any]],
    *,
    media_type: str = "application/json",
    max_body: int | None = None,
    timeout: float | None = None,
) -> Response:
    """Read a body within the limits and send what `work` makes of it, as JSON.

    The work is cancelled after the timeout or when the client is gone. An `EbmcalError` becomes a 422.
    """
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != media_type:
        raise HTTPException(415, f"Expected a body of type {media_type} (header Content-Type), got {given or 'none'}.")
    seconds, body = timeout or service.limits.timeout, bytearray()

    async def read_and_work() -> Any:
        await _read_body(request, service, body, max_body or service.limits.max_body)
        return await _unless_disconnected(request, work(bytes(body)))

    try:
        return JSONResponse(await asyncio.wait_for(read_and_work(), seconds))
    except TimeoutError as error:
        message = f"The request took longer than {seconds:g} s. Send fewer texts or try later."
        raise HTTPException(504, message) from error
    except ClientDisconnect as error:
        raise HTTPException(499, "The client closed the connection.") from error
    except EbmcalError as error:
        raise HTTPException(422, str(error)) from error
    finally:
        service.n_buffered -= len(body)


async def _read_body(request: Request, service: Service, body: bytearray, max_body: int) -> None:
    too_large = HTTPException(413, f"The body is larger than {max_body} bytes. Split it.")
    announced = request.headers.get("content-length", "0")
    if announced.isdigit() and int(announced) > max_body:
        raise too_large
    async for part in request.stream():
        body += part
        service.n_buffered += len(part)
        if service.n_buffered > service.limits.max_buffered:
            message = "The server is receiving too many large requests. Try again."
            raise HTTPException(503, message, {"Retry-After": "1"})
        if len(body) > max_body:
            raise too_large


async def _unless_disconnected(request: Request, work: Awaitable[Any]) -> Any:
    """The result of `work`, which is cancelled as soon as the client is gone."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


class RequestLog:
    """Middleware that counts and logs each request: method, route, status and duration, never its content."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
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
            self.service.metrics.requests.labels(path, status).inc()
            self.service.metrics.seconds.labels(path).observe(seconds)
            log.info("%s %s %d %.1f ms", scope["method"], path, status, 1000 * seconds)
        return None
