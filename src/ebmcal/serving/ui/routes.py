"""The routes of the web UI: the page, the explanation of a text, and the report of an uploaded file."""

import asyncio
import secrets
from collections.abc import Callable
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from ebmcal.errors import EbmcalError
from ebmcal.serving.http import Refusal, limited, read_body, require_key, unless_disconnected
from ebmcal.serving.schema import parse_text
from ebmcal.serving.service import Service
from ebmcal.serving.ui.explanation import explain_text, stored_histogram
from ebmcal.serving.ui.files import Columns, describe_columns, predict_file, report_html

#: What the page may do: use files of this server and show a report in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {"/": ("index.html", "text/html"), "/ui.css": ("ui.css", "text/css"), "/ui.js": ("ui.js", "text/javascript")}

MAX_FILE = 5_000_000  # bytes
REPORT_TIMEOUT = 600.0  # seconds
KEPT_REPORTS = 8


def add_ui(app: FastAPI, service: Service) -> None:
    """Add the page and its routes to an app."""
    for path, (name, media_type) in FILES.items():
        app.get(path, include_in_schema=False)(_file(name, media_type))
    options: dict[str, Any] = {"include_in_schema": False, **require_key(service.api_key)}
    first = next(iter(service.engines.values()))
    about = {
        "models": list(service.engines),
        "histogram": stored_histogram(first.model),
        "is_pair": bool(first.is_pair),
        "is_energy_trained": first.describe()["is_energy_trained"],
    }

    @app.get("/ui/about", **options)
    async def get_about() -> Response:
        return JSONResponse(about)

    @app.post("/ui/explain", **options)
    async def explain(request: Request) -> Response:
        return await limited(request, service, service.limits.timeout, _explain(request, service))

    _add_files(app, service, options)


async def _explain(request: Request, service: Service) -> Response:
    content = await read_body(request, service, "application/json", service.limits.max_body)
    try:
        text = parse_text(content, service.limits)
    except ValueError as error:
        raise Refusal(422, str(error)) from error
    return JSONResponse(await unless_disconnected(request, explain_text(service, text)))


def _add_files(app: FastAPI, service: Service, options: dict[str, Any]) -> None:
    reports: dict[str, str] = {}
    one_at_a_time = asyncio.Lock()  # a report needs a lot of memory

    @app.post("/ui/columns", **options)
    async def columns(request: Request) -> Response:
        async def work() -> Response:
            content = await read_body(request, service, "text/csv", MAX_FILE)
            try:
                return JSONResponse(describe_columns(service, content))
            except EbmcalError as error:
                raise Refusal(422, str(error)) from error

        return await limited(request, service, service.limits.timeout, work())

    async def create(content: bytes, chosen: Columns) -> str:
        async with one_at_a_time:
            try:
                return await asyncio.to_thread(report_html, await predict_file(service, content, chosen))
            except EbmcalError as error:
                raise Refusal(422, str(error)) from error

    @app.post("/ui/report", **options)
    async def report(request: Request) -> Response:
        async def work() -> Response:
            content = await read_body(request, service, "text/csv", MAX_FILE)
            given = {name: value for name, value in request.query_params.items() if name in vars(Columns()) and value}
            html = await unless_disconnected(request, create(content, Columns(**given)))
            name = secrets.token_urlsafe(16)
            reports[name] = html
            while len(reports) > KEPT_REPORTS:
                del reports[next(iter(reports))]
            return JSONResponse({"report": f"ui/report/{name}"})

        return await limited(request, service, REPORT_TIMEOUT, work())

    @app.get("/ui/report/{name}", include_in_schema=False)  # a frame cannot send the API key: the name is a secret
    async def stored_report(name: str) -> Response:
        if name not in reports:
            raise Refusal(404, "This report does not exist any more. Create it again.")
        return HTMLResponse(reports[name], headers={"Content-Security-Policy": "sandbox allow-scripts"})


def _file(name: str, media_type: str) -> Callable[[], Any]:
    content = resources.files("ebmcal.serving.ui").joinpath("static", name).read_bytes()

    async def send() -> Response:
        headers = {"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}
        return Response(content, media_type=media_type, headers=headers)

    return send
